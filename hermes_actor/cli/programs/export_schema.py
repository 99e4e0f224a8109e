"""``hermes-actor export-schema``: the SQL of a store, for people who read it with other tools."""

from __future__ import annotations

import contextlib
from pathlib import Path

import click

from hermes_actor.cli.options import db_option, json_option
from hermes_actor.cli.output.console import print_result
from hermes_actor.cli.store import existing_paths, paths_for
from hermes_actor.errors import from_sqlite
from hermes_actor.sqlite import connect_alone, connect_reader, sqlite3
from hermes_actor.store.inspection import create_schema, schema_objects

__all__ = ["export_schema"]


@click.command("export-schema")
@db_option
@click.option("--new", is_flag=True, help="Print the schema of a new store; read no file.")
@json_option
def export_schema(db: Path | None, new: bool, as_json: bool) -> None:
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
        with contextlib.closing(connect_alone() if new else connect_reader(paths.db)) as conn:
            if new:
                create_schema(conn)
            objects = schema_objects(conn)
    except sqlite3.Error as error:
        raise from_sqlite(error, paths.db) from error
    sql = "\n\n".join(f"{one.sql};" for one in objects)
    print_result([one._asdict() for one in objects], sql, as_json)
