"""Worker processes of a :class:`~hermes_actor.testing.writer_pool.WriterPool`.

``python -m hermes_actor.testing.worker ORDER`` forks one process per worker. A worker prepares,
reports ready, waits for the word to go, and ends with its standard input, so also when the process
that started it dies. Its work is a function ``work(worker)``, named as ``module:function``: those
here append messages and look for them; a harness brings its own.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from hermes_actor.client.reader import Reader
from hermes_actor.paths import resolve_paths
from hermes_actor.session_db import SessionDB
from hermes_actor.sqlite import Connection
from hermes_actor.system.descriptors import is_readable
from hermes_actor.testing.records import SOURCE, Recorder, RecordReader, checksum

__all__ = ["Group", "Order", "Worker", "follow", "main", "record_appends", "write"]

WORD_BYTES = 64
"""Length of the word to go, padded: one read of the gate is one whole word."""

DIED = b"!"
"""Report for a worker that has ended before it began."""

_FOLLOW_SECONDS = 0.02
"""Between two looks of a follower."""

_LOOK_SECONDS = 0.1
"""Between two checks for workers that have ended, until the word to go comes."""

_WORDS = ("actor", "batch", "commit", "drain", "epoch", "frame", "index", "mailbox", "owner")


@dataclass(frozen=True, slots=True)
class Group:
    """Workers of one kind: ``prefix0``, ``prefix1`` and so on."""

    prefix: str
    count: int
    work: str
    """``module:function`` that is called with each :class:`Worker`."""
    options: dict[str, Any]
    """Of the work; must survive JSON."""


@dataclass(slots=True)
class Order:
    """Everything that the process of a pool needs to know. It travels as JSON."""

    store: str
    """The database file, or the URL of a store on a server."""
    folder: str
    """The folder of the records."""
    seed: str
    groups: list[Group] = field(default_factory=list)
    path: list[str] = field(default_factory=list)
    """Folders from which the modules of the work are imported."""
    actor_python: str = ""
    """Interpreter with which clients start an actor; the worker's own if empty."""
    setup: str = ""
    """``module:function`` that is called once, before the workers are forked."""
    lifetime: int = 0
    """Seconds after which a worker is ended, whatever happens; 0: never."""


class Worker:
    """One process of a pool: its name, its options, its record, and when to begin and end."""

    def __init__(self, order: Order, group: Group, number: int, gate: int) -> None:
        self.name = f"{group.prefix}{number}"
        """Also the session of a writer, and the name of its file of records."""
        self.store, self.options, self.seed = order.store, group.options, order.seed
        self.folder = Path(order.folder)
        self.rng = random.Random(f"{order.seed} {self.name}")
        self.record = Recorder(self.folder / self.name)
        self._gate = gate

    def ready(self) -> str:
        """Report that everything is prepared, and wait for the word to go; return it.

        Returns "" if the pool is stopped before it begins.
        """
        os.write(1, b".")
        return os.read(self._gate, WORD_BYTES).decode().strip()

    def done(self) -> None:
        """Report that the work is done: see :meth:`WriterPool.wait_done`."""
        os.write(1, b".")

    def report(self, value: Any) -> None:
        """Leave a value of JSON for the pool: see :attr:`Recorded.reports`."""
        self.record("j", json.dumps(value))

    def over(self, seconds: float) -> bool:
        """Pause for *seconds*; return True at once when it is time to end."""
        return is_readable(0, seconds)

    def pause(self) -> bool:
        """Pause for the option ``pause``, on average; return True if it is time to end."""
        mean = self.options.get("pause", 0.0)
        return self.over(self.rng.expovariate(1 / mean) if mean else 0.0)


# --- work ----------------------------------------------------------------------------------------


def write(worker: Worker) -> None:
    """Append messages to a session of its own by :class:`SessionDB`, and record every outcome.

    Options: ``timeout`` and ``mode`` of the store; ``pause``, mean seconds between two writes;
    ``words``, of a message at most; ``reread``: after each acknowledgement the counter of the
    session must show it; ``report_pid``: the first report of the worker is its process id. An error
    without ``executed`` is recorded as ``untyped``.
    """
    options, name = worker.options, worker.name
    db = SessionDB(_address(worker.store), **_given(options, "timeout", "mode"))
    db.create_session(name, SOURCE)

    def counted() -> Any:
        return (db.get_session(name) or {}).get("message_count")

    record_appends(
        worker,
        lambda text: db.append_message(name, "user", text),
        counted if options.get("reread") else None,
    )
    db.close()


