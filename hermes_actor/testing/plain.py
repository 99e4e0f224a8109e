"""The same load without an actor: every writer opens the file by itself.

By the class of an installed hermes-agent if there is one, with its own waits and retries, else by
``sqlite3``. Then the file has the tables and the full-text triggers that hermes-agent's file has, a
write is one transaction in WAL mode, and a writer waits for a lock as long as ``sqlite3`` does by
default: 5 s.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from hermes_actor.session_db import SessionDB
from hermes_actor.sqlite import sqlite3
from hermes_actor.testing.load import Load
from hermes_actor.testing.records import SOURCE
from hermes_actor.testing.worker import Worker, record_appends

__all__ = ["PlainLoad", "Refused", "ReleasedLoad", "append", "append_by_release", "plain_load"]

_RELEASE, _MODULE = "hermes-agent", "hermes_state"
_PREPARE_SECONDS = 60.0


class PlainLoad(Load):
    """Writers and readers of a file that has no owner."""

    title = "plain sqlite3"
    note = f"There is no {_RELEASE} beside this command; its tables were written by sqlite3."
    work = f"{__name__}:append"

    def _prepare(self) -> None:
        SessionDB(self.paths.db, mode="embedded").close()  # its tables and triggers


class ReleasedLoad(PlainLoad):
    """The same by the class of the hermes-agent that is installed beside this program."""

    work = f"{__name__}:append_by_release"
    environment: ClassVar[Mapping[str, str]] = {"HERMES_ACTOR_DISABLE": "1"}
    """Also where hermes-agent is attached: this half is about what it does by itself."""

    def _prepare(self) -> None:
        # In a process of its own: the module reads settings of a home when it is imported.
        program = f"import sys, {_MODULE}, pathlib\n"
        program += f"{_MODULE}.SessionDB(pathlib.Path(sys.argv[1])).close()"
        done = subprocess.run(
            [sys.executable, "-c", program, str(self.paths.db)],
            env={**os.environ, **self.environment, "HERMES_HOME": str(self.home)},
            capture_output=True, text=True, timeout=_PREPARE_SECONDS,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{self.title} cannot make a store: {done.stderr.strip()[-300:]}")


def plain_load() -> type[PlainLoad]:
    """Return the load by the released class if that can be imported here, else by ``sqlite3``."""
    found = importlib.util.find_spec(_MODULE)
    # Under the drop-in that name is ours.
    ours = Path(__file__).parents[1] / f"{_MODULE}.py"
    if found is None or found.origin is None or Path(found.origin).resolve() == ours.resolve():
        return PlainLoad
    try:
        title = f"{_RELEASE} {importlib.metadata.version(_RELEASE)}"
    except importlib.metadata.PackageNotFoundError:
        return PlainLoad  # a file of that name, which may be anything
    ReleasedLoad.title = title
    ReleasedLoad.note = f"{title} is installed here: its own class wrote the first half."
    return ReleasedLoad


class Refused(sqlite3.OperationalError):
    """A write was given up and rolled back."""

    executed = "no"


def append(worker: Worker) -> None:
    """Append messages to a session of its own by ``sqlite3``, and record every outcome.

    Options: ``pause``, ``words`` and ``report_pid``, as of
    :func:`~hermes_actor.testing.worker.write`.
    """
    conn = sqlite3.connect(worker.store, isolation_level=None)
    conn.execute("PRAGMA journal_mode = WAL")
    session = "INSERT INTO sessions (id, source, started_at) VALUES (?, ?, ?)"
    conn.execute(session, (worker.name, SOURCE, time.time()))

    def append_one(text: str) -> int | None:
        try:
            conn.execute("BEGIN IMMEDIATE")
            made = conn.execute(
                "INSERT INTO messages (session_id, role, content, timestamp) VALUES (?, ?, ?, ?)",
                (worker.name, "user", text, time.time()),
            )
            count = "UPDATE sessions SET message_count = message_count + 1 WHERE id = ?"
            conn.execute(count, (worker.name,))
            conn.execute("COMMIT")
        except sqlite3.Error as error:
            conn.rollback()
            raise Refused(str(error)) from error
        return made.lastrowid

    record_appends(worker, append_one)
    conn.close()


def append_by_release(worker: Worker) -> None:
    """Do the same by the ``SessionDB`` of the installed release, as its programs call it."""
    db = importlib.import_module(_MODULE).SessionDB(Path(worker.store))
    db.create_session(worker.name, source=SOURCE)

    def append_one(text: str) -> int:
        try:
            return int(db.append_message(worker.name, role="user", content=text))
        except sqlite3.Error as error:
            raise Refused(str(error)) from error  # the class has rolled it back

    record_appends(worker, append_one)
    db.close()
