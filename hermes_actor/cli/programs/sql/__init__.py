"""``hermes-actor sql``: run statements on a database file, or type them in a small shell."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import click

from hermes_actor import exit_codes
from hermes_actor.cli.options import json_option
from hermes_actor.cli.output.errors import fail, print_error
from hermes_actor.cli.programs.sql._statements import explain, run_statement
from hermes_actor.cli.store import existing_file
from hermes_actor.paths import StorePaths, resolve_paths
from hermes_actor.sqlite import connect_reader, split_script, sqlite3

__all__ = ["sql"]

_TIMEOUT_SECONDS = 5.0


@click.command()
@click.argument("database", metavar="FILE", type=click.Path(path_type=Path))
@click.argument("statement", required=False)
@click.option("--param", "-p", "parameters", multiple=True, metavar="VALUE",
              help="Value for the next ? of the statement. Repeat for more.")  # fmt: skip
@click.option("--write", is_flag=True, help="Allow changes. The actor of the file makes them.")
@click.option("--csv", "as_csv", is_flag=True, help="Print rows as CSV.")
@click.option("--timeout", type=click.FloatRange(min=0), default=_TIMEOUT_SECONDS,
              metavar="SECONDS", show_default=True,
              help="How long to wait for other writers.")  # fmt: skip
@json_option
def sql(
    database: Path,
    statement: str | None,
    parameters: tuple[str, ...],
    write: bool,
    as_csv: bool,
    timeout: float,
    as_json: bool,
) -> int:
    """Run SQL on a database file, beside the programs that use it.

    FILE is any SQLite database. Without --write it is opened read-only. With --write, changes go
    through the actor of the file: no program ever sees "database is locked" because of you.

    Without STATEMENT, statements are read from standard input; on a terminal that is a small
    shell with a history. Type .help in it.

    Exit codes: 0 done, 1 a statement failed or there is no such file, 2 wrong usage.

    \b
    Examples:
      hermes-actor sql kanban.db "SELECT id, title FROM tasks"
      hermes-actor sql kanban.db "SELECT * FROM tasks WHERE id = ?" -p 7 --json
      hermes-actor sql kanban.db --write "UPDATE tasks SET status = 'done' WHERE id = 7"
      hermes-actor sql kanban.db --csv < report.sql > report.csv
      hermes-actor sql kanban.db
    """
    if as_json and as_csv:
        raise click.UsageError("--json and --csv exclude each other")
    if parameters and statement is None:
        raise click.UsageError("--param needs a STATEMENT")
    if statement is None and len(str(database).split()) > 1 and not database.exists():
        raise click.UsageError(
            f"name the file before the statement: hermes-actor sql FILE {str(database)!r}"
        )
    form = "json" if as_json else "csv" if as_csv else "table"
    paths = resolve_paths(database)
    existing_file(paths)
    with contextlib.closing(_connect(paths, write, timeout)) as conn:
        if statement is None and sys.stdin.isatty():
            from hermes_actor.cli.programs.sql._shell import Shell  # readline, for terminals only

            return Shell(conn, paths, form, write=write).run()
        try:
            for one in [statement] if statement is not None else split_script(sys.stdin.read()):
                run_statement(conn, one, parameters, form)
        except sqlite3.Error as error:
            print_error(explain(error, paths, write=write))
            return exit_codes.REFUSED
    return exit_codes.OK


def _connect(paths: StorePaths, write: bool, timeout: float) -> sqlite3.Connection:
    try:
        if not write:
            return connect_reader(paths.db)
        from hermes_actor.dbapi import connect

        return connect(paths.db, timeout=timeout, isolation_level=None)
    except sqlite3.Error as error:
        fail(f"cannot open {paths.db}: {error}")
