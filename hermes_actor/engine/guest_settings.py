"""Settings of guests' connections on the one write connection.

A program sets pragmas of its connection, such as ``foreign_keys``, and expects them in each of its
statements. All guests share the write connection, so their settings travel with each transaction,
are set before it begins, if they differ from what is set, and are set back for the engine's work.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from hermes_actor.errors import NotAllowed
from hermes_actor.sqlite import Connection, connect_alone

__all__ = ["GuestSettings", "Settings"]

Settings = Mapping[str, int | str]
"""Pragmas by their names. Of a guest: those that differ from SQLite's defaults."""

_SWITCH: dict[int | str, int | str] = {0: 0, 1: 1}

_ALLOWED: dict[str, dict[int | str, int | str]] = {
    "case_sensitive_like": _SWITCH,
    "cell_size_check": _SWITCH,
    "defer_foreign_keys": _SWITCH,
    "foreign_keys": _SWITCH,
    "ignore_check_constraints": _SWITCH,
    "legacy_alter_table": _SWITCH,
    "recursive_triggers": _SWITCH,
    "reverse_unordered_selects": _SWITCH,
    "secure_delete": {**_SWITCH, 2: "fast", "fast": "fast"},
    "trusted_schema": _SWITCH,
}
"""Pragmas that change what a statement does to the file, with their values. Others either stay with
the guest (its cache, its timeout), or belong to the owner of the file (its journal, its syncs)."""

_NOT_INSIDE = frozenset({"foreign_keys"})
"""SQLite ignores these inside a transaction."""

_ONLY_INSIDE = "defer_foreign_keys"
"""SQLite switches it off at the end of each transaction."""


@cache
def _defaults() -> dict[str, int | str]:
    """Return the values of a new connection: builds of SQLite differ in some."""
    conn = connect_alone()
    try:
        found = {name: conn.execute(f"PRAGMA {name}").fetchall() for name in _ALLOWED}
    finally:
        conn.close()
    # One has no answer, because it cannot be asked for; it is off.
    return {name: _ALLOWED[name][rows[0][0]] if rows else 0 for name, rows in found.items()}


class GuestSettings:
    """Knows what is set on one write connection."""

    def __init__(self, conn: Connection, own: Settings) -> None:
        """*own* is set already, and is for the engine's work."""
        self._conn = conn
        self._own = {**_defaults(), **_checked(own)}
        self._set = dict(self._own)

    def resolved(self, settings: Settings | None) -> dict[str, int | str]:
        """Return all values for *settings* of a guest; ``None``: for the engine's own work.

        Raises :class:`NotAllowed` for a name or a value that a guest may not set.
        """
        if settings is None:
            return self._own
        return {**_defaults(), **_checked(settings)} if settings else _defaults()

    def are_set(self, settings: Settings | None) -> bool:
        """Return True if they are in effect. Raises :class:`NotAllowed`."""
        return self.resolved(settings) == self._set

    def apply(self, settings: Settings | None, *, inside: bool = False) -> None:
        """Set *settings* of a guest, or those of the engine (``None``).

        Called before a transaction begins, and of a guest's also *inside* it: each time those stay
        as they are that SQLite would ignore then. Raises :class:`NotAllowed`, and errors of SQLite.
        """
        if not inside:
            self._set[_ONLY_INSIDE] = 0
        wanted = self.resolved(settings)
        if wanted == self._set:
            return
        for name, value in wanted.items():
            waits = name in _NOT_INSIDE if inside else name == _ONLY_INSIDE
            if self._set[name] != value and not waits:
                self._conn.execute(f"PRAGMA {name} = {value}").fetchall()
                self._set[name] = value


def _checked(settings: Settings) -> dict[str, int | str]:
    values: dict[str, int | str] = {}
    for name, value in settings.items():
        allowed = _ALLOWED.get(name, {})
        if value not in allowed:
            raise NotAllowed(
                f"PRAGMA {name} = {value!r} is not a setting that travels to the actor; these do:"
                f" {', '.join(sorted(_ALLOWED))}"
            )
        values[name] = allowed[value]
    return values
