"""Pragmas by subject: this connection, the writes of this connection, or the file."""

from __future__ import annotations

import re
from typing import NamedTuple

from hermes_actor.dbapi.statements import GAP

__all__ = ["ANSWERED", "LAYOUT", "LOCAL", "OWNERS", "SETTINGS", "Pragma", "parse"]

SETTINGS = frozenset({
    "case_sensitive_like", "cell_size_check", "defer_foreign_keys", "foreign_keys",
    "ignore_check_constraints", "legacy_alter_table", "recursive_triggers",
    "reverse_unordered_selects", "secure_delete", "trusted_schema",
})  # fmt: skip
"""They decide what a write does, so they hold here and travel with every write."""

OWNERS = frozenset({"journal_mode", "locking_mode"})
"""The owner of the file decides them. Setting one is answered with its present value, as SQLite
answers when it cannot change it."""

LAYOUT = {
    "page_size": {},
    "encoding": {"utf8": "utf-8", "utf-16": "utf-16le", "utf16": "utf-16le",
                 "utf16le": "utf-16le", "utf16be": "utf-16be"},
    "auto_vacuum": {"none": "0", "full": "1", "incremental": "2"},
}  # fmt: skip
"""They count when a file is created, which its actor has done; with other names of their values."""

ANSWERED = {
    "wal_checkpoint": ("busy", "log", "checkpointed"),
    "optimize": (),
    "incremental_vacuum": (),
}
"""Work on the file that its owner does by itself, with the columns of the answer."""

LOCAL = frozenset({
    "automatic_index", "busy_timeout", "cache_size", "cache_spill", "collation_list",
    "compile_options", "count_changes", "data_version", "database_list", "function_list",
    "hard_heap_limit", "journal_size_limit", "mmap_size", "module_list", "pragma_list",
    "query_only", "read_uncommitted", "shrink_memory", "soft_heap_limit", "synchronous",
    "temp_store", "threads", "wal_autocheckpoint",
})  # fmt: skip
"""They are about the connection of the caller alone: answered here, inside a transaction too."""

_NAME = r"(?:\w+|\"[^\"]*\"|`[^`]*`|\[[^\]]*\]|'[^']*')"
_PRAGMA = re.compile(
    rf"(?:{GAP}|;)*PRAGMA{GAP}*(?:{_NAME}{GAP}*\.{GAP}*)?({_NAME}){GAP}*(?:[=(]\s*([^;)]*))?",
    re.IGNORECASE | re.DOTALL,
)


class Pragma(NamedTuple):
    """The name of a pragma in lower case, and its argument without quotes, if it has one."""

    name: str
    argument: str | None


def parse(sql: str) -> Pragma | None:
    """Return the pragma that *sql* is, or ``None`` if it cannot be read; SQLite will say more."""
    match = _PRAGMA.match(sql)
    if match is None:
        return None
    argument = match[2]
    name = match[1].strip("\"`[]'").lower()
    return Pragma(name, None if argument is None else argument.strip().strip("'\""))
