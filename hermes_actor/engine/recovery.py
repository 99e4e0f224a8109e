"""R1, the start-up barrier: what stands between opening a file and the first acknowledgement.

An earlier owner may have died after writing frames that never reached the disk. They look
committed to us and may vanish in a power cut. So the WAL is folded back (which syncs it), and one
durable commit of our own raises the epoch; only then is anything promised on top of it. Where a
reader's snapshot keeps the WAL from being folded, the commit alone suffices, because its sync
covers the whole WAL, unless a sync has failed before: then the page cache may show what the disk
has lost, and only a folded WAL will do.

And even folding needs care then. Frames that the disk has lost would go into the database, while
the WAL on the disk still ends before them; if the power went before our own commit, that older WAL
would be replayed over newer pages and tear the file. So all of the WAL is written once more, which
makes the kernel bring it to the disk, before anything is folded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hermes_actor.engine.checkpoint import Action, run_checkpoint
from hermes_actor.engine.meta_table import create_own_tables, get_own, lacks_own_tables, set_own
from hermes_actor.engine.retry import retry_busy
from hermes_actor.errors import Busy
from hermes_actor.system.lock_inspection import snapshot_holders

if TYPE_CHECKING:
    from hermes_actor.engine.environment import Seams
    from hermes_actor.paths import Place
    from hermes_actor.sqlite import Connection

__all__ = ["BARRIER_SECONDS", "pass_barrier"]

BARRIER_SECONDS = 2.0
"""How long the WAL is tried to be folded back before the commit alone must do."""


def pass_barrier(
    conn: Connection,
    seams: Seams,
    deadline: float,
    place: Place,
    *,
    after_failure: bool = False,
    leave_by: Callable[[], float] = lambda: float("inf"),
) -> int:
    """Run the barrier and return the new epoch. Raises BUSY if a foreign lock outlasts *deadline*.

    *after_failure* says that the last owner saw a sync fail; readers that are in the way then are
    named by their locks. Raises ``OSError`` if the WAL cannot be written again. Idempotent:
    whatever fails here can be tried again.
    """
    # After a failed sync nothing but a folded WAL will do, so it gets all the time there is.
    budget = max(0.0, deadline - seams.monotonic())
    if not after_failure:
        budget = min(BARRIER_SECONDS, budget)
    seams.failpoint("barrier.before")
    if after_failure:
        _write_wal_again(conn, seams, deadline, place)
    folded = run_checkpoint(conn, Action.TRUNCATE, seams, budget)
    if after_failure and not folded.complete:
        readers = ", ".join(f"pid {pid}" for pid in snapshot_holders(place.shm)) or "unknown"
        raise Busy(
            f"recovering: a reader ({readers}) keeps the WAL from being folded back after a failed"
            f" sync; changes wait until it leaves"
        )
    seams.failpoint("barrier.after_checkpoint")
    retry_busy(lambda: conn.execute("BEGIN IMMEDIATE"), seams, deadline, leave_by)
    try:
        if lacks_own_tables(conn):
            create_own_tables(conn)
        epoch = (get_own(conn, "epoch") or 0) + 1
        set_own(conn, "epoch", epoch)
        conn.execute("COMMIT")
    except BaseException:
        if conn.in_transaction:
            conn.execute("ROLLBACK")
        raise
    seams.failpoint("barrier.after")
    return epoch


def _write_wal_again(conn: Connection, seams: Seams, deadline: float, place: Place) -> None:
    """Under the write lock, so that nobody adds to the WAL or begins it anew meanwhile."""
    retry_busy(lambda: conn.execute("BEGIN IMMEDIATE"), seams, deadline)
    try:
        seams.write_again(str(place.wal))
    finally:
        conn.execute("ROLLBACK")
