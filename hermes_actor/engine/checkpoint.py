"""Checkpoints: a pure decision when one is due, and the bounded ways to run it.

A PASSIVE checkpoint reports success even when a reader kept it from moving anything, so results
are judged by frames moved and never by the busy flag alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from hermes_actor import limits
from hermes_actor.errors import OutcomeUnknown
from hermes_actor.sqlite import primary_code, sqlite3

if TYPE_CHECKING:
    from hermes_actor.engine.connection import WriteConnection
    from hermes_actor.engine.environment import Environment
    from hermes_actor.sqlite import Connection

__all__ = [
    "Action",
    "CheckpointState",
    "Checkpointer",
    "WalResult",
    "checkpoint_whole_wal",
    "decide",
    "run_checkpoint",
]

_log = logging.getLogger("hermes_actor.engine")

_RETRY_SECONDS = 0.0002
"""Between two tries of RESTART or TRUNCATE: as short as a read is, because all writers wait."""


class Action(Enum):
    """Mode of a checkpoint; the value is SQLite's name for it."""

    NOTHING = ""
    PASSIVE = "PASSIVE"
    RESTART = "RESTART"
    TRUNCATE = "TRUNCATE"


class WalResult(NamedTuple):
    """Frames in the WAL and frames moved; ``complete`` means that nothing is left to move."""

    frames: int
    moved: int
    busy: bool

    @property
    def complete(self) -> bool:
        """True if the whole WAL is in the database."""
        return not self.busy and self.moved >= self.frames


@dataclass(slots=True)
class CheckpointState:
    """Work since the last checkpoint, on which :func:`decide` decides."""

    writes: int = 0
    commits: int = 0
    frames: int = 0
    """In the WAL at the last checkpoint."""
    file_frames: int = 0
    grown_frames: int = 0
    """Growth of the WAL file since then. It does not shrink when SQLite restarts the WAL."""
    truncated: bool = True
    changes_in_wal: int = 0
    """Acknowledged changes that are not in the database yet, at most."""
    all_moved: bool = True
    """True if the last checkpoint left nothing behind; otherwise a reader pins the WAL."""
    last_write: float = 0.0
    last_restart: float = float("-inf")
    restart_interval: float = limits.RESTART_MIN_INTERVAL_SECONDS
    outcomes: dict[str, int] = field(default_factory=dict)

    def wrote(self, writes: int, now: float, file_frames: int = 0, changes: int = 0) -> None:
        """Count a commit of *writes* rows or so, and of *changes* that were acknowledged."""
        self.writes += writes
        self.changes_in_wal += changes
        # Not below 0: the file may have been cut since (journal_size_limit).
        self.grown_frames = max(0, file_frames - self.file_frames)
        self.commits += 1
        self.truncated = False
        self.last_write = now

    def ran(self, action: Action, result: WalResult, now: float, file_frames: int = 0) -> None:
        """Count a checkpoint and its result."""
        self.file_frames, self.grown_frames = file_frames, 0
        outcome = "complete" if result.complete else "partial"
        key = f"{action.value.lower()}.{outcome}"
        self.outcomes[key] = self.outcomes.get(key, 0) + 1
        self.all_moved = result.complete
        if result.complete:
            self.changes_in_wal = 0
        # Also if only a part was moved: what a reader keeps back would make a checkpoint due after
        # every batch.
        self.writes = self.commits = 0
        # A PASSIVE checkpoint leaves the frames in the WAL, moved or not: SQLite begins again at
        # its start with a later write, and only if no reader uses it then.
        self.frames = 0 if result.complete and action is not Action.PASSIVE else result.frames
        if action is Action.TRUNCATE:
            self.truncated = result.complete
        if action is Action.RESTART:
            # A reader that pins the WAL will still be there: back off, all writers wait meanwhile.
            self.last_restart = now
            self.restart_interval = (
                limits.RESTART_MIN_INTERVAL_SECONDS
                if result.complete
                else min(self.restart_interval * 2, limits.RESTART_MAX_INTERVAL_SECONDS)
            )


def decide(state: CheckpointState, now: float, *, waiting: bool) -> Action:
    """Return the checkpoint that is due, given whether operations wait."""
    # RESTART first: only it keeps the WAL file from growing while readers come and go, because
    # SQLite writes to the beginning again only if no reader uses the WAL at that moment.
    if state.frames > limits.RESTART_ABOVE_FRAMES and (
        now - state.last_restart >= state.restart_interval
    ):
        return Action.RESTART
    if (
        state.commits >= limits.CHECKPOINT_EVERY_COMMITS
        or state.grown_frames >= limits.CHECKPOINT_EVERY_FRAMES
        or (state.writes >= limits.CHECKPOINT_EVERY_WRITES and not waiting)
    ):
        return Action.PASSIVE
    # TRUNCATE in idle time only: a WAL that is written again at once would be extended again.
    if (
        not waiting
        and not state.truncated
        and now - state.last_write >= limits.TRUNCATE_AFTER_IDLE_SECONDS
    ):
        return Action.TRUNCATE
    return Action.NOTHING


