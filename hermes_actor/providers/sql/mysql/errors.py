"""Meaning of MySQL and MariaDB errors, by their numbers."""

from __future__ import annotations

import re

import pymysql
from sqlalchemy.exc import DBAPIError

from hermes_actor.providers.resolve import masked
from hermes_actor.providers.sql import error_classes as s
from hermes_actor.providers.sql.dialect import Classification

__all__ = ["DUPLICATE_KEY", "NOT_WAITED_FOR", "classify", "number_of"]

DUPLICATE_KEY = 1062
NOT_WAITED_FOR = frozenset({1205, 3572})
"""A row is locked, and the statement does not wait."""

_NUMBERS: dict[int, s.ErrorClass] = {
    1213: s.DEADLOCK,
    1205: s.LOCK_TIMEOUT,
    1020: s.SERIALIZATION_FAILURE,
    1040: s.TOO_MANY_CONNECTIONS,
    1203: s.TOO_MANY_CONNECTIONS_OF_USER,
    1226: s.TOO_MANY_CONNECTIONS_OF_USER,
    1969: s.STATEMENT_TIMEOUT,
    3024: s.STATEMENT_TIMEOUT,
    1290: s.REPLICA,
    1792: s.READ_ONLY,
    1836: s.REPLICA,
    1021: s.DISK_FULL,
    1114: s.DISK_FULL,
    1030: s.DISK_ERROR,
    1406: s.VALUE_TOO_LARGE,
    1118: s.VALUE_TOO_LARGE,
    1153: s.VALUE_TOO_LARGE._replace(
        words=f"{s.VALUE_TOO_LARGE.words}: see max_allowed_packet of the server"
    ),
    1264: s.BAD_VALUE,
    1366: s.BAD_VALUE,
    1044: s.ACCESS_DENIED,
    1045: s.AUTH_FAILED,
    1142: s.NOT_PERMITTED,
    1698: s.ACCESS_DENIED,
    1049: s.NO_DATABASE,
    1046: s.NO_DATABASE._replace(words="the address names no database"),
    1053: s.SERVER_STARTING_OR_STOPPING,
    1927: s.CONNECTION_LOST,
    2002: s.TIMEOUT,
    2003: s.TIMEOUT,
    2006: s.CONNECTION_LOST,
    2013: s.CONNECTION_LOST,
}
_FOREIGN_KEY = frozenset({1216, 1217, 1451, 1452})
_NO_VALUE = frozenset({1048, 1364})


def number_of(error: BaseException | None) -> int:
    """Return the number of an error of the server or driver; 0 if it has none."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    number = cause.args[0] if cause is not None and cause.args else 0
    return number if isinstance(number, int) else 0


def classify(error: BaseException) -> Classification:
    """Return the reaction to an error of the driver, and the error that callers get."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    number = number_of(error)
    said = masked(str(cause.args[1] if cause is not None and len(cause.args) > 1 else cause))
    if number in _FOREIGN_KEY:
        return s.foreign_key()
    if number in _NO_VALUE:
        column = re.search(r"'(\w+)'", said)
        return s.no_value(column[1] if column else said)
    if number == DUPLICATE_KEY:
        is_title = "title" in said.rpartition("for key")[2]
        return s.unique_violation("sessions.title" if is_title else "sessions.id")
    known = _NUMBERS.get(number)
    if known is None and isinstance(cause, pymysql.err.InterfaceError | OSError):
        known = s.CONNECTION_LOST
    if known is None and isinstance(error, DBAPIError) and error.connection_invalidated:
        known = s.CONNECTION_LOST
    return (known or s.UNKNOWN).classification(said)
