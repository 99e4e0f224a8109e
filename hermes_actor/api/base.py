"""The ground of all methods: changes go to a writer port, queries to a reader port."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, ParamSpec, SupportsInt, TypedDict, TypeVar

from hermes_actor.errors import Closed
from hermes_actor.store.queries import Query
from hermes_actor.store.surrogates import storable, without_surrogates
from hermes_protocol.operations import Operation

if TYPE_CHECKING:
    from hermes_actor.client.interfaces import ReaderPort, WriterPort

__all__ = ["Fenced", "Methods", "fenced", "token_of"]

P = ParamSpec("P")
R = TypeVar("R")


def token_of(turn: SupportsInt | None) -> int:
    """Return the token of a turn; 0 for a change without one."""
    return 0 if turn is None else int(turn)


class Fenced(TypedDict, total=False):
    """The fields of a change that is made under a turn, and carries no time of its own."""

    turn: int
    at: float


def fenced(turn: SupportsInt | None) -> Fenced:
    """Return the token of a turn and the present time; nothing for a change without a turn."""
    token = token_of(turn)
    return {"turn": token, "at": time.time()} if token else {}


class Methods:
    """Base of the methods by subject: they need two ports and a timeout, and nothing else."""

    _port: WriterPort | None
    """The way to the writer; ``None`` after :meth:`close`."""
    _queries: ReaderPort
    _timeout: float

    def _submit(self, operation: Operation[R]) -> R:
        """Have *operation* applied; returns its result once it is durable.

        Raises:
            Closed: the store was closed.
        """
        port = self._opened_port()
        try:
            return port.submit(operation, self._timeout)
        except UnicodeEncodeError as error:
            return port.submit(storable(operation, error), self._timeout)

    def _query(self, query: Query[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Answer *query* from a state that has every change acknowledged before the call.

        Lone surrogates in the arguments are replaced as they are in changes: no text holds one.

        Raises:
            Closed: the store was closed.
        """
        try:
            return self._queries.query(query, *args, **kwargs)
        except UnicodeEncodeError:
            clean: Any = map(without_surrogates, args)
            return self._queries.query(query, *clean, **kwargs)

    def _opened_port(self) -> WriterPort:
        if self._port is None:
            raise Closed("this SessionDB is closed")
        return self._port
