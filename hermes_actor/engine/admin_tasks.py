"""Maintenance that only the owner of a file can do, between two batches.

``replace``: the content of a copy takes the place of the live content through the backup interface
of SQLite, as one transaction of the write connection. The inode stays, readers go on, and requests
that wait are applied to the new content. The copy gets a file_id of its own, a higher epoch and
commit_no, and no receipts: nothing that clients know of the old content is true of the new one.

Who replaces content keeps a copy of the old one. That takes long, and changes go on meanwhile; so
the caller asks for the ``state`` first, copies, and names it as the one that it expects. A content
that is in another state by then is not replaced. On a busy store the caller comes again, with
changes on ``hold``. ``restore`` expects nothing: for callers that want no copy, and older ones.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes_actor import limits
from hermes_actor.engine.checkpoint import Action
from hermes_actor.engine.meta_table import get_internal, has_meta_tables, set_internal
from hermes_actor.errors import (
    BadValue,
    HermesActorError,
    NotAllowed,
    Unsupported,
    from_sqlite,
)
from hermes_actor.sqlite import Connection, sqlite3
from hermes_protocol.messages import Changed

if TYPE_CHECKING:
    from hermes_actor.engine.connection import WriteConnection
    from hermes_actor.engine.writer import Writer

__all__ = ["detach", "maintain"]

_log = logging.getLogger("hermes_actor.engine")


def maintain(
    writer: Writer,
    task: str,
    path: str,
    deadline: float,
    expected: str = "",
    is_wanted: Callable[[], bool] = lambda: True,
) -> dict[str, Any]:
    """Do *task*; what became of it. Raises a typed error, and nothing has changed then.

    *is_wanted* tells whether the caller is still there, while content that it replaces is locked.
    """
    if task == "state":
        return _state(writer, deadline)
    if task == "restore":
        return _replace(writer, Path(path), deadline, "", is_wanted)
    if task == "replace":
        if not expected:
            raise BadValue("a replacement needs the state that it expects")
        return _replace(writer, Path(path), deadline, expected, is_wanted)
    if task == "rebuild-index":
        writer.rebuild_index()
        return {"newest": writer.newest}
    if task == "reindex":
        writer.reindex()
        return {}
    raise Unsupported(f"{task!r} is no maintenance that this build knows")


def detach(writer: Writer) -> list[str]:
    """Index everything and remove all that is ours from the file; the names that went.

    The writer can only be closed after that.
    """
    writer.complete_indexes()
    failed = writer.begin(writer.core.env.monotonic() + limits.OPEN_BUSY_SECONDS)
    if failed is not None:
        raise failed
    conn = writer.core.conn
    sql = "SELECT type, name FROM sqlite_master WHERE name GLOB 'hermes_actor_*' AND sql NOTNULL"
    gone = []
    try:
        for kind, name in conn.execute(f"{sql} ORDER BY type").fetchall():
            conn.execute(f'DROP {kind} IF EXISTS "{name}"')
            gone.append(name)
    except sqlite3.Error as error:
        writer.core.roll_back()
        raise writer.core.explain(error) from error
    writer.core.commit()
    return gone


def _state(writer: Writer, deadline: float) -> dict[str, Any]:
    """A name for the content as it is now, for ``expected``."""
    core = writer.core
    with _explained(core):
        core.run_startup_recovery(deadline)
        return {"state": core.state, "commit_no": core.commit_no}


@contextlib.contextmanager
def _explained(core: WriteConnection) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise core.explain(error) from error


def _replace(
    writer: Writer, copy: Path, deadline: float, expected: str, is_wanted: Callable[[], bool]
) -> dict[str, Any]:
    core = writer.core
    if copy.parent != core.paths.folder:
        # Notes of ours are written into it: it must not be anybody's file.
        raise NotAllowed(f"only a copy inside {core.paths.folder} is restored, not {copy}")
    with _explained(core):
        core.run_startup_recovery(deadline)
    try:
        with contextlib.closing(_open_copy(copy)) as source:
            _make_new(source, core.epoch, core.commit_no)
            core.replace_content(source, deadline, expected, is_wanted)
    except sqlite3.Error as error:
        if isinstance(error, HermesActorError):
            raise  # of the store, and not of the copy
        raise from_sqlite(error, copy) from error
    writer.receipts.swept_through = core.swept_through
    writer.meet_anew()
    writer.changes.add([Changed(commit_no=core.commit_no, op="restore")])
    _log.info("%s was restored; epoch %d, commit %d", core.paths.db, core.epoch, core.commit_no)
    result = {"epoch": core.epoch, "commit_no": core.commit_no, "file_id": core.file_id.hex()}
    try:
        core.checkpoint(Action.TRUNCATE, limits.TRUNCATE_BUDGET_SECONDS)
    except sqlite3.Error as error:
        # The new content is in the WAL, durably. Upkeep folds it into the file when it can.
        _log.warning("%s was restored, and not folded back yet: %s", core.paths.db, error)
    return result


def _open_copy(copy: Path) -> Connection:
    conn = sqlite3.connect(
        f"{copy.as_uri()}?mode=rw", uri=True, isolation_level=None, factory=Connection
    )
    try:
        if not has_meta_tables(conn):
            raise NotAllowed(f"{copy} was not prepared")
    except BaseException:
        conn.close()
        raise
    return conn


def _make_new(copy: Connection, epoch: int, commit_no: int) -> None:
    """Number on from the live file, so that no number of the old content means another change."""
    following = max(commit_no, get_internal(copy, "commit_no") or 0) + 1
    copy.execute("BEGIN IMMEDIATE")
    set_internal(copy, "epoch", max(epoch, get_internal(copy, "epoch") or 0) + 1)
    set_internal(copy, "commit_no", following)
    # Whoever asks for an answer of before the restore is told that nobody knows.
    set_internal(copy, "swept_through", following)
    copy.execute("UPDATE hermes_actor_meta SET value = ? WHERE key = 'file_id'", (os.urandom(16),))
    copy.execute("DELETE FROM hermes_actor_receipts")
    copy.execute("DELETE FROM hermes_actor_stage")
    copy.execute("COMMIT")
