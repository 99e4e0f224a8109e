"""R1, start-up recovery: the barrier between opening a file and the first acknowledgement.

An earlier owner may have died after writing frames that never reached the disk. They look
committed and may vanish in a power cut. So the WAL is checkpointed (which syncs it), and one
durable commit raises the epoch; only then is anything promised on top of it. Where a reader's
snapshot blocks the checkpoint, the commit alone suffices, because its sync covers the whole WAL,
unless a sync has failed before: then the page cache may show what the disk has lost, and only a
complete checkpoint will do.

And even a checkpoint needs care then. Frames that the disk has lost would go into the database,
while the WAL on the disk still ends before them; if the power failed before the commit of the
epoch, that older WAL would be replayed over newer pages and tear the file. So all of the WAL is
written once more, which makes the kernel bring it to the disk, before the checkpoint.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from hermes_actor.engine.checkpoint import Action, run_checkpoint
from hermes_actor.engine.meta_table import (
    create_meta_tables,
    get_internal,
    lacks_meta_tables,
    set_internal,
)
from hermes_actor.engine.retry import retry_busy
from hermes_actor.errors import Busy
from hermes_actor.system.lock_inspection import wal_read_lock_pids

if TYPE_CHECKING:
    from hermes_actor.engine.environment import Environment
    from hermes_actor.engine.kinds import Kind
    from hermes_actor.paths import StorePaths
    from hermes_actor.sqlite import Connection

__all__ = [
    "BARRIER_SECONDS",
    "clear_failed_sync",
    "has_failed_sync",
    "record_failed_sync",
    "run_startup_recovery",
]

BARRIER_SECONDS = 2.0
"""Longest wait for readers during the checkpoint, before the commit alone must do."""


def has_failed_sync(paths: StorePaths) -> bool:
    """True if the last owner saw a sync fail."""
    return paths.fsync_failed.exists()


def record_failed_sync(paths: StorePaths) -> None:
    """Leave a mark for the next owner."""
    # If even that fails, the disk will fail the next owner as well.
    with contextlib.suppress(OSError):
        paths.folder.mkdir(mode=0o700, exist_ok=True)
        paths.fsync_failed.touch()


def clear_failed_sync(paths: StorePaths) -> None:
    """Remove the mark, once recovery is done."""
    paths.fsync_failed.unlink(missing_ok=True)


def run_startup_recovery(
    conn: Connection,
    env: Environment,
    deadline: float,
    paths: StorePaths,
    kind: Kind,
    *,
    after_failure: bool = False,
    leave_by: Callable[[], float] = lambda: float("inf"),
) -> int:
    """Run recovery and return the new epoch. Raises BUSY if a foreign lock outlasts *deadline*.

    *after_failure* says that the last owner saw a sync fail; a reader that blocks the checkpoint is
    named then. Raises ``OSError`` if the WAL cannot be written again. Idempotent: it can be retried
    after any failure.
    """
    # After a failed sync nothing but a complete checkpoint will do: it gets all the time there is.
    budget = max(0.0, deadline - env.monotonic())
    if not after_failure:
        budget = min(BARRIER_SECONDS, budget)
    env.failpoint("barrier.before")
    if after_failure:
        _write_wal_again(conn, env, deadline, paths, leave_by)
    # TRUNCATE: the commit below begins a WAL of this owner. Checkpoint or commit alone has been
    # seen to lose acknowledged changes in simulated power cuts.
    moved = run_checkpoint(conn, Action.TRUNCATE, env, budget, leave_by)
    if after_failure and not moved.complete:
        readers = ", ".join(f"pid {pid}" for pid in wal_read_lock_pids(paths.shm)) or "unknown"
        raise Busy(
            f"recovering: a reader ({readers}) blocks the checkpoint of {paths.db} after a failed"
            f" sync; changes wait until it ends its read transaction"
        )
    env.failpoint("barrier.after_checkpoint")
    retry_busy(lambda: conn.execute("BEGIN IMMEDIATE"), env, deadline, leave_by)
    try:
        # In this transaction: the file needs no other one to be served.
        if lacks_meta_tables(conn, kind):
            create_meta_tables(conn, kind)
        # R5: from this commit on, an owner with an older epoch finds itself fenced.
        epoch = (get_internal(conn, "epoch") or 0) + 1
        set_internal(conn, "epoch", epoch)
        conn.execute("COMMIT")
    except BaseException:
        if conn.in_transaction:
            conn.execute("ROLLBACK")
        raise
    env.failpoint("barrier.after")
    return epoch


def _write_wal_again(
    conn: Connection,
    env: Environment,
    deadline: float,
    paths: StorePaths,
    leave_by: Callable[[], float],
) -> None:
    """Rewrite and sync the WAL under the write lock, so that no program adds to it meanwhile."""
    retry_busy(lambda: conn.execute("BEGIN IMMEDIATE"), env, deadline, leave_by)
    try:
        env.write_again(str(paths.wal))
    finally:
        # Nothing was written through SQLite; the transaction was only the lock.
        conn.execute("ROLLBACK")
