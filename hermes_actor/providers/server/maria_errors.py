"""What errors of MySQL and MariaDB mean, told apart by their numbers."""

from __future__ import annotations

import re

import pymysql
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

__all__ = ["DUPLICATE_KEY", "judge", "number_of"]

DUPLICATE_KEY = 1062

_NUMBERS: dict[int, tuple[Way, type[HermesActorError], str]] = {
    1213: (Way.AGAIN, Busy, "changes waited for each other"),
    1205: (Way.AGAIN, Busy, "a row is locked"),
    1020: (Way.AGAIN, Busy, "changes crossed each other"),
    1040: (Way.LATER, Busy, "the server has no connection left"),
    1203: (Way.LATER, Busy, "this user has no connection left"),
    1226: (Way.LATER, Busy, "this user has no connection left"),
    1969: (Way.RAISE, DeadlineExceeded, "the server did not finish in time"),
    3024: (Way.RAISE, DeadlineExceeded, "the server did not finish in time"),
    1290: (Way.RECONNECT, ReadOnly, "attempt to write a readonly database: a replica"),
    1792: (Way.RECONNECT, ReadOnly, "attempt to write a readonly database"),
    1836: (Way.RECONNECT, ReadOnly, "attempt to write a readonly database: a replica"),
    1021: (Way.RAISE, DiskFull, "database or disk is full"),
    1114: (Way.RAISE, DiskFull, "database or disk is full"),
    1030: (Way.RAISE, IOFailed, "disk I/O error on the server"),
    1406: (Way.RAISE, TooBig, "string or blob too big"),
    1118: (Way.RAISE, TooBig, "string or blob too big"),
    1153: (Way.RAISE, TooBig, "string or blob too big: see max_allowed_packet of the server"),
    1264: (Way.RAISE, BadValue, "a value cannot be stored"),
    1366: (Way.RAISE, BadValue, "a value cannot be stored"),
    1044: (Way.RAISE, PermissionDenied, "the server does not let this user in"),
    1045: (Way.RAISE, PermissionDenied, "the server does not know this user and password"),
    1142: (Way.RAISE, PermissionDenied, "this user may not do that on the server"),
    1698: (Way.RAISE, PermissionDenied, "the server does not let this user in"),
    1049: (Way.RAISE, BadConfig, "there is no such database on the server"),
    1046: (Way.RAISE, BadConfig, "the address names no database"),
    1053: (Way.RECONNECT, Unreachable, "the server is going down"),
    1927: (Way.RECONNECT, Unreachable, "the server ended the connection"),
    2002: (Way.RECONNECT, Unreachable, "the server does not answer"),
    2003: (Way.RECONNECT, Unreachable, "the server does not answer"),
    2006: (Way.RECONNECT, Unreachable, "the connection to the server was lost"),
    2013: (Way.RECONNECT, Unreachable, "the connection to the server was lost"),
}
_FOREIGN_KEY = frozenset({1216, 1217, 1451, 1452})


def number_of(error: BaseException | None) -> int:
    """The number of an error of the server or of the driver, 0 if it has none."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    number = cause.args[0] if cause is not None and cause.args else 0
    return number if isinstance(number, int) else 0


def judge(error: BaseException) -> Judgement:
    """What to do about an error of the driver or the pool."""
    if isinstance(error, PoolTimeout):
        return Judgement(Way.LATER, Busy("every connection of the pool is in use"))
    cause = error.orig if isinstance(error, DBAPIError) else error
    number = number_of(error)
    said = masked(str(cause.args[1] if cause is not None and len(cause.args) > 1 else cause))
    if number in _FOREIGN_KEY:
        return Judgement(Way.RAISE, ConstraintFailed("FOREIGN KEY constraint failed"))
    if number in (1048, 1364):
        column = re.search(r"'(\w+)'", said)
        words = f"NOT NULL constraint failed: {column[1] if column else said}"
        return Judgement(Way.RAISE, ConstraintFailed(words))
    if number == DUPLICATE_KEY:
        what = "sessions.title" if "title" in said.rpartition("for key")[2] else "sessions.id"
        # Somebody was quicker; see the same place for PostgreSQL.
        words = f"UNIQUE constraint failed: {what}"
        return Judgement(Way.AGAIN, ConstraintFailed(words), once=True)
    known = _NUMBERS.get(number)
    if known is not None:
        way, kind, words = known
        return Judgement(way, kind(f"{words}: {said}"))
    lost = isinstance(cause, pymysql.err.InterfaceError | OSError)
    if lost or (isinstance(error, DBAPIError) and error.connection_invalidated):
        return Judgement(Way.RECONNECT, Unreachable(f"the connection was lost: {said}"))
    return Judgement(Way.RAISE, SqlError(said))
