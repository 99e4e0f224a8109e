"""Registry of the functions that apply operations.

An applying function takes a connection inside an open transaction and an operation. It is a pure
function of file and operation: no clock, no randomness, no file system, no transaction control.
So a batch of operations can share one transaction, and a replay gives the same result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from hermes_protocol.operations import Operation

if TYPE_CHECKING:
    from hermes_actor.sqlite import Connection

__all__ = ["APPLY", "applies"]

R = TypeVar("R")
O = TypeVar("O", bound=Operation[Any])  # noqa: E741

APPLY: dict[type[Operation[Any]], Callable[[Connection, Any], Any]] = {}


def applies(
    kind: type[O],
) -> Callable[[Callable[[Connection, O], R]], Callable[[Connection, O], R]]:
    """Register the decorated function as the one that applies operations of *kind*."""

    def register(function: Callable[[Connection, O], R]) -> Callable[[Connection, O], R]:
        assert kind not in APPLY, f"{kind.__name__} is applied twice"
        APPLY[kind] = function
        return function

    return register
