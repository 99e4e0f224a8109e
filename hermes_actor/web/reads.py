"""Reads of pages: few at a time, few that wait, and an end for each.

A page that reads without an end would keep its place for ever, and its snapshot keeps the WAL from
being emptied. So the statement of SQLite that a page runs at its deadline is interrupted; on a
server each statement is limited. Changes have no such end: they are made, or were never begun.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import anyio

from hermes_actor.agent_store.ports import FilePort
from hermes_actor.agent_store.store import AgentStore
from hermes_actor.client.reader import Reader
from hermes_actor.errors import Busy, DeadlineExceeded
from hermes_actor.paths import StorePaths
from hermes_actor.sqlite import Connection, primary_code, sqlite3

__all__ = ["READS", "READ_SECONDS", "AgentReads", "Slots", "TimedReader", "check_time", "time_left"]

R = TypeVar("R")

READS = 4
"""Reads of one store at a time: the others wait, so that pages leave the disk to writers."""

READ_SECONDS = 10.0
"""Longest read of a page. A page over 1.5 million messages takes a fiftieth of it."""

WAITING = 16
"""Reads of one store that wait; further ones are refused at once, and may be tried again."""

_WAIT_SECONDS = 10.0
"""Longest wait of a page for its turn to read."""

_STEPS = 10_000
"""Steps of a statement, a few milliseconds, between two looks at the clock."""

_deadline: ContextVar[float | None] = ContextVar("deadline", default=None)
"""Time of ``time.monotonic`` at which the read of this thread must end."""


def time_left(otherwise: float) -> float:
    """Return the seconds that the read of this thread has left; *otherwise* outside of one."""
    deadline = _deadline.get()
    return otherwise if deadline is None else max(0.0, deadline - time.monotonic())


def check_time() -> None:
    """Raise :class:`DeadlineExceeded` if the read of this thread has no time left."""
    if time_left(1.0) <= 0:
        raise DeadlineExceeded("the read of a page has no time left")


class Slots:
    """The places for reads, or for changes, of one store; *address* is how errors name it."""

    def __init__(self, address: str, places: int = READS) -> None:
        self._address, self._places = address, places
        self._free = anyio.Semaphore(places)
        self._waiting = 0

    async def read(self, function: Callable[..., R], *arguments: Any) -> R:
        """Return ``function(*arguments)``, run in a thread, by :data:`READ_SECONDS`.

        Raises:
            Busy: too many wait, or the turn of this one has not come.
            DeadlineExceeded: it took longer, and was ended.
        """
        async with self._slot():
            deadline = time.monotonic() + READ_SECONDS
            mark = _deadline.set(deadline)
            try:
                return await anyio.to_thread.run_sync(function, *arguments)
            except DeadlineExceeded as error:
                if time.monotonic() < deadline:
                    raise
                raise DeadlineExceeded(
                    f"reading {self._address} took longer than {READ_SECONDS:g} s and was ended;"
                    " ask for less: fewer days, one source, rarer words"
                ) from error
            finally:
                _deadline.reset(mark)

    async def change(self, function: Callable[..., R], *arguments: Any) -> R:
        """Return ``function(*arguments)``, run in a thread until it ends. Raises :class:`Busy`."""
        async with self._slot():
            return await anyio.to_thread.run_sync(function, *arguments)

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        try:
            self._free.acquire_nowait()
        except anyio.WouldBlock:
            await self._wait()
        try:
            yield
        finally:
            self._free.release()

    async def _wait(self) -> None:
        if self._waiting >= WAITING:
            raise Busy(
                f"{self._places} pages are reading or changing {self._address}, and {WAITING} wait;"
                " try again in a moment"
            )
        self._waiting += 1
        try:
            with anyio.fail_after(_WAIT_SECONDS):
                await self._free.acquire()
        except TimeoutError:
            raise Busy(
                f"{self._places} pages have been reading or changing {self._address} for"
                f" {_WAIT_SECONDS:g} s; try again in a moment"
            ) from None
        finally:
            self._waiting -= 1


class TimedReader(Reader):
    """A reader whose statements are interrupted at the deadline of the page."""

    def query(self, function: Callable[..., R], *arguments: Any) -> R:
        """Return what :class:`Reader` does. Raises :class:`DeadlineExceeded` if it takes longer."""
        deadline = _deadline.get()
        if deadline is None:
            return super().query(function, *arguments)
        check_time()
        result: R = super().query(_by_deadline, deadline, function, arguments)
        return result


def _by_deadline(
    conn: Connection, deadline: float, function: Callable[..., R], arguments: tuple[Any, ...]
) -> R:
    # A true result interrupts the statement.
    conn.set_progress_handler(lambda: time.monotonic() >= deadline, _STEPS)
    try:
        return function(conn, *arguments)
    except sqlite3.OperationalError as error:
        if primary_code(error) != sqlite3.SQLITE_INTERRUPT:
            raise
        raise DeadlineExceeded("the statement was interrupted") from error
    finally:
        with contextlib.suppress(sqlite3.Error):
            conn.set_progress_handler(None, 0)


class _TimedFilePort(FilePort):
    """A file of agents, read until the deadline of the page."""

    def __init__(self, paths: StorePaths, timeout: float) -> None:
        super().__init__(paths.db, "on demand", timeout)
        self._reader = TimedReader(paths, timeout)


class AgentReads(AgentStore):
    """A store of agents for pages. On a server each statement has the time of a page."""

    def __init__(self, target: StorePaths | str) -> None:
        if isinstance(target, StorePaths):
            super().__init__(None, target.db, mode="on demand")
            self.port.close()
            self.port = _TimedFilePort(target, self.timeout)
        else:
            super().__init__(None, target, mode="on demand", timeout=READ_SECONDS)

    def ask(self, question: Callable[..., R], *args: Any, **kwargs: Any) -> R:
        """Return what :class:`AgentStore` does. Raises :class:`DeadlineExceeded` if it is late."""
        check_time()
        return super().ask(question, *args, **kwargs)
