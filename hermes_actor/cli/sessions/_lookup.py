"""Lookup of the session that an ID argument means."""

from __future__ import annotations

from hermes_actor.cli.command_store import CommandStore
from hermes_actor.cli.errors import fail

__all__ = ["resolve_id"]


def resolve_id(store: CommandStore, given: str) -> str:
    """The id that *given* means: exact, else the only one that begins so. Refuses otherwise."""
    found = store.resolve_session_id(given) if given else None
    if found is None:
        fail(f"Session '{given}' not found.", prefix="")
    return found
