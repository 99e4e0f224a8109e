"""What errors of PostgreSQL mean, told apart by SQLSTATE."""

from __future__ import annotations

import psycopg
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

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
from hermes_actor.providers.selection import masked
from hermes_actor.providers.server.dialect import Judgement, Way

__all__ = ["judge"]

_CODES: dict[str, tuple[Way, type[HermesActorError], str]] = {
    "40001": (Way.AGAIN, Busy, "changes crossed each other"),
    "40P01": (Way.AGAIN, Busy, "changes waited for each other"),
    "55P03": (Way.AGAIN, Busy, "a row is locked"),
    "57014": (Way.RAISE, DeadlineExceeded, "the server did not finish in time"),
    "25006": (Way.RECONNECT, ReadOnly, "attempt to write a readonly database: a replica"),
    "53100": (Way.RAISE, DiskFull, "database or disk is full"),
    "53200": (Way.LATER, Busy, "the server is out of memory"),
    "53300": (Way.LATER, Busy, "the server has no connection left"),
    "58030": (Way.RAISE, IOFailed, "disk I/O error on the server"),
    "54000": (Way.RAISE, TooBig, "string or blob too big"),
    "28P01": (Way.RAISE, PermissionDenied, "the server does not know this user and password"),
    "28000": (Way.RAISE, PermissionDenied, "the server does not let this user in"),
    "42501": (Way.RAISE, PermissionDenied, "this user may not do that on the server"),
    "3D000": (Way.RAISE, BadConfig, "there is no such database on the server"),
    "3F000": (Way.RAISE, BadConfig, "there is no schema to make the tables in"),
}
_CLASSES: dict[str, tuple[Way, type[HermesActorError], str]] = {
    "08": (Way.RECONNECT, Unreachable, "the connection to the server was lost"),
    "57": (Way.RECONNECT, Unreachable, "the server is going down or coming up"),
    "53": (Way.LATER, Busy, "the server is short of something"),
    "22": (Way.RAISE, BadValue, "a value cannot be stored"),
}


_NO_ROOM = ("too many clients", "too many connections", "remaining connection slots")


def judge(error: BaseException) -> Judgement:
    """What to do about an error of the driver or the pool."""
    if isinstance(error, PoolTimeout):
        return Judgement(Way.LATER, Busy("every connection of the pool is in use"))
    cause = error.orig if isinstance(error, DBAPIError) else error
    code = getattr(cause, "sqlstate", None) or ""
    said = masked(str(cause)).strip()
    if code.startswith("23"):
        return _constraint(code, cause)
    known = _CODES.get(code) or _CLASSES.get(code[:2])
    if known is not None:
        way, kind, words = known
        return Judgement(way, kind(f"{words}: {said}"))
    if isinstance(cause, psycopg.OperationalError | psycopg.InterfaceError) and not code:
        return _no_connection(said)
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return Judgement(Way.RECONNECT, Unreachable(f"the connection was lost: {said}"))
    return Judgement(Way.RAISE, SqlError(said))


def _constraint(code: str, cause: BaseException | None) -> Judgement:
    diag = getattr(cause, "diag", None)
    table, column = getattr(diag, "table_name", None), getattr(diag, "column_name", None)
    if code == "23503":
        return Judgement(Way.RAISE, ConstraintFailed("FOREIGN KEY constraint failed"))
    if code == "23502":
        words = f"NOT NULL constraint failed: {table}.{column}"
        return Judgement(Way.RAISE, ConstraintFailed(words))
    name = str(getattr(diag, "constraint_name", None) or "")
    what = f"{table}.{'title' if 'title' in name else 'id'}"
    # Somebody was quicker. Tried again the change meets what is there now, and says so in words
    # of its own, or takes the next title.
    words = f"UNIQUE constraint failed: {what}"
    return Judgement(Way.AGAIN, ConstraintFailed(words), once=True)


def _no_connection(said: str) -> Judgement:
    """Errors of the way to the server have no code before it has spoken."""
    if "password authentication failed" in said or "no password supplied" in said:
        return Judgement(Way.RAISE, PermissionDenied(f"the server refuses this user: {said}"))
    if 'database "' in said and "does not exist" in said:
        return Judgement(Way.RAISE, BadConfig(f"there is no such database: {said}"))
    if 'role "' in said and "does not exist" in said:
        return Judgement(Way.RAISE, PermissionDenied(f"the server refuses this user: {said}"))
    if any(words in said for words in _NO_ROOM):
        return Judgement(Way.LATER, Busy(f"the server has no connection left: {said}"))
    if "no pg_hba.conf entry" in said:
        return Judgement(Way.RAISE, PermissionDenied(f"the server refuses this user: {said}"))
    return Judgement(Way.RECONNECT, Unreachable(f"the server does not answer: {said}"))
