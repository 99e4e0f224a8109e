"""The file itself: can it be opened, is its schema whole, and who keeps it locked."""

from __future__ import annotations

import contextlib
import time

from hermes_actor.cli.start.doctor.findings import Finding, Findings
from hermes_actor.errors import DiskFull, from_sqlite
from hermes_actor.paths import StorePaths
from hermes_actor.sqlite import connect_reader, sqlite3
from hermes_actor.store.inspection import schema_state
from hermes_actor.store.schema import NEWEST_KNOWN_VERSION
from hermes_actor.system.fork import inside
from hermes_actor.system.lock_inspection import (
    lock_holder,
    processes_with_write_fd,
    write_lock_holders,
)

__all__ = ["RESTORE", "content", "write_lock"]

RESTORE = "hermes-actor restore --list, or hermes-actor repair"
_HELD_SECONDS = 0.5
"""A transaction that is open for longer keeps others waiting."""


def content(paths: StorePaths) -> Findings:
    """The shape of the file: tables that are gone, and a version that is not known."""
    if paths.db.is_dir():
        text = f"{paths.db} is a folder, and must be a file"
        yield Finding("broken", "file", text, f"mv {paths.db} {paths.db}.aside")
    if not paths.db.is_file():
        return
    try:
        with contextlib.closing(connect_reader(paths.db)) as conn:
            state = inside(schema_state, conn)
    except sqlite3.Error as error:
        found = from_sqlite(error, paths.db)
        advice = (
            f"free some space: df {paths.db.parent}" if isinstance(found, DiskFull) else RESTORE
        )
        yield Finding("broken", "file", str(found), advice)
        return
    if state.is_empty:
        text = f"{paths.db} is empty: it contains no store yet"
        yield Finding("note", "file", text, "nothing, or hermes-actor restore --list if it had one")
    elif state.lost_table is not None:
        text = (
            f"{paths.db} has lost its table {state.lost_table}; the next owner makes an empty one"
        )
        yield Finding("broken", "file", text, "hermes-actor restore --list")
    if (state.version or 0) > NEWEST_KNOWN_VERSION:
        yield Finding(
            "note", "file", f"{paths.db} has schema version {state.version}; the newest that this"
            f" build was tested with is {NEWEST_KNOWN_VERSION}",
            "hermes-actor backup, and read the notes of the next release",
        )  # fmt: skip


def write_lock(paths: StorePaths) -> Findings:
    """A program beside the actor that is inside a write transaction, and stays there."""
    holders = set(write_lock_holders(paths.shm)) - {lock_holder(paths)}
    if not holders:
        return
    time.sleep(_HELD_SECONDS)
    names = processes_with_write_fd(paths.db)
    for pid in holders & set(write_lock_holders(paths.shm)):
        text = (
            f"pid {pid} ({names.get(pid, '?')}) is inside a write transaction of {paths.db}; others"
            " wait, and get `database is locked`"
        )
        yield Finding("warning", "file", text, f"let it commit, or stop it: kill {pid}")
