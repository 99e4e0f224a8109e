"""A view: a name, its parameters, and the function that reads it from a store.

One read serves both the page, which a template makes of it, and the JSON API.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from hermes_actor.store.rows import Row
from hermes_actor.web.parameters import Parameter
from hermes_actor.web.stores import ShownStore
from hermes_protocol.features import SESSIONS

__all__ = ["View"]


class View(NamedTuple):
    """One thing to look at."""

    name: str
    """Last part of the address, and name of the template."""
    title: str
    words: str
    """Description for people and for OpenAPI."""
    read: Callable[[ShownStore, dict[str, Any]], Row]
    parameters: tuple[Parameter, ...] = ()
    kind: str | None = SESSIONS
    """Kind of the stores that have it; ``None``: all."""
    in_menu: bool = True
