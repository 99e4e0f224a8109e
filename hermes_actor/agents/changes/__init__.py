"""The changes of an agent store, each written once for every provider."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

# Imported for their registrations.
from hermes_actor.agents.changes import agents, general, schedules, sessions, users
from hermes_actor.agents.changes.keys import check_key
from hermes_actor.agents.changes.registry import APPLY
from hermes_actor.agents.rows import Rows
from hermes_actor.agents.times import is_canonical
from hermes_actor.agents.values import check_text, shown
from hermes_actor.errors import BadValue, NotAllowed
from hermes_protocol.operations import Operation

__all__ = ["apply"]

_SUBJECTS = (agents, general, schedules, sessions, users)

R = TypeVar("R")

_TIMES = ("now", "until", "older_than", "expires_at")
"""Fields of operations that are times."""


def apply(rows: Rows, operation: Operation[R]) -> R:
    """Apply *operation* inside the open transaction and return its result.

    Raises a :class:`RequestError`, or the error of the provider for a race that its constraints
    have decided.
    """
    function = APPLY.get(type(operation))
    if function is None:
        raise NotAllowed(f"{type(operation).__name__} is not a change of an agent store")
    _check(operation)
    key_id = getattr(operation, "key_id", None)
    if key_id is not None:
        check_key(rows, key_id)
    result: Any = function(rows, operation)
    return result  # type: ignore[no-any-return]


@cache
def _allowed(kind: type[Operation[Any]]) -> dict[str, tuple[type, ...]]:
    """Return the types of the fields of an operation; a caller in this process can give others."""
    hints = get_type_hints(kind)
    return {name: tuple(_plain(hints[name])) for name in kind.__struct_fields__}


def _plain(hint: Any) -> Iterator[type]:
    if get_origin(hint) in (Union, UnionType):
        for one in get_args(hint):
            yield from _plain(one)
    elif get_origin(hint) is Literal:
        yield str
    else:
        yield get_origin(hint) or hint


def _check(operation: Operation[Any]) -> None:
    """Raise :class:`BadValue` for fields that no provider can store or compare."""
    for name in operation.__struct_fields__:
        value = getattr(operation, name)
        if not isinstance(value, _allowed(type(operation))[name]):
            raise BadValue(f"{name} cannot be {shown(value)}")
        if not isinstance(value, str):
            continue
        if name in _TIMES and not is_canonical(value):
            raise BadValue(f"{name} is a time such as 2026-01-31T09:00:00.000Z, not {shown(value)}")
        check_text(name, value)
