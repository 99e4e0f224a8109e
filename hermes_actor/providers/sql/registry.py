"""Registry of the functions that apply operations and answer reads on a server.

A question is named by the function of ``hermes_actor/store`` that answers it from a file, so the
methods of a SessionDB ask both kinds of store in the same words. All functions take a
:class:`ServerConnection` inside an open transaction, and no clock but what the operation carries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from hermes_protocol.operations import Operation

if TYPE_CHECKING:
    from hermes_actor.providers.sql.connection import ServerConnection

__all__ = ["ANSWER", "APPLY", "answers", "applies"]

R = TypeVar("R")
O = TypeVar("O", bound=Operation[Any])  # noqa: E741
F = TypeVar("F", bound=Callable[..., Any])

APPLY: dict[type[Operation[Any]], Callable[[ServerConnection, Any], Any]] = {}
ANSWER: dict[Callable[..., Any], Callable[..., Any]] = {}


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


def answers(question: Callable[..., Any]) -> Callable[[F], F]:
    """Register the decorated function as the one that answers *question*."""

    def register(function: F) -> F:
        assert question not in ANSWER, f"{question.__name__} is answered twice"
        ANSWER[question] = function
        return function

    return register
