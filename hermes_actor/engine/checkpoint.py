"""When to fold the WAL back into the file: a pure decision, and the bounded ways to do it.

A PASSIVE checkpoint reports success even when a reader kept it from moving anything, so results
are judged by frames moved and never by the busy flag.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from hermes_actor import limits
from hermes_actor.sqlite import primary_code, sqlite3

if TYPE_CHECKING:
    from hermes_actor.engine.environment import Environment
    from hermes_actor.sqlite import Connection

__all__ = ["Action", "CheckpointState", "WalResult", "decide", "run_checkpoint"]


class Action(Enum):
    """What to do now; the value is SQLite's name for it."""

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
        return not self.busy and self.moved >= self.frames


@dataclass(slots=True)
class CheckpointState:
    """What has happened since the last checkpoint."""

    writes: int = 0
    commits: int = 0
    frames: int = 0
    """In the WAL at the last checkpoint."""
    file_frames: int = 0
    grown_frames: int = 0
    """By how much the file of the WAL has grown since; it does not shrink when it begins anew."""
    truncated: bool = True
    all_moved: bool = True
    """Whether the last checkpoint left nothing behind; otherwise a reader pins the WAL."""
    last_write: float = 0.0
    last_restart: float = float("-inf")
    restart_interval: float = limits.RESTART_MIN_INTERVAL_SECONDS
    outcomes: dict[str, int] = field(default_factory=dict)

    def wrote(self, writes: int, now: float, file_frames: int = 0) -> None:
        self.writes += writes
        self.grown_frames = max(0, file_frames - self.file_frames)
        self.commits += 1
        self.truncated = False
        self.last_write = now

    def ran(self, action: Action, result: WalResult, now: float, file_frames: int = 0) -> None:
        """Book a checkpoint."""
        self.file_frames, self.grown_frames = file_frames, 0
        outcome = "complete" if result.complete else "partial"
        key = f"{action.value.lower()}.{outcome}"
        self.outcomes[key] = self.outcomes.get(key, 0) + 1
        self.all_moved = result.complete
        self.writes = self.commits = 0
        self.frames = 0 if result.complete and action is not Action.PASSIVE else result.frames
        if action is Action.TRUNCATE:
            self.truncated = result.complete
        if action is Action.RESTART:
            self.last_restart = now
            self.restart_interval = (
                limits.RESTART_MIN_INTERVAL_SECONDS
                if result.complete
                else min(self.restart_interval * 2, limits.RESTART_MAX_INTERVAL_SECONDS)
            )


def decide(state: CheckpointState, now: float, *, waiting: bool) -> Action:
    """The checkpoint that is due, given whether operations wait."""
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

    *leave_by* is asked each time, as in :func:`~hermes_actor.engine.retry.retry_busy`.

    The loop is ours: with a busy timeout SQLite would sleep for up to 100 ms between tries and
    hold up every writer meanwhile.
    """
    give_up = env.monotonic() + budget
    while True:
        result = _once(conn, action)
        if result.complete or action is Action.PASSIVE:
            return result
        if env.monotonic() >= min(give_up, leave_by()):
            return result
        env.sleep(0.0002)


def _once(conn: Connection, action: Action) -> WalResult:
    try:
        busy, frames, moved = conn.execute(f"PRAGMA wal_checkpoint({action.value})").fetchone()
    except sqlite3.OperationalError as error:
        # A reader that is just opening, or a foreign checkpoint, holds a lock for a moment.
        if primary_code(error) not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise
        return WalResult(0, 0, True)
    # Outside WAL mode SQLite answers -1: there is nothing to move.
    return WalResult(max(frames, 0), max(moved, 0), bool(busy))
