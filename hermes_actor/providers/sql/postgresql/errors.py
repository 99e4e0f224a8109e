"""Meaning of PostgreSQL errors, by SQLSTATE."""

from __future__ import annotations

import psycopg
from sqlalchemy.exc import DBAPIError

from hermes_actor.providers.resolve import masked
from hermes_actor.providers.sql import error_classes as s
from hermes_actor.providers.sql.dialect import Classification

__all__ = ["classify"]

_CODES: dict[str, s.ErrorClass] = {
    "40001": s.SERIALIZATION_FAILURE,
    "40P01": s.DEADLOCK,
    "55P03": s.LOCK_TIMEOUT,
    "57014": s.STATEMENT_TIMEOUT,
    "25006": s.REPLICA,
    "53100": s.DISK_FULL,
    "53200": s.OUT_OF_MEMORY,
    "53300": s.TOO_MANY_CONNECTIONS,
    "58030": s.DISK_ERROR,
    "54000": s.VALUE_TOO_LARGE,
    "28P01": s.AUTH_FAILED,
    "28000": s.ACCESS_DENIED,
    "42501": s.NOT_PERMITTED,
    "3D000": s.NO_DATABASE,
    "3F000": s.NO_DATABASE._replace(words="there is no schema to make the tables in"),
}
_CLASSES: dict[str, s.ErrorClass] = {
    "08": s.CONNECTION_LOST,
    "57": s.SERVER_STARTING_OR_STOPPING,
    "53": s.INSUFFICIENT_RESOURCES,
    "22": s.BAD_VALUE,
}


def classify(error: BaseException) -> Classification:
    """Return the reaction to an error of the driver, and the error that callers get."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    code = getattr(cause, "sqlstate", None) or ""
    said = masked(str(cause)).strip()
    if code.startswith("23"):
        return _constraint(code, cause)
    known = _CODES.get(code) or _CLASSES.get(code[:2])
    if known is None and not code and isinstance(cause, _NO_CODE):
        known = _before_it_spoke(said)
    if known is None and isinstance(error, DBAPIError) and error.connection_invalidated:
        known = s.CONNECTION_LOST
    return (known or s.UNKNOWN).classification(said)


def _constraint(code: str, cause: BaseException | None) -> Classification:
    diag = getattr(cause, "diag", None)
    table, column = getattr(diag, "table_name", None), getattr(diag, "column_name", None)
    if code == "23503":
        return s.foreign_key()
    if code == "23502":
        return s.no_value(f"{table}.{column}")
    name = str(getattr(diag, "constraint_name", None) or "")
    return s.unique_violation(f"{table}.{'title' if 'title' in name else 'id'}")


_NO_CODE = (psycopg.OperationalError, psycopg.InterfaceError)
_NO_ROOM = ("too many clients", "too many connections", "remaining connection slots")


def _before_it_spoke(said: str) -> s.ErrorClass:
    """Classify by text: errors before the server answers have no SQLSTATE."""
    if "password authentication failed" in said or "no password supplied" in said:
        return s.AUTH_FAILED
    if 'database "' in said and "does not exist" in said:
        return s.NO_DATABASE
    if 'role "' in said and "does not exist" in said:
        return s.ACCESS_DENIED
    if any(words in said for words in _NO_ROOM):
        return s.TOO_MANY_CONNECTIONS
    if "no pg_hba.conf entry" in said:
        return s.ACCESS_DENIED
    return s.TIMEOUT
