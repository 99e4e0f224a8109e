"""The authorizer of the write connection: it defers indexing and confines guests.

Two purposes. The triggers that maintain the full-text indexes are passed over while indexing is
deferred; temporary triggers note the change instead. And statements of *guests*, callers that bring
SQL of their own, may change rows and tables but neither transactions, nor settings, nor what
belongs to the writer.

Python caches compiled statements, and a compiled statement is not authorised again: a guest that
sends the very text of an internal statement would get it. So the text of a guest is marked before
it is compiled, guests are also checked by first word, and savepoint and triggers of the writer have
names that cannot be guessed.
"""

from __future__ import annotations

import secrets
from typing import NamedTuple

from hermes_actor.errors import NotAllowed
from hermes_actor.sqlite import sqlite3
from hermes_actor.store.guest_sql import first_word

__all__ = ["RUNS", "Authorizer", "GuestRules"]

_GUEST_WORDS = frozenset({
    "SELECT", "VALUES", "WITH", "INSERT", "REPLACE", "UPDATE", "DELETE", "CREATE", "DROP", "ALTER",
    "EXPLAIN", "ANALYZE", "REINDEX",
})  # fmt: skip

_DEFINES = frozenset({"CREATE", "ALTER"})

_SAVEPOINT_WORDS = frozenset({"SAVEPOINT", "RELEASE", "ROLLBACK"})

_GUEST_DENIED = frozenset({
    sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH, sqlite3.SQLITE_TRANSACTION,
})  # fmt: skip

_CREATES_TEMPORARY = frozenset({
    sqlite3.SQLITE_CREATE_TEMP_INDEX, sqlite3.SQLITE_CREATE_TEMP_TABLE,
    sqlite3.SQLITE_CREATE_TEMP_TRIGGER, sqlite3.SQLITE_CREATE_TEMP_VIEW,
})  # fmt: skip
"""Temporary objects would live on the writer's connection and hide tables from all clients."""

_CHANGES = frozenset({
    sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE,
    sqlite3.SQLITE_DROP_TABLE, sqlite3.SQLITE_DROP_INDEX, sqlite3.SQLITE_DROP_TRIGGER,
    sqlite3.SQLITE_ALTER_TABLE, sqlite3.SQLITE_CREATE_INDEX, sqlite3.SQLITE_CREATE_TRIGGER,
    sqlite3.SQLITE_CREATE_TABLE, sqlite3.SQLITE_CREATE_VIEW, sqlite3.SQLITE_DROP_TEMP_TRIGGER,
})  # fmt: skip

_DEFERRED = {
    f"{table}_{event}": table
    for table in ("messages_fts", "messages_fts_trigram")
    for event in ("insert", "delete", "update")
}

_OURS = "hermes_actor_"


class GuestRules(NamedTuple):
    """SQL that guests of one kind of file may run beside queries and changes."""

    refusal: str
    """Advice for a statement that begins with another word."""
    savepoints: bool = False
    """True if they may use savepoints, inside a lease."""
    asks: frozenset[str] = frozenset()
    """Pragmas that they may use without an argument."""
    asks_of_a_name: frozenset[str] = frozenset()
    """Pragmas whose argument only names what is asked about."""
    sets: frozenset[str] = frozenset()
    """Pragmas that they may give a value."""

    def words(self, *, in_lease: bool) -> frozenset[str]:
        """Return the words with which a statement may begin."""
        savepoints = _SAVEPOINT_WORDS if self.savepoints and in_lease else frozenset()
        return _GUEST_WORDS | savepoints | ({"PRAGMA"} if self.asks else frozenset())

    def allow_pragma(self, name: str, argument: str | None) -> bool:
        """Return True if guests may use this pragma."""
        # FTS5 asks for the version on behalf of an ordinary change.
        if name == "data_version" or name in self.asks_of_a_name:
            return True
        return name in (self.asks if argument is None else self.sets)


_ASKS_OF_A_NAME = frozenset({
    "foreign_key_check", "foreign_key_list", "index_info", "index_list", "index_xinfo",
    "integrity_check", "quick_check", "table_info", "table_list", "table_xinfo",
})  # fmt: skip
"""Pragmas whose argument names what they are asked about."""

_ASKS = _ASKS_OF_A_NAME | {
    "analysis_limit", "application_id", "auto_vacuum", "cache_size", "collation_list",
    "compile_options", "data_version", "database_list", "defer_foreign_keys", "encoding",
    "foreign_keys", "freelist_count", "function_list", "ignore_check_constraints", "journal_mode",
    "journal_size_limit", "legacy_alter_table", "max_page_count", "module_list", "page_count",
    "page_size", "pragma_list", "recursive_triggers", "schema_version", "secure_delete",
    "synchronous", "user_version",
}  # fmt: skip

