"""Databases of other programs, each with a peculiarity of SQLite, and a form to compare them in."""

import sqlite3
from pathlib import Path
from typing import Any

from support.files import raw

SCRIPTS = {
    "triggers": """
        CREATE TABLE notes (id INTEGER PRIMARY KEY AUTOINCREMENT, text TEXT UNIQUE);
        CREATE TABLE log (what TEXT);
        CREATE TRIGGER noted AFTER INSERT ON notes BEGIN INSERT INTO log VALUES (new.text); END;
        CREATE VIEW latest AS SELECT max(id) AS id FROM notes;
        CREATE TRIGGER through_view INSTEAD OF INSERT ON latest
            BEGIN INSERT INTO notes (text) VALUES (new.id); END;
        CREATE INDEX notes_text ON notes (length(text)) WHERE text IS NOT NULL;
        INSERT INTO notes (text) VALUES ('one'), ('two');
        DELETE FROM notes WHERE text = 'two';
    """,
    "utf-16": """
        PRAGMA encoding = 'UTF-16le';
        CREATE TABLE t (x); INSERT INTO t VALUES ('北京'), ('é');
    """,
    "auto_vacuum": """
        PRAGMA auto_vacuum = FULL; PRAGMA page_size = 1024;
        CREATE TABLE t (x); INSERT INTO t VALUES (zeroblob(9000)), (1);
    """,
    "without rowid": """
        CREATE TABLE t (a, b, PRIMARY KEY (b, a)) WITHOUT ROWID;
        INSERT INTO t VALUES (1, 2), (3, 1);
    """,
    "generated columns": """
        CREATE TABLE t (a INTEGER, b AS (a * 2) STORED, c AS (a + 1));
        INSERT INTO t (a) VALUES (4), (5);
    """,
    "strict": """
        CREATE TABLE t (a INTEGER, b ANY) STRICT;
        INSERT INTO t VALUES (1, 'x'), (2, x'00');
    """,
    "fts3": """
        CREATE VIRTUAL TABLE f USING fts3(body); INSERT INTO f VALUES ('walrus'), ('sea lion');
    """,
    "fts5": """
        CREATE VIRTUAL TABLE f USING fts5(body); INSERT INTO f VALUES ('walrus'), ('sea lion');
    """,
    "r-tree": """
        CREATE VIRTUAL TABLE r USING rtree(id, low, high); INSERT INTO r VALUES (1, 2, 3);
    """,
    "numbers": "PRAGMA user_version = 7; PRAGMA application_id = 99; CREATE TABLE t (x);",
}
"""By the peculiarity. Each has a table or view into which :data:`INSERTS` has a statement."""

INSERTS = {
    "triggers": "INSERT INTO notes (text) VALUES ('three')",
    "without rowid": "INSERT INTO t VALUES (9, 9)",
    "generated columns": "INSERT INTO t (a) VALUES (6)",
    "strict": "INSERT INTO t VALUES (3, 1.5)",
    "fts3": "INSERT INTO f VALUES ('seal')",
    "fts5": "INSERT INTO f VALUES ('seal')",
    "r-tree": "INSERT INTO r VALUES (2, 5, 6)",
}

_PRAGMAS = (
    "encoding",
    "auto_vacuum",
    "page_size",
    "user_version",
    "application_id",
    "journal_mode",
)


def make_foreign(path: Path, name: str, mode: str = "delete") -> str:
    """Create a file with the peculiarity *name*. Returns a statement that adds a row to it."""
    with raw(path) as conn:
        conn.executescript(SCRIPTS[name])
        conn.execute(f"PRAGMA journal_mode = {mode}").fetchall()
    return INSERTS.get(name, "INSERT INTO t VALUES ('added')")


def shape(path: Path) -> dict[str, Any]:
    """Everything that a program can see of a file, for a comparison."""
    with raw(path) as conn:
        found: dict[str, Any] = {
            name: conn.execute(f"PRAGMA {name}").fetchall() for name in _PRAGMAS
        }
        found["schema"] = conn.execute(
            "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name"
        ).fetchall()
        found["dump"] = list(conn.iterdump())
        assert conn.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return found


def changed(path: Path, copy: Path, statement: str) -> dict[str, Any]:
    """The shape of *path* after *statement* by SQLite itself, in a *copy*."""
    with raw(path) as source, sqlite3.connect(copy) as target:
        ((mode,),) = source.execute("PRAGMA journal_mode").fetchall()
        source.backup(target)
    target.close()
    with raw(copy) as conn:
        conn.execute(f"PRAGMA journal_mode = {mode}").fetchall()
        conn.execute(statement)
    return shape(copy)
