"""Tasks that only the owner of a file can do, between two batches.

``replace``: the content of a copy takes the place of the live content through the backup interface
of SQLite, as one transaction of the write connection. The inode stays, readers go on, and requests
that wait are applied to the new content. The copy gets a file_id of its own, a higher epoch and
commit_no, and no receipts: nothing that clients know of the old content is true of the new one.

A caller that replaces content keeps a copy of the old one. That takes long, and changes go on
meanwhile; so the caller asks for the ``state`` first, copies, and names it as the one that it
expects. A content that is in another state by then is not replaced. On a busy store the caller
retries, with changes on ``hold``. ``restore`` expects nothing: for callers that want no copy, and
older ones.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes_actor import limits
from hermes_actor.engine.checkpoint import Action
from hermes_actor.engine.connection import data_version
from hermes_actor.engine.maintenance import run_in_transaction
from hermes_actor.engine.meta_table import (
    get_internal,
    has_meta_tables,
    journal_mode_before,
    set_internal,
)
from hermes_actor.engine.retry import is_busy, retry_busy
from hermes_actor.engine.statement_limit import interruptible
from hermes_actor.errors import (
    BadValue,
    Busy,
    DeadlineExceeded,
    HermesActorError,
    NotAllowed,
    OutcomeUnknown,
    StateChanged,
    Unsupported,
    cannot_use,
    from_sqlite,
    wrong_kind,
)
from hermes_actor.sqlite import Connection, sqlite3
from hermes_actor.store.inspection import recorded_kind
from hermes_actor.store.rows import scalar
from hermes_protocol.messages import Changed

if TYPE_CHECKING:
    from hermes_actor.engine.checkpoint import Checkpointer
    from hermes_actor.engine.connection import WriteConnection
    from hermes_actor.engine.writer import Writer

__all__ = ["copy_to", "detach", "maintain", "vacuum"]

_log = logging.getLogger("hermes_actor.engine")


def maintain(
    writer: Writer,
    task: str,
    path: str,
    deadline: float,
    expected: str = "",
    is_wanted: Callable[[], bool] = lambda: True,
) -> dict[str, Any]:
    """Do *task* and return its result. Raises a typed error, and nothing has changed then.

    *is_wanted* is False once the caller has left; it is called while content that is to be replaced
    is locked.
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
        writer.index.rebuild()
        return {"newest": writer.index.newest}
    if task == "reindex":
        _reindex(writer)
        return {}
    raise Unsupported(f"unknown maintenance task {task!r}")


def detach(writer: Writer) -> list[str]:
    """Index everything and remove the actor's own objects from the file; returns their names.

    Returns the file to the journal mode that its first owner has found, if that was recorded. The
    writer can only be closed after that.
    """
    # First: without an owner, what is not indexed by then stays so for other programs.
    writer.index.complete()
    connection = writer.connection
    failed = connection.begin(connection.env.monotonic() + limits.OPEN_BUSY_SECONDS)
    if failed is not None:
        raise failed
    conn = connection.conn
    mode = journal_mode_before(conn)
    sql = "SELECT type, name FROM sqlite_master WHERE name GLOB 'hermes_actor_*' AND sql NOTNULL"
    gone = []
    try:
        for kind, name in conn.execute(f"{sql} ORDER BY type").fetchall():
            conn.execute(f'DROP {kind} IF EXISTS "{name}"')
            gone.append(name)
    except sqlite3.Error as error:
        connection.roll_back()
        raise connection.explain(error) from error
    connection.commit()
    if mode is not None:
        _set_journal_mode(writer, mode)
    return gone


def _set_journal_mode(writer: Writer, mode: str) -> None:
    """Leave WAL mode for *mode*. Readers that use the WAL keep it as it is, which is logged."""
    connection, env = writer.connection, writer.connection.env
    conn = connection.conn
    if mode == scalar(conn, "PRAGMA journal_mode"):
        return
    deadline = env.monotonic() + limits.COMMIT_BUSY_SECONDS
    try:
        # First, and with a limit: leaving WAL mode runs a checkpoint of its own.
        writer.checkpointer.run(Action.TRUNCATE, limits.TRUNCATE_BUDGET_SECONDS)
        retry_busy(lambda: conn.execute(f"PRAGMA journal_mode = {mode}"), env, deadline)
        # The WAL is gone, and was not taken away.
        connection.guard.remember()
    except sqlite3.Error as error:
        connection.break_on_io_error(error)
        _log.warning("%s stays in WAL mode: %s", connection.paths.db, error)