_SETS = frozenset({"application_id", "defer_foreign_keys", "incremental_vacuum", "user_version"})
"""Pragmas that change the file, or end with the transaction. Others would outlast the guest."""

RUNS = GuestRules(
    savepoints=True,
    asks=_ASKS,
    asks_of_a_name=_ASKS_OF_A_NAME,
    sets=_SETS,
    refusal="a connection begins and ends its transactions by itself",
)
"""The rules of connections of programs, in files of every kind."""


class Authorizer:
    """The callback of one write connection."""

    def __init__(self, rules: GuestRules) -> None:
        self.rules = rules
        self.deferring = False
        self.savepoint = "s_" + secrets.token_hex(8)
        self.noting = f"{_OURS}{secrets.token_hex(8)}"
        """Prefix of the names of the temporary triggers."""
        self._guest: GuestRules | None = None

    def enter_guest(
        self, sql: str, rules: GuestRules | None = None, *, in_lease: bool = False
    ) -> None:
        """Treat statements as a guest's from here on, by *rules* or those of the kind.

        Raises :class:`NotAllowed` for *sql*.
        """
        word, rules = first_word(sql), rules or self.rules
        if word not in rules.words(in_lease=in_lease):
            raise NotAllowed(
                f"{word or 'an empty statement'} is not open to clients: {rules.refusal}"
            )
        if word in _DEFINES and _OURS in sql.lower():
            # No action of SQLite names the table that a foreign key refers to, or a new name.
            raise NotAllowed(f"names that begin with {_OURS} belong to the actor of the file")
        self._guest = rules

    def leave_guest(self) -> None:
        """Treat statements as the writer's own again."""
        self._guest = None

    def __call__(
        self, action: int, arg1: str | None, arg2: str | None, db: str | None, trigger: str | None
    ) -> int:
        if trigger is not None:
            if trigger.startswith(self.noting):
                # Only guests choose ids, so only they can insert below the watermark. For others
                # the insert trigger is compiled away: it would cost a lookup for every message.
                unneeded = action == sqlite3.SQLITE_INSERT and self._guest is None
                return (
                    sqlite3.SQLITE_IGNORE
                    if unneeded and trigger.endswith("_insert")
                    else sqlite3.SQLITE_OK
                )
            if action in _CHANGES and _names_ours(arg1, arg2):
                return sqlite3.SQLITE_DENY  # a trigger that a guest has left behind
            if self.deferring and trigger in _DEFERRED and _maintains(action, arg1, arg2, trigger):
                return sqlite3.SQLITE_IGNORE
        if self._guest is not None:
            is_temporary = action == sqlite3.SQLITE_CREATE_VTABLE and db == "temp"
            if is_temporary or _forbids(self._guest, action, arg1, arg2):
                return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK


def _maintains(action: int, arg1: str | None, arg2: str | None, trigger: str) -> bool:
    """Return True if ignoring this action makes a trigger of an index do nothing."""
    # SQLITE_IGNORE leaves out an insert, and makes a column that is read NULL. The triggers delete
    # by ``old.id``; a delete by NULL finds nothing. There is no way to ignore a DELETE itself.
    if action == sqlite3.SQLITE_READ:
        return (arg1, arg2) == ("messages", "id")
    return action == sqlite3.SQLITE_INSERT and arg1 == _DEFERRED[trigger]


def _forbids(rules: GuestRules, action: int, arg1: str | None, arg2: str | None) -> bool:
    if action == sqlite3.SQLITE_PRAGMA:
        return not rules.allow_pragma((arg1 or "").lower(), arg2)
    if action == sqlite3.SQLITE_SAVEPOINT:
        # Only in a lease: enter_guest() has seen to that, for a cached statement as well.
        return not rules.savepoints
    if action in _GUEST_DENIED or action in _CREATES_TEMPORARY:
        return True
    if action == sqlite3.SQLITE_FUNCTION:
        # Of all guests together: no number that one of them could mean.
        return arg2 in ("load_extension", "total_changes")
    return action in _CHANGES and _names_ours(arg1, arg2)


def _names_ours(arg1: str | None, arg2: str | None) -> bool:
    # Some actions name the table first, some second; no column is named like an own table.
    # SQLite compares names without case.
    return (arg1 or "").lower().startswith(_OURS) or (arg2 or "").lower().startswith(_OURS)
