"""What statements on the write connection may do.

Two purposes. The inserts of the two full-text insert triggers are passed over while indexing is
deferred. And statements of *guests*, callers that reach into ``SessionDB._conn``, may change rows
and tables but neither transactions, nor settings, nor what belongs to the writer.

Python caches compiled statements, and a compiled statement is not authorised again: a guest who
sends the very text of an internal statement would get it. So the text of a guest is marked before
it is compiled, guests are also checked by first word, and the writer's savepoint has a name that
nobody can guess. Indexing is never deferred for guests: they may give ids of their own.
"""

from __future__ import annotations

import secrets

from hermes_actor.errors import NotAllowed
from hermes_actor.sqlite import sqlite3
from hermes_actor.store.sql import first_word

__all__ = ["Authorizer"]

_GUEST_WORDS = frozenset({
    "SELECT", "VALUES", "WITH", "INSERT", "REPLACE", "UPDATE", "DELETE", "CREATE", "DROP", "ALTER",
    "EXPLAIN", "ANALYZE", "REINDEX",
})  # fmt: skip

_GUEST_DENIED = frozenset({
    sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH, sqlite3.SQLITE_TRANSACTION,
    sqlite3.SQLITE_SAVEPOINT, sqlite3.SQLITE_PRAGMA,
})  # fmt: skip

_CREATES_TEMPORARY = frozenset({
    sqlite3.SQLITE_CREATE_TEMP_INDEX, sqlite3.SQLITE_CREATE_TEMP_TABLE,
    sqlite3.SQLITE_CREATE_TEMP_TRIGGER, sqlite3.SQLITE_CREATE_TEMP_VIEW,
})  # fmt: skip
"""Temporary objects would live on the writer's connection and hide tables from everybody."""

_CHANGES = frozenset({
    sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE,
    sqlite3.SQLITE_DROP_TABLE, sqlite3.SQLITE_DROP_INDEX, sqlite3.SQLITE_DROP_TRIGGER,
    sqlite3.SQLITE_ALTER_TABLE, sqlite3.SQLITE_CREATE_INDEX, sqlite3.SQLITE_CREATE_TRIGGER,
    sqlite3.SQLITE_CREATE_TABLE, sqlite3.SQLITE_CREATE_VIEW,
})  # fmt: skip

_DEFERRED = {
    "messages_fts_insert": "messages_fts",
    "messages_fts_trigram_insert": "messages_fts_trigram",
}

_OURS = "hermes_actor_"


class Authorizer:
    """The callback of one write connection."""

    def __init__(self) -> None:
        self.deferring = False
        self.savepoint = "s_" + secrets.token_hex(8)
        self._guest = False

    def enter_guest(self, sql: str) -> None:
        """Begin to treat statements as a guest's. Raises :class:`NotAllowed` for *sql* itself."""
        word = first_word(sql)
        if word not in _GUEST_WORDS:
            raise NotAllowed(
                f"{word or 'an empty statement'} is not open to callers of _conn: each statement is"
                " a transaction of its own; use _execute_write for several"
            )
        self._guest = True

    def leave_guest(self) -> None:
        self._guest = False

    def __call__(
        self, action: int, arg1: str | None, arg2: str | None, db: str | None, trigger: str | None
    ) -> int:
        if trigger is not None and action in _CHANGES:
            if _names_ours(arg1, arg2):
                return sqlite3.SQLITE_DENY  # a trigger that a guest has left behind
            if (
                self.deferring
                and not self._guest
                and action == sqlite3.SQLITE_INSERT
                and _DEFERRED.get(trigger) == arg1
            ):
                return sqlite3.SQLITE_IGNORE
        if self._guest and _forbidden(action, arg1, arg2):
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK


def _forbidden(action: int, arg1: str | None, arg2: str | None) -> bool:
    if action == sqlite3.SQLITE_PRAGMA and arg1 == "data_version":
        return False  # FTS5 asks for it on behalf of an ordinary change
    if action in _GUEST_DENIED or action in _CREATES_TEMPORARY:
        return True
    if action == sqlite3.SQLITE_FUNCTION:
        return arg2 == "load_extension"
    return action in _CHANGES and _names_ours(arg1, arg2)


def _names_ours(arg1: str | None, arg2: str | None) -> bool:
    # Some actions name the table first, some second; no column of ours is named like a table.
    return (arg1 or "").startswith(_OURS) or (arg2 or "").startswith(_OURS)
