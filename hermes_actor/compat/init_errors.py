"""The last error of opening a store, kept for programs that go on without it."""

from __future__ import annotations

import threading

from hermes_actor.errors import HermesActorError
from hermes_actor.journal_mode import WAL_INCOMPAT_MARKERS
from hermes_actor.sqlite import sqlite3

__all__ = ["format_unavailable", "last_init_error", "record_init_error", "set_last_init_error"]

_guard = threading.Lock()
_last: str | None = None

_HINT = (
    " (the file may lie on a network file system: WAL does not work over NFS/SMB,"
    " see https://sqlite.org/wal.html)"
)


def last_init_error() -> str | None:
    """Return the latest failure to open a store in this process, or ``None``.

    Its form is ``<ClassName>: <message>``.
    """
    with _guard:
        return _last


def set_last_init_error(message: str | None) -> None:
    """Set the text that :func:`last_init_error` returns; ``None`` clears it."""
    global _last
    with _guard:
        _last = message


def record_init_error(error: BaseException) -> None:
    """Keep *error* for :func:`last_init_error`, under the ``sqlite3`` class that callers know."""
    if isinstance(error, HermesActorError):
        known = next(
            (c for c in type(error).__mro__ if c.__module__ == sqlite3.Error.__module__), None
        )
        set_last_init_error(f"{(known or type(error)).__name__}: {error.sqlite_message}")
    else:
        set_last_init_error(f"{type(error).__name__}: {error}")


def format_unavailable(prefix: str = "Session database not available") -> str:
    """Return one sentence for the user, with the cause if one is known."""
    cause = last_init_error()
    if cause is None:
        return f"{prefix}."
    on_network = any(marker in cause.lower() for marker in WAL_INCOMPAT_MARKERS)
    return f"{prefix}: {cause}{_HINT if on_network else ''}."
