"""Ending a statement that runs for too long (G13).

SQLite asks a progress handler every few thousand instructions whether to go on. So whatever one
statement does, it ends at its limit, and the writer is free for others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from hermes_actor import limits
from hermes_actor.errors import DeadlineExceeded
from hermes_actor.sqlite import primary_code, sqlite3

if TYPE_CHECKING:
    from hermes_actor.sqlite import Connection

__all__ = ["StatementLimit", "interruptible"]

_EVERY_INSTRUCTIONS = 10_000
"""Some 0.3 ms. A statement of fewer instructions is never interrupted, however busy the host is."""


@contextlib.contextmanager
def interruptible(
    conn: Connection,
    why_stop: Callable[[], str | None],
    is_interrupted: Callable[[], bool] = lambda: False,
) -> Iterator[None]:
    """Ask *why_stop* now and then while statements of *conn* run in the block.

    A reason ends the statement: :class:`DeadlineExceeded`. Nothing of it was executed then, and
    SQLite may have rolled back the whole transaction. *is_interrupted*: the caller of the statement
    wants its end, and gets SQLite's own error.
    """
    # Kept aside: an exception of the handler would only be an interrupt, without its reason.
    reasons: list[str] = []

    def look() -> bool:
        if is_interrupted():
            return True
        reason = why_stop()
        if reason is not None:
            reasons.append(reason)
        return reason is not None

    conn.set_progress_handler(look, _EVERY_INSTRUCTIONS)
    try:
        yield
    except sqlite3.OperationalError as error:
        # Only if the handler gave a reason: an interrupt of another origin keeps its own error.
        if reasons and primary_code(error) == sqlite3.SQLITE_INTERRUPT:
            raise DeadlineExceeded(reasons[0]) from error
        raise
    finally:
        # The handler belongs to the connection, not to the statement: commits must not meet it.
        conn.set_progress_handler(None, 0)


class StatementLimit:
    """Limit of one statement of a guest: to its end, and beside others for a short time."""

    def __init__(
        self,
        clock: Callable[[], float],
        end: float,
        others_wait: Callable[[], bool],
        is_gone: Callable[[], bool] = lambda: False,
        beside_others: float | None = None,
    ) -> None:
        """*is_gone*: whether the guest has left, so that nothing it does is of use.

        *beside_others*: the short time, if it is not that of files where messages wait.
        """
        self._beside_others = beside_others
        self._clock = clock
        self._end = end
        self._others_wait = others_wait
        self._is_gone = is_gone
        self._began = clock()
        self._others_since: float | None = None
        self.is_interrupted: Callable[[], bool] = lambda: False
        """True once the guest wants the statement that runs now to end."""
        self.cause = ""
        """The limit that was reached, in words, once one was."""

    def __call__(self) -> str | None:
        """Return the reason why the statement must stop; ``None``: it may go on."""
        now = self._clock()
        if self._is_gone():
            return "the statement was interrupted: its client has left"
        if now >= self._end:
            return self._after(now, "its time is over")
        if not self._others_wait():
            # Counted again from the next one that comes: each waits for no more than the limit.
            self._others_since = None
        elif self._others_since is None:
            self._others_since = now
        elif now - self._others_since >= (
            self._beside_others or limits.STATEMENT_BESIDE_OTHERS_SECONDS
        ):
            return self._after(now, "others wait to write; split it, or run it when none do")
        return None

    def _after(self, now: float, why: str) -> str:
        self.cause = why
        return (
            f"the statement was interrupted after {now - self._began:.1f} s and nothing of it"
            f" executed: {why}"
        )
