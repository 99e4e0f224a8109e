"""Registries: functions that apply operations, and functions that answer queries.

An applying function takes a connection inside an open transaction and an operation. It is a pure
function of file and operation: no clock, no randomness, no file system, no transaction control.
So a batch of operations can share one transaction, and a replay gives the same result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from hermes_protocol.operations import Operation

if TYPE_CHECKING:
    from hermes_actor.sqlite import Connection
    from hermes_actor.store.queries import Query

__all__ = ["ANSWER", "APPLY", "answers", "applies"]

P = ParamSpec("P")
R = TypeVar("R")
O = TypeVar("O", bound=Operation[Any])  # noqa: E741

APPLY: dict[type[Operation[Any]], Callable[[Connection, Any], Any]] = {}
ANSWER: dict[Query[..., Any], Callable[..., Any]] = {}


def applies(
    kind: type[O],
) -> Callable[[Callable[[Connection, O], R]], Callable[[Connection, O], R]]:
    """Register the decorated function as the one that applies operations of *kind*."""

    def register(function: Callable[[Connection, O], R]) -> Callable[[Connection, O], R]:
        assert kind not in APPLY, f"{kind.__name__} is applied twice"
        APPLY[kind] = function
        return function

    return register


def answers(
    query: Query[P, R],
) -> Callable[[Callable[Concatenate[Connection, P], R]], Callable[Concatenate[Connection, P], R]]:
    """Register the decorated function as the one that answers *query* from a file."""

    def register(
        function: Callable[Concatenate[Connection, P], R],
    ) -> Callable[Concatenate[Connection, P], R]:
        assert query not in ANSWER, f"the query of {function.__name__} is answered twice"
        ANSWER[query] = function
        return function

    return register
