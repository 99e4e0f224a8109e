"""``hermes-actor sandboxes``: execution environments of an agent."""

from __future__ import annotations

import click

from hermes_actor.cli.agents._commands import Listing, add_list, add_show

__all__ = ["sandboxes"]


@click.group()
def sandboxes() -> None:
    """Look at the sandboxes of an agent.

    \b
    Examples:
      hermes-actor sandboxes list --agent main
      hermes-actor sandboxes list --agent main --json
    """


_LISTING = Listing(
    "sandboxes", "sandbox", ("id", "alias", "type", "status", "external_id", "last_seen_at"),
    lambda store: store.sandboxes.list(), lambda store, name: store.sandboxes.get(name),
)  # fmt: skip
add_list(sandboxes, _LISTING)
add_show(sandboxes, _LISTING)
