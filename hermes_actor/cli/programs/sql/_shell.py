"""The shell of ``hermes-actor sql``: a prompt, a history, and a few commands with a dot."""

from __future__ import annotations

import contextlib
import os
import readline
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from hermes_actor import exit_codes
from hermes_actor.cli.output.errors import print_error
from hermes_actor.cli.output.formatting import count, plain
from hermes_actor.cli.programs.sql._rows import FORMATS
from hermes_actor.cli.programs.sql._statements import explain, run_statement
from hermes_actor.sqlite import split_script, sqlite3
from hermes_actor.store.inspection import schema_objects

if TYPE_CHECKING:
    from hermes_actor.paths import StorePaths

__all__ = ["Shell"]

_HISTORY_LINES = 1000

_HELP = """\
.tables          list tables and views
.schema [NAME]   show the SQL of all objects, or of one
.mode FORMAT     print rows as table, json or csv
.help            show this text
.quit            leave; so does Ctrl-D
Any other input is SQL. A statement ends with a semicolon; Ctrl-C interrupts it."""


class Shell:
    """Reads statements from a terminal until its end."""

    def __init__(
        self, conn: sqlite3.Connection, paths: StorePaths, form: str, *, write: bool
    ) -> None:
        self._conn = conn
        self._paths = paths
        self._form = form
        self._write = write
        self._commands: dict[str, Callable[[str], None]] = {
            ".tables": self._list_tables,
            ".schema": self._show_schema,
            ".mode": self._set_format,
            ".help": lambda _name: print(_HELP),
        }

    def run(self) -> int:
        """Read and run until ``.quit`` or the end of input. Returns the exit code."""
        access = (
            "Changes go through its actor" if self._write else "Read-only; --write allows changes"
        )
        print(plain(self._paths.db), f"{access}. Type .help for help, .quit to leave.", sep="\n")
        history = _history_file()
        with contextlib.suppress(OSError):
            readline.read_history_file(history)
        readline.set_history_length(_HISTORY_LINES)
        try:
            while (text := self._read()) is not None:
                self._do(text)
        finally:
            with contextlib.suppress(OSError):
                _save_history(history)
        return exit_codes.OK

    def _read(self) -> str | None:
        """Return the next statement or dot command; ``None`` at the end."""
        pending = ""
        while True:
            prompt = f"{plain(self._paths.db.name)}> " if not pending else "   ...> "
            try:
                line = input(prompt)
            except EOFError:
                print()
                return None
            except KeyboardInterrupt:
                print()
                pending = ""
                continue
            if not pending and line.strip() in (".quit", ".exit"):
                return None
            if not pending and line.strip().startswith("."):
                return line.strip()
            pending += line + "\n"
            if sqlite3.complete_statement(pending):
                return pending
            if not pending.strip():
                pending = ""

    def _do(self, text: str) -> None:
        """Run one input. Errors are printed, and the shell goes on."""
        try:
            if text.startswith("."):
                word, _, rest = text.partition(" ")
                command = self._commands.get(word)
                if command is None:
                    print_error(f"there is no command {word}; type .help for a list")
                else:
                    command(rest.strip())
                return
            for statement in split_script(text):
                rows = run_statement(self._conn, statement, (), self._form)
                if self._form == "table" and rows >= 0:
                    print(f"({count(rows, 'row')})")
        except sqlite3.Error as error:
            print_error(explain(error, self._paths, write=self._write))
        except KeyboardInterrupt:
            print("\ninterrupted")

    def _list_tables(self, _name: str) -> None:
        for one in schema_objects(self._conn):
            if one.type in ("table", "view"):
                print(plain(one.name))

    def _show_schema(self, name: str) -> None:
        found = [one for one in schema_objects(self._conn) if name in ("", one.table)]
        if name and not found:
            print_error(f"there is no table or view {name}")
        for one in found:
            print("\n".join(map(plain, one.sql.split("\n"))) + ";")

    def _set_format(self, name: str) -> None:
        if name in FORMATS:
            self._form = name
        else:
            print_error(f"a format is one of: {', '.join(FORMATS)}")


def _history_file() -> Path:
    state = os.environ.get("XDG_STATE_HOME", "").strip()
    return Path(state or Path.home() / ".local" / "state") / "hermes-actor" / "sql-history"


def _save_history(file: Path) -> None:
    # Statements may hold private values: no other user may read the file.
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(file, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    readline.write_history_file(file)