def record_appends(
    worker: Worker, append: Callable[[str], Any], counted: Callable[[], Any] | None = None
) -> None:
    """Append texts until it is time to end, and record what becomes of each.

    *append* returns the id of the message. An error that says by ``executed`` that nothing was
    written is a refusal, any other an unknown outcome. *counted*, if given, must return the number
    of messages after each acknowledgement. Options of the work: ``pause``, ``words``,
    ``report_pid``.
    """
    options, name = worker.options, worker.name
    if options.get("report_pid"):
        worker.report(os.getpid())
    number = acknowledged = 0
    worker.ready()
    while not worker.pause():
        number += 1
        words = worker.rng.choices(_WORDS, k=worker.rng.randint(2, options.get("words", 12)))
        text = f"{name} {number} {' '.join(words)}"
        worker.record("i", number, time.monotonic(), checksum(text))
        try:
            ident = append(text)
        except BaseException as error:
            _failed(worker, number, error)
            continue
        worker.record("o", number, time.monotonic(), ident, ident)
        acknowledged += 1
        if counted is not None and acknowledged == number and (found := counted()) != number:
            worker.record("e", time.monotonic(), f"{number} acknowledged, read: {found}")


def _failed(worker: Worker, number: int, error: BaseException) -> None:
    executed = getattr(error, "executed", None)
    text = " ".join(f"{'' if executed else 'untyped '}{type(error).__name__}: {error}".split())
    worker.record("f" if executed == "no" else "u", number, time.monotonic(), text[:300])


def follow(worker: Worker) -> None:
    """Look for every change that a writer has recorded as acknowledged: a read must see it.

    What stands in the record was acknowledged before the read began. Option ``writers``: the
    pattern of the names of their files.
    """
    records, pattern = RecordReader(worker.folder), worker.options.get("writers", "writer-*")
    reader = Reader(resolve_paths(Path(worker.store)))
    worker.ready()
    while not worker.over(_FOLLOW_SECONDS):
        ended = [one for one in records.poll() if fnmatch(one.client, pattern)]
        new = {one.result: one for one in ended if one.outcome == "ok"}
        if new:
            began = time.monotonic()
            seen = reader.query(_messages, min(new), max(new))
            missing = [
                f"{one.client} {one.number}"
                for ident, one in new.items()
                if seen.get(ident) != (one.client, one.payload)
            ]
            worker.record("l", began, time.monotonic(), len(new), json.dumps(missing))
    reader.close()


def _messages(conn: Connection, first: int, last: int) -> dict[int, tuple[str, int]]:
    """Return session and checksum of each message, by id."""
    sql = "SELECT id, session_id, content FROM messages WHERE id BETWEEN ? AND ?"
    rows = conn.execute(sql, (first, last))
    return {ident: (session, checksum(text)) for ident, session, text in rows}


def _address(store: str) -> str | Path:
    return store if "://" in store else Path(store)


def _given(options: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: options[name] for name in names if name in options}


# --- processes -----------------------------------------------------------------------------------


def main() -> int:
    """Fork the workers of one order; return the worst of their exit codes."""
    words = json.loads(sys.argv[1])
    order = Order(**{**words, "groups": [Group(**group) for group in words["groups"]]})
    sys.path[:0] = order.path
    if order.actor_python:
        sys.executable = order.actor_python
    if order.setup:
        _named(order.setup)()
    work = {group.work: _named(group.work) for group in order.groups}  # imported once
    # The collector of a worker leaves alone what all of them share: its passes would copy those
    # pages, and charge the work of one for the imports of another.
    gc.freeze()
    gate, opener = os.pipe()
    children: dict[int, str] = {}
    for group in order.groups:
        for number in range(group.count):
            child = os.fork()
            if not child:
                os.close(opener)
                _work(order, group, number, gate, work[group.work])
            children[child] = f"{group.prefix}{number}"
    ended: dict[int, int] = {}
    while not is_readable(0, _LOOK_SECONDS):
        if _note_end(ended):
            # One that cannot begin: the pool need not wait for it until its time is over.
            os.write(1, DIED)
    _pass_on_the_word(opener, len(children))
    return _collect(children, ended)


def _named(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found


def _work(
    order: Order, group: Group, number: int, gate: int, work: Callable[[Worker], None]
) -> None:
    code = 1
    try:
        signal.alarm(order.lifetime)
        work(Worker(order, group, number, gate))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _pass_on_the_word(opener: int, workers: int) -> None:
    """Give every worker the word to go; at the end of the input they find the gate open instead."""
    if word := os.read(0, WORD_BYTES):
        os.write(opener, word * workers)
    os.close(opener)


def _note_end(ended: dict[int, int]) -> bool:
    """Reap a worker that has ended. Return True if there was one, and it has failed."""
    with contextlib.suppress(ChildProcessError):  # all have ended
        child, status = os.waitpid(-1, os.WNOHANG)
        if child:
            ended[child] = os.waitstatus_to_exitcode(status)
            return ended[child] != 0
    return False


def _collect(children: dict[int, str], ended: dict[int, int]) -> int:
    worst = 0
    for child, name in children.items():
        if child not in ended:
            ended[child] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        code = ended[child]
        if code:
            print(f"{name} has ended with {code}", file=sys.stderr)  # noqa: T201
        worst = max(worst, abs(code))
    return worst


if __name__ == "__main__":
    # Functions of this module are named by their full name: one module, not two.
    from hermes_actor.testing import worker as this

    sys.exit(this.main())
