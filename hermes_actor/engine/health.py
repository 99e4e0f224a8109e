"""The health of the storage: present faults, in words for people.

A passing fault (a foreign lock, a full disk) is remembered until a commit succeeds. A damaged table
is remembered until the file has been repaired: no change is made to it, reads go on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hermes_actor.errors import (
    ActorBroken,
    Busy,
    HermesActorError,
    StorageError,
    is_storage_failure,
)
from hermes_actor.sqlite import primary_code, sqlite3
from hermes_actor.system.lock_inspection import write_lock_holders

if TYPE_CHECKING:
    from hermes_actor.paths import StorePaths

__all__ = [
    "IndexFailed",
    "StorageHealth",
    "failing_index",
    "is_damage",
    "is_index_damage",
    "may_be_the_index",
]

_log = logging.getLogger("hermes_actor.engine")


def is_damage(error: BaseException | None) -> bool:
    """Return True if a table is malformed; a malformed full-text index has a code of its own."""
    return primary_code(error) == sqlite3.SQLITE_CORRUPT and not is_index_damage(error)


def is_index_damage(error: BaseException | None) -> bool:
    """Return True if FTS5 has found one of its indexes malformed."""
    # The extended code: the primary one, CORRUPT, does not say whose pages are malformed.
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_CORRUPT_VTAB


def may_be_the_index(error: BaseException | None) -> bool:
    """Return True if a damaged full-text index may have caused *error*.

    FTS5 reports damage as CORRUPT, CONSTRAINT or ERROR; only a trial without the index decides.
    """
    # Some typed errors are SQLite errors as well; they were raised here, not by SQLite.
    if not isinstance(error, sqlite3.Error) or isinstance(error, HermesActorError):
        return False
    # An interrupted statement says nothing about the index, and must not be run a second time.
    if primary_code(error) == sqlite3.SQLITE_INTERRUPT:
        return False
    # A full disk or an I/O error would fail a trial without the index just as well.
    return primary_code(error) == sqlite3.SQLITE_CORRUPT or not is_storage_failure(error)


class IndexFailed(sqlite3.DatabaseError):
    """A full-text index cannot take rows that can be read: it is damaged."""

    def __init__(self, cause: sqlite3.Error) -> None:
        # With the codes of its cause: handlers of SQLite errors roll back and classify by them.
        super().__init__(str(cause))
        self.sqlite_errorcode: int = cause.sqlite_errorcode
        self.sqlite_errorname: str = cause.sqlite_errorname


@contextmanager
def failing_index() -> Iterator[None]:
    """Raise :class:`IndexFailed` for damage in a block that touches full-text tables only."""
    try:
        yield
    except sqlite3.Error as error:
        if not may_be_the_index(error):
            raise
        raise IndexFailed(error) from error


class StorageHealth:
    """The present faults of one database."""

    def __init__(self, paths: StorePaths) -> None:
        self._paths = paths
        self.passing: str | None = None
        self.damage: BaseException | None = None

    def record(self, error: HermesActorError) -> HermesActorError:
        """Remember a fault of the storage; returns the error, with the holder of a lock named."""
        if isinstance(error, Busy):
            # At once: the kernel shows a lock only while it is held.
            holders = ", ".join(f"pid {pid}" for pid in write_lock_holders(self._paths.shm))
            if holders:
                error = Busy(f"{error} (held by {holders})", sqlite_message=error.sqlite_message)
        if isinstance(error, StorageError | Busy):
            # Once for each kind: a full disk under load would fill the log as well.
            if self.passing is None:
                _log.warning("changes of %s fail: %s", self._paths.db, error)
            self.passing = str(error)
        return error

    def clear(self) -> None:
        """Forget a passing fault: a commit has succeeded."""
        if self.passing is not None:
            _log.info("changes of %s succeed again", self._paths.db)
            self.passing = None

    def mark_corrupt(self, damage: BaseException) -> None:
        """Refuse changes from here on: a table is malformed."""
        if self.damage is None:
            self.damage = damage
            _log.error(
                "%s is damaged, changes are refused until it is repaired: %s",
                self._paths.db,
                damage,
            )

    def mark_repaired(self) -> None:
        """Accept changes again: the whole content of the file has been replaced."""
        self.damage = self.passing = None

    def refusal(self) -> HermesActorError | None:
        """Return the reason why no change can be made, if there is one."""
        # A passing fault refuses nothing: the next change finds out whether it has passed (G11).
        if self.damage is None:
            return None
        return ActorBroken(
            f"no change is made to a damaged file: {self.damage};"
            f" reads go on, `hermes-actor doctor` says what to do"
        )
