"""``hermes-actor status`` for sessions on a server: does it answer, what does it guarantee?"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from hermes_actor import exit_codes
from hermes_actor.cli.output.console import print_result, waiting
from hermes_actor.errors import Unreachable

if TYPE_CHECKING:
    from hermes_actor.providers.resolve import StoreSpec

__all__ = ["server_status"]


def server_status(choice: StoreSpec, as_json: bool) -> int:
    """Print the status of the store of *choice*, and return the exit code.

    A server that does not answer is a status; other errors are raised.
    """
    document: dict[str, Any] = {"provider": choice.name, "store": choice.address}
    try:
        with waiting(lambda: f"asking {choice.address}"):
            document |= _ask(choice)
    except Unreachable as error:
        document |= {"phase": "unreachable", "error": str(error)}
        print_result(document, f"unreachable: {choice.address}\n  {error}", as_json)
        return exit_codes.NOT_RUNNING
    print_result(document, _text(document), as_json)
    return exit_codes.OK


def _ask(choice: StoreSpec) -> dict[str, Any]:
    """Return the status of the provider, or what every provider can report."""
    from hermes_actor.providers.resolve import provider_class

    ask: Any = getattr(provider_class(choice.name), "status", None)
    if ask is not None:
        found: dict[str, Any] = ask(choice.url, settings=choice.settings)
        return found
    with contextlib.closing(choice.open()) as db:
        declared = db.capabilities
        return {
            "phase": "serving",
            "sessions": db.session_count(),
            "messages": db.message_count(),
            "durability": declared.durability,
            "changes": declared.changes,
            "search": sorted(declared.search),
        }


def _text(found: dict[str, Any]) -> str:
    durability = found["durability"]
    if durability == "relaxed":
        durability += ": a crash of the server may take back the last acknowledged changes"
    lines = [
        f"{found['phase']}: {found['store']}",
        f"  provider    {found['provider']}",
        f"  holds       {found['sessions']:,} sessions, {found['messages']:,} messages",
        f"  durability  {durability}",
    ]
    if "synchronous_commit" in found:
        lines.append(f"  commits     synchronous_commit is {found['synchronous_commit']}")
    lines += [f"  changes     {found['changes']}", f"  search      {', '.join(found['search'])}"]
    return "\n".join(lines)
