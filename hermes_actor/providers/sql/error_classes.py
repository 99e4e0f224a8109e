"""Classes of server errors: the reaction to each, and the error that callers get.

Servers have codes and words of their own. ``postgres_errors`` and ``maria_errors`` say which of
these situations a code means, and nothing else.
"""

from __future__ import annotations

from typing import NamedTuple

from hermes_actor.errors import (
    BadConfig,
    BadValue,
    Busy,
    ConstraintFailed,
    DeadlineExceeded,
    DiskFull,
    DiskIOError,
    HermesActorError,
    PermissionDenied,
    ReadOnly,
    SqlError,
    Unreachable,
    ValueTooLarge,
)
from hermes_actor.providers.sql.dialect import Classification, Way

__all__ = [
    "BAD_VALUE",
    "CROSSED",
    "DEADLOCK",
    "DISK_ERROR",
    "FULL",
    "GOING_DOWN",
    "LOCKED",
    "LOST",
    "NOT_ALLOWED",
    "NOT_LET_IN",
    "NO_CONNECTION_LEFT",
    "NO_CONNECTION_OF_USER",
    "NO_DATABASE",
    "NO_MEMORY",
    "READ_ONLY",
    "REPLICA",
    "SHORT_OF_SOMETHING",
    "SILENT",
    "TOO_BIG",
    "TOO_LATE",
    "UNKNOWN",
    "WRONG_PASSWORD",
    "ErrorClass",
    "foreign_key",
    "no_value",
    "pool_in_use",
    "taken",
]


class ErrorClass(NamedTuple):
    """One thing that can go wrong, in our words."""

    way: Way
    error: type[HermesActorError]
    words: str = ""

    def judged(self, said: str) -> Classification:
        """The judgement, with what the server *said* after our words."""
        return Classification(self.way, self.error(f"{self.words}: {said}" if self.words else said))


CROSSED = ErrorClass(Way.AGAIN, Busy, "changes crossed each other")
DEADLOCK = ErrorClass(Way.AGAIN, Busy, "changes waited for each other")
LOCKED = ErrorClass(Way.AGAIN, Busy, "a row is locked")

NO_MEMORY = ErrorClass(Way.LATER, Busy, "the server is out of memory")
NO_CONNECTION_LEFT = ErrorClass(Way.LATER, Busy, "the server has no connection left")
NO_CONNECTION_OF_USER = ErrorClass(Way.LATER, Busy, "this user has no connection left")
SHORT_OF_SOMETHING = ErrorClass(Way.LATER, Busy, "the server is short of something")

REPLICA = ErrorClass(Way.RECONNECT, ReadOnly, "attempt to write a readonly database: a replica")
READ_ONLY = ErrorClass(Way.RECONNECT, ReadOnly, "attempt to write a readonly database")
LOST = ErrorClass(Way.RECONNECT, Unreachable, "the connection to the server was lost")
GOING_DOWN = ErrorClass(Way.RECONNECT, Unreachable, "the server is going down or coming up")
SILENT = ErrorClass(Way.RECONNECT, Unreachable, "the server does not answer")

TOO_LATE = ErrorClass(Way.RAISE, DeadlineExceeded, "the server did not finish in time")
FULL = ErrorClass(Way.RAISE, DiskFull, "database or disk is full")
DISK_ERROR = ErrorClass(Way.RAISE, DiskIOError, "disk I/O error on the server")
TOO_BIG = ErrorClass(Way.RAISE, ValueTooLarge, "string or blob too big")
BAD_VALUE = ErrorClass(Way.RAISE, BadValue, "a value cannot be stored")
WRONG_PASSWORD = ErrorClass(
    Way.RAISE, PermissionDenied, "the server does not know this user and password"
)
NOT_LET_IN = ErrorClass(Way.RAISE, PermissionDenied, "the server does not let this user in")
NOT_ALLOWED = ErrorClass(Way.RAISE, PermissionDenied, "this user may not do that on the server")
NO_DATABASE = ErrorClass(Way.RAISE, BadConfig, "there is no such database on the server")
UNKNOWN = ErrorClass(Way.RAISE, SqlError)


def pool_in_use() -> Classification:
    return Classification(Way.LATER, Busy("every connection of the pool is in use"))


def foreign_key() -> Classification:
    return Classification(Way.RAISE, ConstraintFailed("FOREIGN KEY constraint failed"))


def no_value(column: str) -> Classification:
    return Classification(Way.RAISE, ConstraintFailed(f"NOT NULL constraint failed: {column}"))


def taken(column: str) -> Classification:
    """Return the error for a value that another transaction took first.

    Tried again the change meets what is there now, and says so in words of its own, or takes the
    next title.
    """
    error = ConstraintFailed(f"UNIQUE constraint failed: {column}")
    return Classification(Way.AGAIN, error, once=True)
