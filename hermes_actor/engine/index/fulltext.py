"""The two full-text tables as objects of the schema: whether they are whole, and creating them.

A table without one of its triggers has missed changes and is rebuilt; a table of another shape
with its triggers in place is a choice of its user and stays. What the linked SQLite cannot serve is
found out by trial: the store then works without it, and its triggers go, because they would fail
every change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING

from hermes_actor.sqlite import sqlite3
from hermes_actor.store.rows import scalar
from hermes_actor.store.schema import LEFTOVER, statements
from hermes_actor.store.search.coverage import TABLES, can_serve, is_usable, works

if TYPE_CHECKING:
    from hermes_actor.sqlite import Connection

__all__ = [
    "abandon_leftover",
    "broken_parts",
    "create_fulltext",
    "drop_fulltext",
    "drop_triggers",
    "empty_leftover",
    "is_inline",
]

_EVENTS = ("insert", "delete", "update")
_SHADOWS = ("data", "idx", "content", "docsize", "config")
# Rows between two looks at the clock; those of an index itself are pages of some 4 KB.
_STEP_ROWS = 200


def broken_parts(conn: Connection) -> list[str]:
    """Return the tables that must be rebuilt, or whose triggers this SQLite cannot run."""
    present = {name for (name,) in conn.execute("SELECT name FROM sqlite_master")}
    broken = []
    for table in TABLES:
        triggers = {f"{table}_{event}" for event in _EVENTS}
        if triggers <= present and is_usable(conn, table):
            continue
        # Triggers without a table that works fail every change. A table that is missing matters
        # only where it can be created.
        if triggers & present or can_serve(conn, table):
            broken.append(table)
    return broken


def is_inline(conn: Connection, table: str) -> bool:
    """Return True if *table* holds its own text (since version 11), not one of ``messages``."""
    return bool(scalar(conn, "SELECT 1 FROM sqlite_master WHERE name = ?", (f"{table}_content",)))


def drop_fulltext(conn: Connection, table: str) -> None:
    """Remove a full-text table and its triggers, inside the open transaction.

    At once, however large it is: what it kept stays as *leftovers*, see :func:`empty_leftover`.
    """
    drop_triggers(conn, table)
    # The table stays for an SQLite that has the module; without triggers, no change meets it.
    if not can_serve(conn, table):
        return
    try:
        _set_aside(conn, table)
    except sqlite3.OperationalError:
        # An SQLite that is built to refuse changes of its schema table.
        if not works(conn, f"DROP TABLE IF EXISTS {table}"):
            raise


def drop_triggers(conn: Connection, table: str) -> None:
    """Drop the triggers that maintain *table*, inside the open transaction."""
    for event in _EVENTS:
        conn.execute(f"DROP TRIGGER IF EXISTS {table}_{event}")


def _set_aside(conn: Connection, table: str) -> None:
    """Take a full-text table out of the schema and give the tables behind it other names.

    DROP would read all of it first: for seconds if it is large, and in vain if it is damaged.
    Without its entry in the schema the tables behind it are ordinary ones.
    """
    present = {name for (name,) in conn.execute("SELECT name FROM sqlite_master")}
    kept = [shadow for part in _SHADOWS if (shadow := f"{table}_{part}") in present]
    free = (name for n in count(1) if (name := f"{LEFTOVER}{n}") not in present)
    with _writable_schema(conn):
        # ALTER TABLE refuses shadow tables of FTS5, so the schema is changed by its rows.
        conn.execute("DELETE FROM sqlite_master WHERE type = 'table' AND name = ?", (table,))
        for shadow, name in zip(kept, free, strict=False):
            conn.execute(
                "UPDATE sqlite_master SET name = ?, tbl_name = ?,"
                " sql = 'CREATE TABLE ' || ? || substr(sql, instr(sql, '('))"
                " WHERE type = 'table' AND name = ?",
                (name, name, name, shadow),
            )


def empty_leftover(conn: Connection, name: str, go_on: Callable[[], bool]) -> None:
    """Give back pages of a leftover while *go_on*, in the open transaction; drop it when empty."""
    columns = [row[1] for row in conn.execute(f"PRAGMA table_info({name})")]
    # Only the large ones have an id; the others are dropped in one piece.
    if columns[0] == "id":
        step = f"DELETE FROM {name} WHERE id IN (SELECT id FROM {name} ORDER BY id LIMIT ?)"
        while conn.execute(step, (_STEP_ROWS,)).rowcount:
            # After a step, so that each slice gives something back.
            if not go_on():
                return
    conn.execute(f"DROP TABLE {name}")


def abandon_leftover(conn: Connection, name: str) -> None:
    """Forget a leftover that is too damaged to be emptied; a vacuum gives its pages back."""
    with _writable_schema(conn):
        conn.execute("DELETE FROM sqlite_master WHERE type = 'table' AND name = ?", (name,))


@contextmanager
def _writable_schema(conn: Connection) -> Iterator[None]:
    """Allow the schema to be changed by its rows. SQLite reads it again at the end."""
    # A new cookie makes every other connection read the schema again, too.
    (cookie,) = conn.execute("PRAGMA schema_version").fetchone()
    conn.execute("PRAGMA writable_schema = ON")
    try:
        yield
        conn.execute(f"PRAGMA schema_version = {cookie + 1}")
    finally:
        conn.execute("PRAGMA writable_schema = RESET")


def create_fulltext(conn: Connection, table: str) -> None:
    """Create a full-text table and its triggers, empty, if the linked SQLite can serve it."""
    if can_serve(conn, table):
        for statement in statements(TABLES[table]):
            conn.execute(statement)
