"""What can go wrong on a server: what to do about it, and the error that callers know it as.

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
    HermesActorError,
    IOFailed,
    PermissionDenied,
    ReadOnly,
    SqlError,
    TooBig,
    Unreachable,
)
from hermes_actor.providers.sql.dialect import Judgement, Way

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
    "Situation",
    "foreign_key",
    "no_value",
    "pool_in_use",
    "taken",
]


class Situation(NamedTuple):
    """One thing that can go wrong, in our words."""

    way: Way
    error: type[HermesActorError]
    words: str = ""

    def judged(self, said: str) -> Judgement:
        """The judgement, with what the server *said* after our words."""
        return Judgement(self.way, self.error(f"{self.words}: {said}" if self.words else said))


CROSSED = Situation(Way.AGAIN, Busy, "changes crossed each other")
DEADLOCK = Situation(Way.AGAIN, Busy, "changes waited for each other")
LOCKED = Situation(Way.AGAIN, Busy, "a row is locked")

NO_MEMORY = Situation(Way.LATER, Busy, "the server is out of memory")
NO_CONNECTION_LEFT = Situation(Way.LATER, Busy, "the server has no connection left")
NO_CONNECTION_OF_USER = Situation(Way.LATER, Busy, "this user has no connection left")
SHORT_OF_SOMETHING = Situation(Way.LATER, Busy, "the server is short of something")

REPLICA = Situation(Way.RECONNECT, ReadOnly, "attempt to write a readonly database: a replica")
READ_ONLY = Situation(Way.RECONNECT, ReadOnly, "attempt to write a readonly database")
LOST = Situation(Way.RECONNECT, Unreachable, "the connection to the server was lost")
GOING_DOWN = Situation(Way.RECONNECT, Unreachable, "the server is going down or coming up")
SILENT = Situation(Way.RECONNECT, Unreachable, "the server does not answer")

TOO_LATE = Situation(Way.RAISE, DeadlineExceeded, "the server did not finish in time")
FULL = Situation(Way.RAISE, DiskFull, "database or disk is full")
DISK_ERROR = Situation(Way.RAISE, IOFailed, "disk I/O error on the server")
TOO_BIG = Situation(Way.RAISE, TooBig, "string or blob too big")
BAD_VALUE = Situation(Way.RAISE, BadValue, "a value cannot be stored")
WRONG_PASSWORD = Situation(
    Way.RAISE, PermissionDenied, "the server does not know this user and password"
)
NOT_LET_IN = Situation(Way.RAISE, PermissionDenied, "the server does not let this user in")
NOT_ALLOWED = Situation(Way.RAISE, PermissionDenied, "this user may not do that on the server")
NO_DATABASE = Situation(Way.RAISE, BadConfig, "there is no such database on the server")
UNKNOWN = Situation(Way.RAISE, SqlError)


def pool_in_use() -> Judgement:
    return Judgement(Way.LATER, Busy("every connection of the pool is in use"))


def foreign_key() -> Judgement:
    return Judgement(Way.RAISE, ConstraintFailed("FOREIGN KEY constraint failed"))


def no_value(column: str) -> Judgement:
    return Judgement(Way.RAISE, ConstraintFailed(f"NOT NULL constraint failed: {column}"))


def taken(column: str) -> Judgement:
    """Somebody was quicker.

    Tried again the change meets what is there now, and says so in words of its own, or takes the
    next title.
    """
    error = ConstraintFailed(f"UNIQUE constraint failed: {column}")
    return Judgement(Way.AGAIN, error, once=True)