def copy_to(connection: WriteConnection, target: Path) -> None:
    """Copy everything that is committed to a new, private file. Raises a typed error."""
    try:
        # Private from the start, and never over a file that is there (G15).
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        with contextlib.closing(sqlite3.connect(target)) as copy:
            connection.conn.backup(copy)
    except OSError as error:
        raise cannot_use(connection.paths.db, target, error) from error
    except sqlite3.Error as error:
        raise connection.explain(error) from error


# --- rewriting what is there ---------------------------------------------------------------------


def vacuum(
    connection: WriteConnection, checkpointer: Checkpointer, deadline: float
) -> HermesActorError | None:
    """Rewrite the file without free pages. Returns the reason if that failed.

    VACUUM cannot run inside a transaction, so the epoch is checked before and after it (R5).
    """
    failed = connection.begin(deadline)
    if failed is not None:
        return failed
    # Only the check of the epoch: VACUUM refuses to run inside a transaction.
    connection.roll_back()
    try:
        with interruptible(connection.conn, partial(_why_leave, connection)):
            _vacuum(connection, checkpointer, deadline)
    except OutcomeUnknown:
        return connection.broken_error()
    except (sqlite3.Error, DeadlineExceeded) as error:
        return connection.explain(error)
    failed = connection.begin(deadline)
    connection.roll_back()
    # The file is rewritten: what keeps another transaction from beginning now is not its failure.
    return failed if connection.broken is not None else None


def _vacuum(connection: WriteConnection, checkpointer: Checkpointer, deadline: float) -> None:
    """Run VACUUM by the rules of a commit (R2, R3).

    Raises what SQLite raises, after which the file is as it was, unless the writer is broken.
    """
    env = connection.env
    # VACUUM writes the whole file into the WAL: it begins with an empty one.
    checkpointer.run(Action.TRUNCATE, limits.TRUNCATE_BUDGET_SECONDS)
    try:
        retry_busy(
            lambda: connection.conn.execute("VACUUM"), env, deadline, lambda: connection.leave_by
        )
    except sqlite3.Error as error:
        connection.break_on_io_error(error)
        raise
    connection.verify_files()
    checkpointer.state.wrote(
        limits.CHECKPOINT_EVERY_WRITES, env.monotonic(), connection.wal_frames()
    )
    try:
        checkpointer.run(Action.TRUNCATE, limits.TRUNCATE_BUDGET_SECONDS)
    except sqlite3.Error as error:
        # The rewritten content is committed; the next checkpoint moves it.
        _log.warning(
            "the checkpoint after a vacuum of %s failed, idle time retries it: %s",
            connection.paths.db,
            error,
        )


def _reindex(writer: Writer) -> None:
    """Rebuild every ordinary index from its table, each in a transaction of its own."""
    connection = writer.connection
    sql = "SELECT name FROM sqlite_master WHERE type = 'index'"
    for (name,) in connection.conn.execute(sql).fetchall():
        quoted = name.replace('"', '""')

        def rebuild(conn: Connection, statement: str = f'REINDEX "{quoted}"') -> None:
            with interruptible(conn, partial(_why_leave, connection)):
                conn.execute(statement)

        run_in_transaction(
            connection,
            rebuild,
            limits.OPEN_BUSY_SECONDS,
            writes=limits.CHECKPOINT_EVERY_WRITES,
        )
        writer.checkpointer.run_if_due(waiting=writer.others_wait())


def _why_leave(connection: WriteConnection) -> str | None:
    """Return why a long statement is given up: the host wants to close the file."""
    if connection.env.monotonic() < connection.leave_by:
        return None
    return "it was interrupted and nothing of it executed: the actor ends or hands over"


# --- replacing the content -----------------------------------------------------------------------


def _state(writer: Writer, deadline: float) -> dict[str, Any]:
    """Return a name for the content as it is now, for ``expected``."""
    connection = writer.connection
    with _explained(connection):
        connection.run_startup_recovery(deadline)
        return {"state": connection.state, "commit_no": connection.commit_no}


@contextlib.contextmanager
def _explained(connection: WriteConnection) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise connection.explain(error) from error


