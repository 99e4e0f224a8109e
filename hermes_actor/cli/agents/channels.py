"""``hermes-actor channels``: channels of an agent."""

from __future__ import annotations

import click

from hermes_actor.cli.agents._commands import Listing, add_list, add_show

__all__ = ["channels"]


@click.group()
def channels() -> None:
    """Look at the channels of an agent; tokens are never shown.

    \b
    Examples:
      hermes-actor channels list --agent main
      hermes-actor channels list --agent main --json
    """


_LISTING = Listing(
    "channels", "channel", ("id", "kind", "channel_type", "enabled", "token_prefix", "last_error"),
    lambda store: store.channels.list(), lambda store, name: store.channels.get(name),
)  # fmt: skip
add_list(channels, _LISTING)
add_show(channels, _LISTING)
