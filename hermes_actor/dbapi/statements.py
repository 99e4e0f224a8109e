"""The first words of a statement, and the statements of a script.

Never the ground for sending a statement to the actor or running it here: SQLite decides that.
Words only tell transaction control, pragmas and changes of the schema from everything else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from hermes_actor.sqlite import split_script

__all__ = [
    "CONTROL",
    "DML",
    "READS",
    "GAP",
    "SCHEMA",
    "begins_writing",
    "ends_by_conflict",
    "ends_transaction",
    "is_rollback_to",
    "may_run_anywhere",
    "one_by_one",
    "split",
    "words",
]

CONTROL = frozenset({"BEGIN", "COMMIT", "END", "ROLLBACK", "SAVEPOINT", "RELEASE"})
"""Words that begin, end or mark a transaction."""

DML = frozenset({"INSERT", "UPDATE", "DELETE", "REPLACE"})
"""Words before which Python begins a transaction, and whose rows it counts."""

READS = frozenset({"SELECT", "VALUES", "EXPLAIN", "SAVEPOINT", "RELEASE", "ROLLBACK"})
"""Words of statements that change nothing in the file by themselves."""

SCHEMA = frozenset({"CREATE", "DROP", "ALTER", "VACUUM", "REINDEX", "ANALYZE"})
"""Words after which SQLite must look at the schema again."""

_TEMPORARY = frozenset({"TEMP", "TEMPORARY"})
_OR_ROLLBACK = re.compile(r"\brollback\b", re.IGNORECASE)
_COUNTERS = re.compile(r"\b(?:(?:total_)?changes|last_insert_rowid)\s*\(", re.IGNORECASE)
GAP = r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?(?:\*/|$))"
"""One piece of what may stand between two words. One blank and not many: repeated by its users, a
pattern with two stars would take for ever on a long run of blanks."""

_WORDS = re.compile(rf"(?:{GAP}|;)*([A-Za-z]+)(?:{GAP}+([A-Za-z]+))?", re.DOTALL)
_TO = re.compile(
    rf"(?:{GAP}|;)*ROLLBACK{GAP}+(?:TRANSACTION{GAP}+)?TO\b", re.DOTALL | re.IGNORECASE
)


def words(sql: str) -> tuple[str, str]:
    """Return the first two words of *sql* in upper case, comments skipped; "" where there is none.

    The second one only if nothing but white space and comments are between them.
    """
    match = _WORDS.match(sql)
    return (match[1].upper(), (match[2] or "").upper()) if match else ("", "")


def begins_writing(first: str, second: str) -> bool:
    """Return True if a statement takes the write lock by its words alone."""
    return first == "BEGIN" and second in ("IMMEDIATE", "EXCLUSIVE")


def ends_transaction(first: str, sql: str) -> bool:
    """Return True if transaction control that begins with *first* ends the transaction."""
    return first in ("COMMIT", "END") or (first == "ROLLBACK" and not is_rollback_to(sql))


def ends_by_conflict(sql: str) -> bool:
    """Return True if a conflict in a statement may end the transaction that it runs in."""
    return _OR_ROLLBACK.search(sql) is not None


def is_rollback_to(sql: str) -> bool:
    """Return True for ``ROLLBACK TO`` a savepoint."""
    return _TO.match(sql) is not None


def may_run_anywhere(first: str, second: str, sql: str) -> bool:
    """Return True if a statement of a write transaction may be about its connection alone."""
    return (first == "CREATE" and second in _TEMPORARY) or _COUNTERS.search(sql) is not None


def one_by_one(first: str, second: str) -> bool:
    """Return True if a statement of a script cannot travel together with its neighbours.

    Only what surely writes to the file can: of anything else SQLite says here what it is.
    """
    return (
        first not in DML | SCHEMA
        or first == "VACUUM"
        or (first == "CREATE" and second in _TEMPORARY)
    )


def split(script: str) -> Iterator[str]:
    """Yield the statements of *script* that have a word."""
    return (sql for sql in split_script(script) if words(sql)[0])
