"""Deliberate faults of the engine, for the selftest of the jobs about disks.

``--set break=NAME`` runs a job against such an engine, in the recording process only. Each one is
a mistake that a programmer could make, and each must be found. The product knows nothing of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from hermes_actor.engine import connection
from hermes_actor.engine.batch import BatchRunner
from hermes_actor.engine.checkpoint import Action, run_checkpoint
from hermes_actor.engine.connection import WriteConnection
from hermes_actor.engine.meta_table import get_internal, set_internal
from hermes_actor.engine.receipts import Receipts
from hermes_actor.engine.shared_sync import SharedSync
from hermes_actor.engine.startup import open_database, recovery

if TYPE_CHECKING:
    from harness.job import Job

    from hermes_actor.sqlite import Connection

__all__ = ["BREAKS", "break_of", "over", "replace"]


def replace(owner: object, name: str, value: object) -> None:
    """Replace an existing name of a module or class: a fault that breaks nothing finds nothing."""
    assert hasattr(owner, name), f"{owner!r} has no {name} any more"
    setattr(owner, name, value)


def _synchronous(mode: str) -> Callable[[], None]:
    """Commits are synced less than they must be."""

    def patch() -> None:
        plain = open_database._configure

        def configure(conn: Connection) -> None:
            plain(conn)
            conn.execute(f"PRAGMA synchronous = {mode}")

        replace(open_database, "_configure", configure)

    return patch


def _reply_before_commit() -> None:
    """Answers leave, and the transaction is committed before the next one begins."""
    commit, begin = WriteConnection.commit, WriteConnection.begin
    owed: list[tuple[Any, ...]] = []

    def late_commit(self: WriteConnection, commit_no: int | None = None, writes: int = 0) -> None:
        if commit_no is None:
            commit(self, commit_no, writes)
            return
        set_internal(self.conn, "commit_no", commit_no)
        self.commit_no = commit_no
        owed.append((self, commit_no, writes))

    def pay(self: WriteConnection, *arguments: Any, **options: Any) -> Any:
        while owed:
            commit(*owed.pop())
        return begin(self, *arguments, **options)

    replace(WriteConnection, "commit", late_commit)
    replace(WriteConnection, "begin", pay)


def _receipt_apart() -> None:
    """Receipts are written in a transaction of their own, after the changes."""
    record, run = Receipts.record, BatchRunner._run_transaction
    later: list[tuple[Any, ...]] = []

    def note(self: Receipts, conn: Connection, *arguments: Any) -> None:
        later.append((self, conn, *arguments))
        self._pending[arguments[0].client] = arguments[0].seq

    def run_and_note(self: BatchRunner, *arguments: Any) -> Any:
        outcomes = run(self, *arguments)
        if later and self._connection.begin(float("inf")) is None:
            while later:
                record(*later.pop(0))
            self._connection.commit()
        return outcomes

    replace(Receipts, "record", note)
    replace(BatchRunner, "_run_transaction", run_and_note)


def _barrier(*, fold: bool, boot: bool) -> Callable[[], None]:
    """One half of the start-up barrier, or neither, and the WAL is not written once more."""

    def patch() -> None:
        plain = recovery.run_startup_recovery

        def half(conn: Connection, env: Any, *arguments: Any, **options: Any) -> int:
            if get_internal(conn, "epoch") is None or (boot and fold):
                return plain(conn, env, *arguments, **options)
            if fold:
                run_checkpoint(conn, Action.TRUNCATE, env, 1.0)
            epoch = get_internal(conn, "epoch") or 0
            if boot:
                conn.execute("BEGIN IMMEDIATE")
                set_internal(conn, "epoch", epoch + 1)
                conn.execute("COMMIT")
                epoch += 1
            return epoch

        replace(connection, "run_startup_recovery", half)

    return patch


def _go_on_after_failed_sync() -> None:
    """A commit whose sync has failed counts as committed."""

    def forgive(self: WriteConnection, _error: BaseException, **_options: Any) -> None:
        self.roll_back()

    replace(WriteConnection, "_commit_failed", forgive)


def _wal_not_written_again() -> None:
    """After a failed sync the WAL is checkpointed as the page cache shows it."""
    plain = recovery.run_startup_recovery

    def careless(*arguments: Any, **options: Any) -> int:
        return plain(*arguments, **options | {"after_failure": False})

    replace(connection, "run_startup_recovery", careless)


def _journal_not_synced() -> None:
    """Where WAL does not work, the removal of the journal is not synced."""
    plain = open_database._ensure_wal

    def ensure(conn: Connection, *arguments: Any) -> None:
        plain(conn, *arguments)
        conn.execute("PRAGMA synchronous = FULL")

    replace(open_database, "_ensure_wal", ensure)


def _answered_before_sync() -> None:
    """Leases that share a sync are answered before it."""
    replace(SharedSync, "withhold", lambda _self, answer: answer(None))


BREAKS: dict[str, Callable[[], None]] = {
    "synchronous-off": _synchronous("OFF"),
    "synchronous-normal": _synchronous("NORMAL"),
    "reply-before-commit": _reply_before_commit,
    "receipt-apart": _receipt_apart,
    "no-barrier": _barrier(fold=False, boot=False),
    "no-boot-commit": _barrier(fold=True, boot=False),
    "no-fold": _barrier(fold=False, boot=True),
    "go-on-after-failed-sync": _go_on_after_failed_sync,
    "wal-not-written-again": _wal_not_written_again,
    "journal-not-synced": _journal_not_synced,
    "answered-before-sync": _answered_before_sync,
}


def break_of(options: Mapping[str, str]) -> Callable[[], None]:
    """What ``--set break=NAME`` asks for; nothing if it is not there."""
    name = options.get("break")
    return BREAKS[name] if name else lambda: None


def over(job: Job) -> bool:
    """Whether a job may end: ``--set enough=N`` says how many violations tell enough."""
    return len(job.violations) >= int(job.options.get("enough", 100)) or job.left <= 0
