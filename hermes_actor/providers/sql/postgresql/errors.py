"""Meaning of PostgreSQL errors, by SQLSTATE."""

from __future__ import annotations

import psycopg
from sqlalchemy.exc import DBAPIError

from hermes_actor.providers.resolve import masked
from hermes_actor.providers.sql import error_classes as s
from hermes_actor.providers.sql.dialect import Classification

__all__ = ["classify"]

_CODES: dict[str, s.ErrorClass] = {
    "40001": s.CROSSED,
    "40P01": s.DEADLOCK,
    "55P03": s.LOCKED,
    "57014": s.TOO_LATE,
    "25006": s.REPLICA,
    "53100": s.FULL,
    "53200": s.NO_MEMORY,
    "53300": s.NO_CONNECTION_LEFT,
    "58030": s.DISK_ERROR,
    "54000": s.TOO_BIG,
    "28P01": s.WRONG_PASSWORD,
    "28000": s.NOT_LET_IN,
    "42501": s.NOT_ALLOWED,
    "3D000": s.NO_DATABASE,
    "3F000": s.NO_DATABASE._replace(words="there is no schema to make the tables in"),
}
_CLASSES: dict[str, s.ErrorClass] = {
    "08": s.LOST,
    "57": s.GOING_DOWN,
    "53": s.SHORT_OF_SOMETHING,
    "22": s.BAD_VALUE,
}


def classify(error: BaseException) -> Classification:
    """Classify an error of the driver."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    code = getattr(cause, "sqlstate", None) or ""
    said = masked(str(cause)).strip()
    if code.startswith("23"):
        return _constraint(code, cause)
    known = _CODES.get(code) or _CLASSES.get(code[:2])
    if known is None and not code and isinstance(cause, _NO_CODE):
        known = _before_it_spoke(said)
    if known is None and isinstance(error, DBAPIError) and error.connection_invalidated:
        known = s.LOST
    return (known or s.UNKNOWN).judged(said)


def _constraint(code: str, cause: BaseException | None) -> Classification:
    diag = getattr(cause, "diag", None)
    table, column = getattr(diag, "table_name", None), getattr(diag, "column_name", None)
    if code == "23503":
        return s.foreign_key()
    if code == "23502":
        return s.no_value(f"{table}.{column}")
    name = str(getattr(diag, "constraint_name", None) or "")
    return s.taken(f"{table}.{'title' if 'title' in name else 'id'}")


_NO_CODE = (psycopg.OperationalError, psycopg.InterfaceError)
_NO_ROOM = ("too many clients", "too many connections", "remaining connection slots")


def _before_it_spoke(said: str) -> s.ErrorClass:
    """Errors of the way to the server have no code."""
    if "password authentication failed" in said or "no password supplied" in said:
        return s.WRONG_PASSWORD
    if 'database "' in said and "does not exist" in said:
        return s.NO_DATABASE
    if 'role "' in said and "does not exist" in said:
        return s.NOT_LET_IN
    if any(words in said for words in _NO_ROOM):
        return s.NO_CONNECTION_LEFT
    if "no pg_hba.conf entry" in said:
        return s.NOT_LET_IN
    return s.SILENT
