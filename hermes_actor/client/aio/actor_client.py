"""The asynchronous client: the port of an AsyncSessionDB to the actor of its file."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec
from anyio.lowlevel import RunVar

import hermes_protocol.messages as wire
from hermes_actor import limits
from hermes_actor.client.aio.connection import AsyncActorConnection
from hermes_actor.client.exchange import Sending, actor_timeout
from hermes_actor.client.protocol import encode, stages
from hermes_actor.errors import HermesActorError
from hermes_actor.system import fork
from hermes_protocol.client import PendingReply, decode_result
from hermes_protocol.operations import result_type

if TYPE_CHECKING:
    from pathlib import Path

    from hermes_actor.paths import StorePaths
    from hermes_protocol.operations import Operation

__all__ = ["AsyncActorClient", "AsyncAnswer", "acquire", "release"]

R = TypeVar("R")


class AsyncActorClient:
    """The client of one actor, for all tasks of an event loop. Get it with :func:`acquire`.

    Belongs to the event loop in which it is used.
    """

    def __init__(self, paths: StorePaths) -> None:
        self.paths = paths
        self._connection = AsyncActorConnection(paths)
        fork.notify(self)

    async def submit(self, operation: Operation[R], timeout: float) -> R:
        """Have *operation* applied; its result once it is committed and synced.

        When it is cancelled before anything was sent, nothing happens. Later, the change is made
        and its result discarded.
        """
        connection, deadline = self._connection, time.monotonic() + timeout
        # Before anything is awaited: what no actor takes is refused without starting one.
        whole = encode(operation)
        steps: list[PendingReply] = []
        try:
            await connection.ensure_connected(deadline)
            await self._number(operation, whole, steps, deadline)
            connection.flush()
            result = await connection.wait(steps)
        except BaseException:
            connection.withdraw(steps)  # what has not left never will
            raise
        return cast("R", decode_result(result, result_type(type(operation))))

    async def send(self, operations: Sequence[Operation[Any]], timeout: float) -> list[AsyncAnswer]:
        """Send several operations, in order, without waiting for their answers.

        Waits for room in the window of the actor. What one of several concurrent callers sends
        may come between the operations of another. When time is over half-way, the answers to
        those that were not sent carry the error.
        """
        connection, deadline = self._connection, time.monotonic() + timeout
        # All before the first is numbered: one that cannot be encoded stops none half-way.
        encoded = [encode(operation) for operation in operations]
        answers = [AsyncAnswer(connection, result_type(type(one))) for one in operations]
        try:
            await connection.ensure_connected(deadline)
            for operation, whole, answer in zip(operations, encoded, answers, strict=True):
                await self._number(operation, whole, answer.steps, deadline)
                answer.is_whole = True
            connection.flush()
        except BaseException as error:
            some_left = connection.break_off(answers, error)
            # Raised for all of them, it would call those that have left not executed. A
            # cancellation is raised in any case.
            if not some_left or not isinstance(error, HermesActorError):
                raise
        return answers

    async def _number(
        self,
        operation: Operation[Any],
        whole: bytes | None,
        steps: list[PendingReply],
        deadline: float,
    ) -> None:
        """Number an operation, whose bytes are *whole* if it need not go in parts."""
        connection = self._connection
        for step in [whole] if whole is not None else stages(connection.protocol, operation):
            await connection.request(steps, step, deadline)
            # Parts leave while the next ones are made, since the window may have less room than
            # there are parts. A single request is flushed by the caller, together with others.
            if len(steps) > 1:
                connection.flush()

    async def catch_up(self, through: int, timeout: float) -> None:
        """Return when both full-text indexes cover all messages up to *through*."""
        await self._ask(
            lambda ask: wire.CatchUp(ask=ask, through=through, timeout=actor_timeout(timeout)),
            time.monotonic() + timeout,
        )

    async def statistics(self) -> dict[str, Any]:
        """Return the status document. Raises :class:`DeadlineExceeded` if the actor is silent."""
        deadline = time.monotonic() + limits.DEFAULT_TIMEOUT_SECONDS
        status = await self._ask(lambda ask: wire.StatusRequest(ask=ask), deadline)
        document: dict[str, Any] = msgspec.json.decode(status)
        return document

    async def aclose(self) -> None:
        """Send Bye and disconnect. Calls that still wait raise. Calling it again is harmless."""
        self._connection.close()

    def after_fork(self) -> None:
        """Become another client, in a child, with a connection of its own."""
        self._connection.after_fork()

    async def _ask(self, make: Callable[[int], msgspec.Struct], deadline: float) -> bytes:
        """An ask is tried again on a new connection; it changes nothing."""
        connection = self._connection
        while True:
            await connection.ensure_connected(deadline)
            reply = connection.ask(make, deadline)
            try:
                return await connection.wait([reply])
            except ConnectionResetError:
                continue
            finally:
                # A task that was cancelled would leave its entry in the table of asks.
                connection.protocol.abandon(reply)


class AsyncAnswer(Sending):
    """The answer to one operation, when it comes; of a staged one, the first error of its parts."""

    __slots__ = ("_connection", "_kind")

    def __init__(self, connection: AsyncActorConnection, kind: Any) -> None:
        super().__init__()
        self._connection = connection
        self._kind = kind

    async def wait(self) -> Any:
        """Return the result, or raise the error. Cancelling the wait does not cancel the change."""
        if self.error is not None:
            raise self.error
        return decode_result(await self._connection.wait(self.steps), self._kind)


class _Shared:
    """A client and its users. Users that are forgotten without a release do not count."""

    def __init__(self, paths: StorePaths) -> None:
        self.client = AsyncActorClient(paths)
        self.users: weakref.WeakSet[object] = weakref.WeakSet()


_of_loop: RunVar[dict[Path, _Shared]] = RunVar("hermes_actor.client.aio.actor_client")
"""The clients of the running loop, which go with the loop. A client holds nothing that belongs to
the loop while no task waits, so neither keeps the other alive: a program that runs one loop after
the other, or one in each of several threads, leaks nothing."""


def acquire(paths: StorePaths, user: object) -> AsyncActorClient:
    """Return the client of *paths* that this event loop shares. It connects when it is used."""
    # By database, in a variable of the loop: a connection waits with events of one loop, and
    # another loop that used it would never be woken.
    clients = _of_loop.get({})
    shared = clients.get(paths.db)
    if shared is None:
        shared = clients[paths.db] = _Shared(paths)
        _of_loop.set(clients)
    shared.users.add(user)
    return shared.client


async def release(paths: StorePaths, user: object) -> None:
    """End the use of *user* in this event loop; the last one closes the client."""
    clients = _of_loop.get({})
    shared = clients.get(paths.db)
    if shared is not None:
        shared.users.discard(user)
        if not shared.users:
            del clients[paths.db]
            await shared.client.aclose()
