"""``hermes-actor turns``: which conversations are being answered, and by which process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hermes_actor.cli.command_store import open_store
from hermes_actor.cli.options import db_option, json_option, session_id_argument, yes_option
from hermes_actor.cli.output.console import confirm_or_fail, print_result
from hermes_actor.cli.output.formatting import plain, relative_time

if TYPE_CHECKING:
    from hermes_actor.store.gateway.tables import Held

__all__ = ["turns"]


@click.group(invoke_without_command=True)
@json_option
@db_option
@click.pass_context
def turns(context: click.Context, as_json: bool, db: Path | None) -> None:
    """List the turns of conversations, and end one.

    A turn is the exclusive right to write one conversation. It ends with the process of its
    holder; one whose process has ended is shown as "ended", and keeps no other process waiting.

    Exit codes: 0, even if there is none.

    \b
    Examples:
      hermes-actor turns
      hermes-actor turns --json
      hermes-actor turns steal 20260301_101010_aaaaaa
    """
    if context.invoked_subcommand is not None:
        return
    with open_store(db) as store:
        found = [_described(held) for held in store.list_turns()]
    lines = [
        f"{plain(one['session_id'])}  {plain(one['holder']) or '-'}  {plain(one['kind'])}"
        f"  pid {one['pid']}  {one['state']}  {relative_time(one['taken_at'])}"
        for one in found
    ]
    print_result(found, "\n".join(lines) or "no turns are held", as_json)


def _described(held: Held) -> dict[str, Any]:
    from hermes_actor.api.turns import ended_turn

    state = "ended" if ended_turn(held) else "held"
    return held._asdict() | {"state": state}


@turns.command()
@session_id_argument
@yes_option
@json_option
@db_option
def steal(session_id: str, yes: bool, as_json: bool, db: Path | None) -> None:
    """End the turn of a conversation, for one whose holder is stuck.

    What its holder writes under it from then on is refused.

    Exit codes: 0 ended, or there was none; 1 not found or declined.

    \b
    Examples:
      hermes-actor turns steal 20260301_1010
      hermes-actor turns steal 20260301_1010 --yes --json
    """
    with open_store(db) as store:
        found = store.find_session(session_id)
        confirm_or_fail(f"End the turn of session '{plain(found)}'? [y/N] ", yes)
        ended = store.steal_turn(found)
    text = "Ended the turn." if ended else "The conversation has no turn."
    print_result({"session_id": found, "ended": ended}, text, as_json)
