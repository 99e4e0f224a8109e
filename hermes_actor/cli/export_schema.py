"""``hermes-actor export-schema``: the SQL of a store, for people who read it with other tools."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import click

from hermes_actor import exit_codes
from hermes_actor.cli.options import db_option, json_option
from hermes_actor.cli.store import existing_paths, paths_for
from hermes_actor.errors import from_sqlite
from hermes_actor.sqlite import connect_reader, sqlite3
from hermes_actor.store.schema import (
    DEFERRED_INDEX_SQL,
    FTS_SQL,
    FTS_TRIGRAM_SQL,
    OWN_INDEXES,
    OWN_SQL,
    SCHEMA_SQL,
    statements,
)

__all__ = ["export_schema"]

_OBJECTS = """
SELECT type, name, tbl_name, sql FROM sqlite_master
WHERE sql IS NOT NULL AND name NOT GLOB 'sqlite_*' AND (
    type <> 'table' OR sql LIKE 'CREATE VIRTUAL%' OR NOT EXISTS (
        SELECT 1 FROM sqlite_master AS v
        WHERE v.sql LIKE 'CREATE VIRTUAL%' AND sqlite_master.name GLOB v.name || '_*'
          AND substr(sqlite_master.name, length(v.name) + 2)
              IN ('data', 'idx', 'content', 'docsize', 'config')))
ORDER BY type = 'trigger', type = 'index', rowid
"""
"""Everything but what SQLite makes by itself: its own tables, and the shadows of virtual ones."""


@click.command("export-schema")
@db_option
@click.option("--new", is_flag=True, help="That of a store that is created now; reads no file.")
@json_option
def export_schema(db: Path | None, new: bool, as_json: bool) -> int:
    """Print the SQL of every table, index and trigger.

    The file is only read. What begins with hermes_actor_ belongs to hermes-actor and may be ignored
    by other programs. The output makes an empty store of the same shape:

    \b
    Examples:
      hermes-actor export-schema | sqlite3 empty.db
      hermes-actor export-schema --json | jq -r '.[].name'

    Exit codes: 0 printed, 1 the file is not there or cannot be read.
    """
    paths = paths_for(db) if new else existing_paths(db)
    try:
        conn = sqlite3.connect(":memory:") if new else connect_reader(paths.db)
        with contextlib.closing(conn):
            if new:
                _create(conn)
            found = conn.execute(_OBJECTS).fetchall()
    except sqlite3.Error as error:
        raise from_sqlite(error, paths.db) from error
    if as_json:
        keys = ("type", "name", "table", "sql")
        print(json.dumps([dict(zip(keys, row, strict=True)) for row in found]))
    else:
        print("\n\n".join(f"{sql};" for *_, sql in found))
    return exit_codes.OK


def _create(conn: sqlite3.Connection) -> None:
    for script in (SCHEMA_SQL, DEFERRED_INDEX_SQL, FTS_SQL, FTS_TRIGRAM_SQL, OWN_SQL):
        for statement in statements(script):
            conn.execute(statement)
    for name, target in OWN_INDEXES.items():
        conn.execute(f"CREATE INDEX {name} ON {target}")
