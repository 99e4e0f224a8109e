"""An action: a name, its parameters, what it would do, and doing it.

One definition serves the form that asks for confirmation, the call of the JSON API, and its
description.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from hermes_actor.errors import NotFound
from hermes_actor.store.rows import Row
from hermes_actor.web.parameters import Parameter, Values
from hermes_actor.web.stores import ShownStore, read_only_refusal
from hermes_protocol.features import SESSIONS

__all__ = ["Action", "Preview", "isolated", "perform", "previewed"]

_DIRECTIONS = dict.fromkeys(
    [*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C]
)
"""Characters that turn the text around them."""


class Preview(NamedTuple):
    """A question before an action, and what it concerns."""

    question: str
    items: tuple[str, ...] = ()
    total: int = 0
    """Number of all of them; *items* are the first."""


class Action(NamedTuple):
    """One change that a person confirms."""

    name: str
    title: str
    words: str
    """Description for people and for OpenAPI."""
    preview: Callable[[ShownStore, Values], Preview]
    run: Callable[[ShownStore, Values], Row]
    """Makes the change and returns its result, with ``text`` for people."""
    lands: Callable[[Values], str]
    """Returns the page that shows the effect, below the address of the store."""
    parameters: tuple[Parameter, ...] = ()
    kind: str | None = SESSIONS
    """Kind of the stores that have it; ``None``: all."""
    is_destructive: bool = False


def isolated(text: str) -> str:
    """Return a text of a store that leaves the direction of the sentence around it as it is.

    A title could turn a question around, so that it seems to ask about something else.
    """
    return f"\N{FIRST STRONG ISOLATE}{text.translate(_DIRECTIONS)}\N{POP DIRECTIONAL ISOLATE}"


def previewed(action: Action, store: ShownStore, values: Values) -> Preview:
    """Return what *action* would do. Raises :class:`NotFound` for a store of another kind."""
    if action.kind not in (None, store.kind):
        raise NotFound(f"{store.address} is of kind {store.kind}: it has no {action.name}")
    return action.preview(store, values)


def perform(action: Action, store: ShownStore, values: Values) -> Row:
    """Carry *action* out. Raises :class:`NotAllowed` in read-only mode, before anything is read."""
    if store.read_only:
        raise read_only_refusal()
    if action.kind not in (None, store.kind):
        raise NotFound(f"{store.address} is of kind {store.kind}: it has no {action.name}")
    return action.run(store, values)
