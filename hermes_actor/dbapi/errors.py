"""The errors of a connection: classes of ``sqlite3``, whatever went wrong on the way.

Programs that are written for ``sqlite3`` catch its classes, and retry when a message begins with
"database is locked". An error keeps the typed one that it stands for as its cause.
"""

from __future__ import annotations

import builtins
import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeVar

from hermes_actor.errors import (
    CannotOpen,
    DeadlineExceeded,
    HermesActorError,
    OpenError,
    OutcomeUnknown,
)
from hermes_actor.sqlite import sqlite3

if TYPE_CHECKING:
    from hermes_protocol.operations import SqlError

__all__ = [
    "as_sqlite3",
    "busy_snapshot",
    "cannot_open",
    "from_actor",
    "is_readonly",
    "locked",
    "not_supported",
]

E = TypeVar("E", bound=sqlite3.Error)

_LOCKED = "database is locked"


def is_readonly(error: sqlite3.Error) -> bool:
    """Return True if a read-only connection has refused a write to the file: SQLite's own word
    that a statement writes."""
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_READONLY


def locked(reason: str = "", *, snapshot: bool = False) -> sqlite3.OperationalError:
    """Return the error that retry loops know; *reason* follows its first words."""
    error = sqlite3.OperationalError(f"{_LOCKED}: {reason}" if reason else _LOCKED)
    code, name = (
        (sqlite3.SQLITE_BUSY_SNAPSHOT, "SQLITE_BUSY_SNAPSHOT")
        if snapshot
        else (sqlite3.SQLITE_BUSY, "SQLITE_BUSY")
    )
    return _with_code(error, code, name)


def busy_snapshot() -> sqlite3.OperationalError:
    """Return the error of a transaction that read a state which another commit has replaced."""
    return locked(snapshot=True)


def cannot_open(reason: str = "") -> sqlite3.OperationalError:
    """Return the error of a file that cannot be opened; *reason* follows SQLite's words."""
    words = "unable to open database file"
    error = sqlite3.OperationalError(f"{words}: {reason}" if reason else words)
    return _with_code(error, sqlite3.SQLITE_CANTOPEN, "SQLITE_CANTOPEN")


def not_supported(sentence: str) -> sqlite3.NotSupportedError:
    """Return the error for what a connection to an actor cannot do."""
    return sqlite3.NotSupportedError(sentence)


def _with_code(error: E, code: int | None, name: str | None) -> E:
    if code is not None:
        error.sqlite_errorcode = code
        error.sqlite_errorname = name or ""
    return error


def from_actor(error: SqlError) -> Exception:
    """Return the error of a statement that ran in the actor: same class, text and code."""
    kind = getattr(sqlite3, error.kind, None) or getattr(builtins, error.kind, None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)) or kind is UnicodeEncodeError:
        kind = sqlite3.OperationalError
    made = kind(error.message)
    return _with_code(made, error.code, error.name) if isinstance(made, sqlite3.Error) else made


@contextlib.contextmanager
def as_sqlite3() -> Iterator[None]:
    """Raise the typed errors of the block as classes of ``sqlite3``."""
    try:
        yield
    except HermesActorError as error:
        translated = _translated(error)
        if translated is None:
            raise
        raise translated from error


def _translated(error: HermesActorError) -> sqlite3.Error | None:
    """Return the error of ``sqlite3`` for *error*; ``None`` if it is one."""
    if isinstance(error, DeadlineExceeded):
        return locked(str(error))
    if isinstance(error, OutcomeUnknown):
        return sqlite3.OperationalError(f"outcome unknown: {error}")
    if isinstance(error, CannotOpen):
        return cannot_open()
    if isinstance(error, sqlite3.Error):
        return None
    if isinstance(error, OpenError):
        return cannot_open(str(error))
    return sqlite3.OperationalError(str(error))
