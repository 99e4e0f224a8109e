"""``hermes-actor turns``: which conversations are being answered, and by which process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hermes_actor.cli.command_store import open_store
from hermes_actor.cli.options import db_option, json_option, session_id_argument, yes_option
from hermes_actor.cli.output.console import confirm_or_fail, print_result
from hermes_actor.cli.output.formatting import plain, relative_time

if TYPE_CHECKING:
    from hermes_actor.store.gateway.tables import Held, Waiter

__all__ = ["turns"]


@click.group(invoke_without_command=True)
@json_option
@db_option
@click.pass_context
def turns(context: click.Context, as_json: bool, db: Path | None) -> None:
    """List the turns of conversations, and end one.

    A turn is the exclusive right to write one conversation. It ends with the process of its
    holder; one whose process has ended is shown as "ended", and keeps no other process waiting.
    Below a turn stand those who wait for it, in the order in which they get it.

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
        waiting = store.list_turn_waiters()
        found = [_described(held, waiting) for held in store.list_turns()]
    known = {one["root"] for one in found}
    found += [_free(root, waiting) for root in dict.fromkeys(one.root for one in waiting)
              if root not in known]  # fmt: skip
    lines = [line for one in found for line in _lines(one)]
    print_result(found, "\n".join(lines) or "no turns are held", as_json)


def _described(held: Held, waiting: list[Waiter]) -> dict[str, Any]:
    from hermes_actor.api.turns import ended_turn

    state = "ended" if ended_turn(held) else "held"
    return held._asdict() | {"state": state, "waiting": _line_of(held.root, waiting)}


def _free(root: str, waiting: list[Waiter]) -> dict[str, Any]:
    """Return what is shown of a turn that the first of its line is about to take."""
    line = _line_of(root, waiting)
    blank = {
        "token": 0, "root": root, "session_id": line[0]["session_id"], "holder": "", "kind": "turn",
        "pid": 0, "started": 0.0, "place": "", "taken_at": line[0]["since"], "until": 0.0,
    }  # fmt: skip
    return blank | {"state": "free", "waiting": line}


def _line_of(root: str, waiting: list[Waiter]) -> list[dict[str, Any]]:
    from hermes_actor.system.process_identity import has_ended

    return [
        one._asdict()
        | {"state": "ended" if has_ended(one.pid, one.started, one.place) else "waiting"}
        for one in waiting
        if one.root == root
    ]


def _lines(turn: dict[str, Any]) -> Iterator[str]:
    yield (
        f"{plain(turn['session_id'])}  {plain(turn['holder']) or '-'}  {plain(turn['kind'])}"
        f"  pid {turn['pid']}  {turn['state']}  {relative_time(turn['taken_at'])}"
    )
    for one in turn["waiting"]:
        yield (
            f"  then  {plain(one['holder']) or '-'}  {plain(one['kind'])}"
            f"  pid {one['pid']}  {one['state']}  {relative_time(one['since'])}"
        )


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