def run_checkpoint(
    conn: Connection,
    action: Action,
    env: Environment,
    budget: float,
    leave_by: Callable[[], float] = lambda: float("inf"),
) -> WalResult:
    """Run *action*; RESTART and TRUNCATE are tried until *budget* seconds have passed.

    *leave_by* is called each time, as in :func:`~hermes_actor.engine.retry.retry_busy`.

    The loop is here because with a busy timeout SQLite would sleep for up to 100 ms between tries
    and hold up every writer meanwhile.
    """
    give_up = env.monotonic() + budget
    while True:
        result = _once(conn, action)
        # PASSIVE waits for no reader, so there is nothing to try again for.
        if result.complete or action is Action.PASSIVE:
            return result
        if env.monotonic() >= min(give_up, leave_by()):
            return result
        env.sleep(_RETRY_SECONDS)


def checkpoint_whole_wal(conn: Connection, env: Environment, seconds: float) -> bool:
    """Move all frames into the database, waiting for readers; False if one outlasts *seconds*."""
    give_up = env.monotonic() + seconds
    while not run_checkpoint(conn, Action.PASSIVE, env, 0).complete:
        if env.monotonic() >= give_up:
            return False
        env.sleep(limits.BUSY_RETRY_SECONDS)
    return True


class Checkpointer:
    """Runs the checkpoints of one write connection. No other connection of the file does (G5)."""

    def __init__(self, connection: WriteConnection) -> None:
        self._connection = connection
        self.file_bytes = connection.env.size(str(connection.paths.db))
        """Size of the database after the last checkpoint."""

    @property
    def state(self) -> CheckpointState:
        """The counters on which the next checkpoint is decided."""
        return self._connection.checkpoints

    def run_if_due(self, *, waiting: bool) -> bool:
        """Run the checkpoint that is due, given whether operations wait; True if one was.

        The host calls this after it has sent the replies of a batch.
        """
        connection = self._connection
        if connection.broken is not None:
            return False
        action = decide(connection.checkpoints, connection.env.monotonic(), waiting=waiting)
        if action is Action.NOTHING:
            return False
        self.run(action, limits.RESTART_BUDGET_SECONDS)
        return True

    def run(self, action: Action, budget: float) -> None:
        """Run *action* for at most *budget* seconds.

        Raises the error of SQLite; if the disk failed, the writer is broken then (R2). So it is if
        a file was replaced (R3): then it raises :class:`OutcomeUnknown`.
        """
        connection, env = self._connection, self._connection.env
        # It syncs the WAL itself, and would take the report of a sync that has failed.
        connection.sync_each_commit()
        if connection.broken is not None:
            return
        # R3: what a foreign program has counted, or put in the place of a file, would go into it.
        connection.verify_files(unless_home_is_gone=True)
        env.failpoint("checkpoint.before")
        try:
            result = run_checkpoint(connection.conn, action, env, budget)
            env.failpoint("checkpoint.after")
        except sqlite3.Error as error:
            connection.break_on_io_error(error)
            raise
        # Only after success: a checkpoint that failed stays due.
        self.state.ran(action, result, env.monotonic(), connection.wal_frames())
        # Zero if the file was removed meanwhile, which the guard notices.
        self.file_bytes = env.size(str(connection.paths.db)) or self.file_bytes
        # R3 compares the database with how this checkpoint has left it.
        connection.guard.checkpointed()

    def run_before_close(self) -> None:
        """Move as much of the WAL as readers allow. Never raises: the file is closed anyway.

        It has to happen here, with a budget: the checkpoint that SQLite itself runs at the last
        close takes as long as it takes, and the anchor keeps it from running at all.
        """
        connection = self._connection
        if connection.broken is not None:
            return
        connection.env.failpoint("close.before")
        try:
            connection.verify_files(unless_home_is_gone=True)
            # Not before start-up recovery: after a failed sync a mere checkpoint could damage the
            # file (R1). Nor into files that are not the ones that were opened.
            if connection.recovered and connection.guard.intact():
                self.run(Action.TRUNCATE, limits.TRUNCATE_BUDGET_SECONDS)
        except OutcomeUnknown:
            return  # the writer is broken, and has logged the cause
        except Exception as error:
            _log.warning(
                "the last checkpoint of %s failed, the next owner repeats it: %s",
                connection.paths.db,
                error,
            )


def _once(conn: Connection, action: Action) -> WalResult:
    try:
        busy, frames, moved = conn.execute(f"PRAGMA wal_checkpoint({action.value})").fetchone()
    except sqlite3.OperationalError as error:
        # A reader that is just opening, or a foreign checkpoint, holds a lock for a moment. That is
        # a checkpoint without a result, not an error.
        if primary_code(error) not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise
        return WalResult(0, 0, True)
    # Outside WAL mode SQLite answers -1: there is nothing to move.
    return WalResult(max(frames, 0), max(moved, 0), bool(busy))
