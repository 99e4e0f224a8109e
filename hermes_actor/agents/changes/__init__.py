"""The changes of an agent store, each written once for every provider."""

from __future__ import annotations

from typing import Any, TypeVar

# Imported for their registrations.
from hermes_actor.agents.changes import agents, general, schedules, sessions, users
from hermes_actor.agents.changes.registry import APPLY
from hermes_actor.agents.rows import Rows
from hermes_actor.errors import NotAllowed
from hermes_protocol.operations import Operation

__all__ = ["apply"]

_SUBJECTS = (agents, general, schedules, sessions, users)

R = TypeVar("R")


def apply(rows: Rows, operation: Operation[R]) -> R:
    """Apply *operation* inside the open transaction and return its result.

    Raises a :class:`RequestError`, or the error of the provider for a race that its constraints
    have decided.
    """
    function = APPLY.get(type(operation))
    if function is None:
        raise NotAllowed(f"{type(operation).__name__} is not a change of an agent store")
    result: Any = function(rows, operation)
    return result  # type: ignore[no-any-return]