def _replace(
    writer: Writer, copy: Path, deadline: float, expected: str, is_wanted: Callable[[], bool]
) -> dict[str, Any]:
    connection = writer.connection
    if copy.parent != connection.paths.folder:
        # The actor writes its own marks into it: it must not be a file of the user.
        raise NotAllowed(f"only a copy inside {connection.paths.folder} is restored, not {copy}")
    with _explained(connection):
        connection.run_startup_recovery(deadline)
    try:
        with contextlib.closing(_open_copy(copy)) as source:
            found, wanted = recorded_kind(source), writer.kind.name
            if found != wanted:
                raise wrong_kind(copy, str(found), wanted)
            _make_new(source, connection.epoch, connection.commit_no)
            _replace_content(connection, source, deadline, expected, is_wanted)
    except sqlite3.Error as error:
        if isinstance(error, HermesActorError):
            raise  # of the store, and not of the copy
        raise from_sqlite(error, copy) from error
    connection.content_replaced()
    # All of memory before the checkpoint below: if that fails, the content is a new one anyway.
    writer.receipts.swept_through = connection.swept_through
    writer.index.content_replaced()
    writer.changes.add([Changed(commit_no=connection.commit_no, op="restore")])
    _log.info(
        "%s was restored; epoch %d, commit %d",
        connection.paths.db,
        connection.epoch,
        connection.commit_no,
    )
    result = {
        "epoch": connection.epoch,
        "commit_no": connection.commit_no,
        "file_id": connection.file_id.hex(),
    }
    try:
        writer.checkpointer.run(Action.TRUNCATE, limits.TRUNCATE_BUDGET_SECONDS)
    except sqlite3.Error as error:
        # The new content is in the WAL, durably. Idle time moves it into the file when it can.
        _log.warning("%s was restored, and is not checkpointed yet: %s", connection.paths.db, error)
    return result


def _replace_content(
    connection: WriteConnection,
    source: sqlite3.Connection,
    deadline: float,
    expected: str,
    is_wanted: Callable[[], bool],
) -> None:
    """Write every page of *source* into the file, as one transaction; the inode stays.

    *expected* is the only state that may be replaced; without it, any. A foreign lock is waited for
    until *deadline*, and only while *is_wanted*. Raises a typed error, after which the file is as
    it was, unless the writer is broken. Once it returns, the new content is durable; moving it into
    the file is maintenance.
    """
    if connection.broken is not None:
        raise connection.broken_error()
    connection.run_startup_recovery(deadline)
    connection.verify_files()
    connection.roll_back()
    try:
        with contextlib.closing(connection.env.connect_reader(connection.paths.db)) as witness:
            seen = data_version(witness)
            if expected and expected != connection.state:
                raise _state_changed(connection)

            def check(status: int, _left: int, _total: int) -> None:
                if status == sqlite3.SQLITE_OK:
                    # The backup holds the write lock by now, so what the witness sees is what goes.
                    if expected and _has_changed(witness, seen):
                        raise _state_changed(connection)
                elif status != sqlite3.SQLITE_DONE:
                    # The deadline is that of a command, an hour: neither does a drain wait for that
                    # nor is the content replaced then for a caller that has left.
                    late = connection.env.monotonic() >= min(deadline, connection.leave_by)
                    if late or not is_wanted():
                        raise Busy(f"another program is writing {connection.paths.db}")

            # Page by page, so that the witness is asked before the last one, which commits.
            # The first step locks the file until the end, and the source stays as it is.
            source.execute("BEGIN")
            source.execute("SELECT 1 FROM sqlite_master").fetchall()
            source.backup(connection.conn, pages=1, progress=check, sleep=limits.BUSY_RETRY_SECONDS)
    except sqlite3.Error as error:
        connection.break_on_io_error(error)
        raise connection.explain(error) from error


def _has_changed(witness: Connection, seen: int) -> bool:
    try:
        return data_version(witness) != seen
    except sqlite3.OperationalError as error:
        if is_busy(error):
            return False  # without a WAL the lock keeps readers out, too; the first check must do
        raise


def _state_changed(connection: WriteConnection) -> StateChanged:
    return StateChanged(
        f"{connection.paths.db} has changed since it was copied: it is at change"
        f" {connection.commit_no} now, and other programs have written it"
        f" {connection.foreign_commits} times"
    )


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
    # Requests sent before the restore get OutcomeUnknown.
    set_internal(copy, "swept_through", following)
    copy.execute("UPDATE hermes_actor_meta SET value = ? WHERE key = 'file_id'", (os.urandom(16),))
    copy.execute("DELETE FROM hermes_actor_receipts")
    copy.execute("DELETE FROM hermes_actor_stage")
    copy.execute("COMMIT")
