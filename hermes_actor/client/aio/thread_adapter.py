"""Blocking ports used from an event loop, through worker threads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio
import anyio.to_thread

if TYPE_CHECKING:
    from hermes_actor.client.interfaces import Answer, AsyncAnswer, ChangeStream, WriterPort
    from hermes_protocol.messages import Changed, Gap
    from hermes_protocol.operations import Operation

__all__ = ["ThreadChangeStream", "ThreadPort"]

_Run: TypeAlias = Callable[[Callable[[], Any]], Awaitable[Any]]


class ThreadPort:
    """Sends through *run*, which calls a function in a worker thread."""

    def __init__(self, port: WriterPort, run: _Run) -> None:
        self._port = port
        self._run = run

    async def send(
        self, operations: Sequence[Operation[Any]], timeout: float
    ) -> Sequence[AsyncAnswer]:
        """Send several operations, in order, without waiting for their answers."""
        answers = await self._run(partial(self._port.send, operations, timeout))
        return [_ThreadAnswer(answer, self._run) for answer in answers]


class _ThreadAnswer:
    def __init__(self, answer: Answer, run: _Run) -> None:
        self._answer = answer
        self._run = run
        self.done = answer.done

    async def wait(self) -> Any:
        # A thread only if there is something to wait for.
        if self._answer.done():
            return self._answer.result()
        return await self._run(self._answer.result)


class ThreadChangeStream:
    """Waits in a thread of its own, and takes in the event loop: nothing is lost by cancelling."""

    def __init__(self, stream: ChangeStream) -> None:
        self._stream = stream
        # Of its own: a wait without end would keep a place of the limiter that the program shares.
        self._limiter = anyio.CapacityLimiter(1)

    def take(self) -> Changed | Gap | None:
        """Return the next change, if it is there. Raises :class:`Closed` after the end."""
        return self._stream.take()

    async def wait(self, seconds: float | None) -> None:
        """Wait until there may be something to take, or the time is over."""
        with anyio.move_on_after(seconds):
            try:
                # Abandoned, because a thread cannot be cancelled; woken below, it ends by itself
                # and has taken nothing.
                await anyio.to_thread.run_sync(
                    self._stream.wait, None, abandon_on_cancel=True, limiter=self._limiter
                )
            finally:
                self._stream.wake()  # the thread that is left alone ends

    def close(self) -> None:
        """End; a task in :meth:`wait` is woken."""
        self._stream.close()
