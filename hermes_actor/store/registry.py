"""Registry of a kind of store: functions that apply operations, and functions that answer queries.

An applying function takes a connection inside an open transaction and an operation. It is a pure
function of file and operation: no clock, no randomness, no file system, no transaction control.
So a batch of operations can share one transaction, and a replay gives the same result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from hermes_actor.sqlite import Connection
from hermes_actor.store.queries import Query
from hermes_protocol.operations import Operation

__all__ = ["ANSWER", "APPLY", "Registry", "answers", "applies"]

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")
O = TypeVar("O", bound=Operation[Any])  # noqa: E741


class Registry(Generic[C]):
    """The functions of one kind of store, on connections of type *C*."""

    def __init__(self) -> None:
        self.apply: dict[type[Operation[Any]], Callable[[C, Any], Any]] = {}
        self.answer: dict[Query[..., Any], Callable[..., Any]] = {}

    def applies(self, kind: type[O]) -> Callable[[Callable[[C, O], R]], Callable[[C, O], R]]:
        """Register the decorated function as the one that applies operations of *kind*."""

        def register(function: Callable[[C, O], R]) -> Callable[[C, O], R]:
            assert kind not in self.apply, f"{kind.__name__} is applied twice"
            self.apply[kind] = function
            return function

        return register

    def answers(
        self, query: Query[P, R]
    ) -> Callable[[Callable[Concatenate[C, P], R]], Callable[Concatenate[C, P], R]]:
        """Register the decorated function as the one that answers *query*."""

        def register(function: Callable[Concatenate[C, P], R]) -> Callable[Concatenate[C, P], R]:
            assert query not in self.answer, f"the query of {function.__name__} is answered twice"
            self.answer[query] = function
            return function

        return register


_files: Registry[Connection] = Registry()
APPLY, ANSWER = _files.apply, _files.answer
applies, answers = _files.applies, _files.answers
