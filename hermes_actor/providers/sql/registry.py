"""Registries of a server: functions that apply operations, and functions that answer queries.

All functions take a :class:`ServerConnection` inside an open transaction, and no clock but what the
operation carries. The counterparts for files are in ``hermes_actor/store``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from hermes_protocol.operations import Operation

if TYPE_CHECKING:
    from hermes_actor.providers.sql.connection import ServerConnection
    from hermes_actor.store.queries import Query

__all__ = ["ANSWER", "APPLY", "answers", "applies"]

P = ParamSpec("P")
R = TypeVar("R")
O = TypeVar("O", bound=Operation[Any])  # noqa: E741

APPLY: dict[type[Operation[Any]], Callable[[ServerConnection, Any], Any]] = {}
ANSWER: dict[Query[..., Any], Callable[..., Any]] = {}


def applies(
    kind: type[O],
) -> Callable[[Callable[[ServerConnection, O], R]], Callable[[ServerConnection, O], R]]:
    """Register the decorated function as the one that applies operations of *kind*."""

    def register(
        function: Callable[[ServerConnection, O], R],
    ) -> Callable[[ServerConnection, O], R]:
        assert kind not in APPLY, f"{kind.__name__} is applied twice"
        APPLY[kind] = function
        return function

    return register


def answers(
    query: Query[P, R],
) -> Callable[
    [Callable[Concatenate[ServerConnection, P], R]], Callable[Concatenate[ServerConnection, P], R]
]:
    """Register the decorated function as the one that answers *query* from a server."""

    def register(
        function: Callable[Concatenate[ServerConnection, P], R],
    ) -> Callable[Concatenate[ServerConnection, P], R]:
        assert query not in ANSWER, f"the query of {function.__name__} is answered twice"
        ANSWER[query] = function
        return function

    return register
