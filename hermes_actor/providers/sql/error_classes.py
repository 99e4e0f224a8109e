"""Classes of server errors: the reaction to each, and the error that callers get.

Servers have codes and words of their own. ``postgresql.errors`` and ``mysql.errors`` map a
code to one of these classes, and do nothing else.
"""

from __future__ import annotations

from typing import NamedTuple

from hermes_actor import errors
from hermes_actor.providers.sql.dialect import Classification, RetryAction

__all__ = [
    "ACCESS_DENIED", "AUTH_FAILED", "BAD_VALUE", "CONNECTION_LOST", "DEADLOCK", "DISK_ERROR",
    "DISK_FULL", "INSUFFICIENT_RESOURCES", "LOCK_TIMEOUT", "NOT_PERMITTED", "NO_DATABASE",
    "OUT_OF_MEMORY", "READ_ONLY", "REPLICA", "SERIALIZATION_FAILURE",
    "SERVER_STARTING_OR_STOPPING", "STATEMENT_TIMEOUT", "TIMEOUT", "TOO_MANY_CONNECTIONS",
    "TOO_MANY_CONNECTIONS_OF_USER", "UNKNOWN", "VALUE_TOO_LARGE", "ErrorClass", "foreign_key",
    "no_value", "pool_in_use", "unique_violation",
]  # fmt: skip


class ErrorClass(NamedTuple):
    """One class of errors: the reaction, the type and the message that callers get."""

    action: RetryAction
    error: type[errors.HermesActorError]
    words: str = ""

    def classification(self, said: str) -> Classification:
        """Return the classification; the server's message *said* follows the words of the class."""
        return Classification(
            self.action, self.error(f"{self.words}: {said}" if self.words else said)
        )


_RAISE, _RETRY, _LATER, _RECONNECT = RetryAction

SERIALIZATION_FAILURE = ErrorClass(_RETRY, errors.Busy, "serialization failure")
DEADLOCK = ErrorClass(_RETRY, errors.Busy, "deadlock detected")
LOCK_TIMEOUT = ErrorClass(_RETRY, errors.Busy, "timeout while waiting for a row lock")

OUT_OF_MEMORY = ErrorClass(_LATER, errors.Busy, "the server is out of memory")
TOO_MANY_CONNECTIONS = ErrorClass(_LATER, errors.Busy, "the server has no connection left")
TOO_MANY_CONNECTIONS_OF_USER = ErrorClass(_LATER, errors.Busy, "this user has no connection left")
INSUFFICIENT_RESOURCES = ErrorClass(_LATER, errors.Busy, "the server is out of resources")

REPLICA = ErrorClass(_RECONNECT, errors.ReadOnly, "attempt to write a readonly database: a replica")
READ_ONLY = ErrorClass(_RECONNECT, errors.ReadOnly, "attempt to write a readonly database")
CONNECTION_LOST = ErrorClass(
    _RECONNECT, errors.Unreachable, "the connection to the server was lost"
)
SERVER_STARTING_OR_STOPPING = ErrorClass(
    _RECONNECT, errors.Unreachable, "the server is going down or coming up"
)
TIMEOUT = ErrorClass(_RECONNECT, errors.Unreachable, "the server does not answer")

STATEMENT_TIMEOUT = ErrorClass(_RAISE, errors.DeadlineExceeded, "the server did not finish in time")
DISK_FULL = ErrorClass(_RAISE, errors.DiskFull, "database or disk is full")
DISK_ERROR = ErrorClass(_RAISE, errors.DiskIOError, "disk I/O error on the server")
VALUE_TOO_LARGE = ErrorClass(_RAISE, errors.ValueTooLarge, "string or blob too big")
BAD_VALUE = ErrorClass(_RAISE, errors.BadValue, "a value cannot be stored")
AUTH_FAILED = ErrorClass(
    _RAISE, errors.PermissionDenied, "the server does not know this user and password"
)
ACCESS_DENIED = ErrorClass(_RAISE, errors.PermissionDenied, "the server does not let this user in")
NOT_PERMITTED = ErrorClass(
    _RAISE, errors.PermissionDenied, "this user may not do that on the server"
)
NO_DATABASE = ErrorClass(_RAISE, errors.BadConfig, "there is no such database on the server")
UNKNOWN = ErrorClass(_RAISE, errors.SqlError)


def pool_in_use() -> Classification:
    """Classify a wait for the pool that timed out: retry later, then :class:`Busy`."""
    return Classification(_LATER, errors.Busy("every connection of the pool is in use"))


def foreign_key() -> Classification:
    """Classify a foreign key violation: raise, with the message that SQLite has for it."""
    return Classification(_RAISE, errors.ConstraintFailed("FOREIGN KEY constraint failed"))


def no_value(column: str) -> Classification:
    """Classify a NULL in a NOT NULL column: raise, with the message that SQLite has for it."""
    return Classification(_RAISE, errors.ConstraintFailed(f"NOT NULL constraint failed: {column}"))


def unique_violation(column: str) -> Classification:
    """Classify a value that another transaction took first: retry once, then raise.

    The retry sees the committed value, and fails with an error of its own or takes the next title.
    """
    error = errors.ConstraintFailed(f"UNIQUE constraint failed: {column}")
    return Classification(_RETRY, error, once=True)
