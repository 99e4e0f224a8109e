"""``hermes-actor handoff`` and ``hermes-actor drain``: the planned ends of an actor."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import click

import hermes_protocol.messages as wire
from hermes_actor import exits, limits
from hermes_actor.client.asking import ask, ask_status
from hermes_actor.client.core import decode_result
from hermes_actor.errors import HandoffFailed, NotRunning
from hermes_actor.paths import Place, default_db_path, place_of

__all__ = ["drain", "hand_over", "handoff"]

_PATIENCE_SECONDS = limits.SUCCESSOR_READY_SECONDS + 3 * limits.SUCCESSOR_SERVING_SECONDS

_db = click.option(
    "--db", type=click.Path(path_type=Path), help="The file; default HERMES_HOME/state.db."
)
_json = click.option("--json", "as_json", is_flag=True, help="One JSON object for scripts.")


def hand_over(place: Place, python: str, *, allow_older: bool = False) -> dict[str, Any]:
    """Have the actor hand itself over; pid and build of the successor that now serves.

    Raises :class:`HandoffFailed`, after which the old actor serves on, or :class:`NotRunning`.
    """
    told = ask(
        place,
        lambda n: wire.Handoff(ask=n, python=python, allow_older=allow_older),
        _PATIENCE_SECONDS,
        name="handoff",
    )
    result: dict[str, Any] = decode_result(told, dict[str, Any])
    return result


@click.command()
@_db
@click.option(
    "--python", metavar="PATH", help="The interpreter whose environment has the new build."
)
@click.option(
    "--allow-older", metavar="PATH", help="Go back to the older build of this interpreter."
)
@_json
def handoff(db: Path | None, python: str | None, allow_older: str | None, as_json: bool) -> int:
    """Hand the running actor over to the code that is on disk now.

    Clients notice nothing. If the new build cannot take over, the old actor serves on and this
    command says why. Without a running actor there is nothing to hand over: the next client
    starts the new code.

    Exit codes: 0 the successor serves, 1 it failed and the old actor serves on, 3 not running.

    \b
    Examples:
      hermes-actor handoff
      hermes-actor handoff --python ~/new-env/bin/python
      hermes-actor handoff --allow-older ~/old-env/bin/python
    """
    place = place_of(db or default_db_path())
    try:
        result = hand_over(
            place, allow_older or python or sys.executable, allow_older=allow_older is not None
        )
    except NotRunning as error:
        _say({"error": str(error)}, f"not running: {error}; the next client starts one", as_json)
        return exits.NOT_RUNNING
    except HandoffFailed as error:
        _say({"error": str(error)}, f"Error: {error}; the old actor serves on", as_json)
        return exits.REFUSED
    _say(result, f"pid {result['pid']} serves {place.db} with build {result['build']}", as_json)
    return exits.OK


@click.command()
@_db
@_json
def drain(db: Path | None, as_json: bool) -> int:
    """End the running actor in good order, and wait until it has ended.

    Everything that was admitted is committed and answered. Clients that are still there start
    another actor with their next call.

    Exit codes: 0 it has ended, 1 it has not ended in time, 3 not running.

    \b
    Example:
      hermes-actor drain
    """
    place = place_of(db or default_db_path())
    before = ask_status(place)
    if before is None:
        _say({"ended": False}, f"not running: no actor serves {place.db}", as_json)
        return exits.NOT_RUNNING
    ask(place, lambda n: wire.Drain(ask=n), limits.PATIENCE_SECONDS, name="drain")
    give_up = time.monotonic() + limits.PATIENCE_SECONDS
    while (now := ask_status(place)) is not None and now["pid"] == before["pid"]:
        if time.monotonic() > give_up:
            _say({"ended": False}, f"Error: pid {before['pid']} has not ended in time", as_json)
            return exits.REFUSED
        time.sleep(0.02)
    _say({"ended": True, "pid": before["pid"]}, f"pid {before['pid']} has ended", as_json)
    return exits.OK


def _say(document: dict[str, Any], text: str, as_json: bool) -> None:
    print(json.dumps(document) if as_json else text)
