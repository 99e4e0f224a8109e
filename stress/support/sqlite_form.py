"""The tables of a store on a server in the form that a file has, for rows of SQL.

A copy of all tables is made in memory, the statement runs on it, and what it has changed goes
back. So a row that reads or damages a table by SQL means the same on every provider.
"""

import sqlite3
from contextlib import closing
from typing import Any

from sqlalchemy import Column, select

from hermes_actor.providers.sql import tables
from hermes_actor.store.schema import SCHEMA_SQL, TOPICS_SQL

Columns = dict[str, tuple[Column[Any], ...]]

COPIED: Columns = {
    "sessions": tables.SESSION_COLUMNS,
    "messages": tables.MESSAGE_COLUMNS,
    "state_meta": tuple(tables.state_meta.c),
}
TOPICS: Columns = {
    "telegram_dm_topic_mode": tuple(tables.mode.c),
    "telegram_dm_topic_bindings": tuple(tables.bindings.c),
}


def on_copy(db: Any, query: str, *args: Any) -> list[tuple[Any, ...]]:
    """Run *query*, written for SQLite, on the tables of *db*."""
    with closing(sqlite3.connect(":memory:")) as copy:
        copied = copy_tables(db, copy)
        rows = copy.execute(query, args).fetchall()
        if not query.lstrip().lower().startswith("select"):
            write_back(db, copy, copied)
        return rows


def copy_tables(db: Any, copy: sqlite3.Connection) -> Columns:
    copy.executescript(SCHEMA_SQL)
    copied = dict(COPIED)
    # A file has these tables only after topic mode was used.
    if db.get_meta("telegram_dm_topic_schema_version") is not None:
        copy.executescript(TOPICS_SQL)
        copied |= TOPICS
    with db._port.database.engine.connect() as conn:
        for name, columns in copied.items():
            statement = select(*columns)
            if name == "sessions":
                statement = statement.order_by(tables.sessions.c.place)
            rows = [tuple(row) for row in conn.execute(statement)]
            places = ", ".join("?" * len(columns))
            copy.executemany(f"INSERT INTO {name} VALUES ({places})", rows)
    return copied


def write_back(db: Any, copy: sqlite3.Connection, copied: Columns) -> None:
    """Cells that differ; no example adds or removes rows by SQL."""
    with db._port.database.engine.begin() as conn:
        for name, columns in copied.items():
            keys = [column for column in columns if column.primary_key]
            for row in copy.execute(f"SELECT * FROM {name}").fetchall():
                values = dict(zip((column.name for column in columns), row, strict=True))
                found = [column == values[column.name] for column in keys]
                conn.execute(columns[0].table.update().where(*found).values(values))
