"""The agent store of a command, its options, and rows as a table."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hermes_actor import exit_codes
from hermes_actor.cli.core_files import leave_no_core_file
from hermes_actor.cli.output.errors import fail
from hermes_actor.cli.output.formatting import json_text, plain
from hermes_actor.cli.output.table import Column, table

if TYPE_CHECKING:
    from hermes_actor.agent_store.store import AgentStore

__all__ = [
    "agent_option", "cell_text", "one_agent_option", "opened", "rows_text", "store_option",
    "text_of", "whom",
]  # fmt: skip

_LEAST = 6
"""Cells that a column keeps on the narrowest terminal."""

_GOOD = 16
"""Cells that it keeps while another is wider."""

store_option = click.option(
    "--store", metavar="STORE",
    help="Agent store: a file or a URL. Default: agents.dsn of config.yaml, else"
    " HERMES_HOME/agents.db.",
)  # fmt: skip
agent_option = click.option("--agent", required=True, metavar="AGENT", help="Id of the agent.")
one_agent_option = click.option("--agent", metavar="AGENT", help="Id of one agent.")


@contextlib.contextmanager
def opened(
    store: str | None, agent: str | None = None, *, new: bool = False, decrypts: bool = True
) -> Iterator[AgentStore]:
    """Give the agent store that a command is about, for the block; it must exist unless *new*.

    Unless it *decrypts* nothing, it leaves no core file.
    """
    from hermes_actor.agent_store.ports import default_target
    from hermes_actor.agent_store.store import AgentStore
    from hermes_actor.providers.resolve import choose_by_url, is_url

    if decrypts:
        leave_no_core_file()
    target = default_target() if store is None else store
    file: Path | None = Path(target)
    if isinstance(target, str) and is_url(target):
        file = choose_by_url(target).file
    if file is not None and not new and not file.exists():
        named = "" if store is None else f" --store {shlex.quote(store)}"
        fail(f"there is no agent store at {file}. Make it with: hermes-actor agents setup{named}")
    if file is not None and file.exists():
        _check_file(file)
    # Without the actor as long as nothing is changed: a list is read of a file on a read-only disk,
    # and of one whose actor stands still.
    with AgentStore(agent, target, mode="actor" if new else "on demand") as opened_store:
        yield opened_store


def _check_file(file: Path) -> None:
    """Fail if *file* holds something else, before an actor is started for it."""
    from hermes_actor.cli.store import existing_file
    from hermes_actor.paths import resolve_paths
    from hermes_actor.sqlite import connect_reader, sqlite3
    from hermes_actor.store.inspection import may_hold_agents

    existing_file(resolve_paths(file))
    try:
        with contextlib.closing(connect_reader(file)) as conn:
            fits = may_hold_agents(conn)
    except sqlite3.Error:
        return  # a damaged file: opening it says what is wrong
    if not fits:
        fail(
            f"{file} is not an agent store: it has other tables; it was not changed. Without"
            " --store, the agent store of the home is used"
        )


def whom(agent: str | None, every: bool) -> str:
    """Return the agent that a change is for; ``*`` for all. Exactly one must be named."""
    if every == (agent is not None):
        fail("say --agent AGENT, or --all for every agent", code=exit_codes.USAGE)
    return "*" if every else str(agent)


def text_of(text: str) -> str:
    """Return *text*, or what standard input holds if it is ``-``."""
    return sys.stdin.read() if text == "-" else text


def rows_text(records: Sequence[dict[str, Any]], columns: Sequence[str], nothing: str) -> str:
    """Return *records* as a table that fits the terminal; *nothing* if there are none."""
    if not records:
        return nothing
    # The first column identifies a row: it is cut last.
    listed = [
        Column(
            name.upper().replace("_", " "),
            lambda record, name=name: cell_text(record.get(name)),  # type: ignore[misc]
            _LEAST,
            place,
            good=_GOOD,
        )
        for place, name in enumerate(columns)
    ]
    return "\n".join(table(listed, records))


def cell_text(value: Any) -> str:
    """Return a value of a row as people read it, safe for a terminal."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return plain(value if isinstance(value, str) else json_text(value))
