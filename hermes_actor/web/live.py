"""Live pages: one reader for each store, rendered once, and sent to every page that is open.

The number of pages costs the actor nothing: while there is at least one, one thread looks at the
store once a second, renders what is new into frames of server-sent events, and the same bytes go to
all. While nothing changes, nothing is rendered and nothing is sent. The thread gives way to
writers: see :func:`give_way`.

A page that reads slowly has a queue of its own. When it is full, the page loses frames and is sent
a notice of that; no other page and no reader waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from itertools import islice
from typing import NamedTuple

import anyio
from anyio.abc import TaskGroup

from hermes_actor.web.feed import Feed, Seen
from hermes_actor.web.stores import ShownStore

__all__ = ["LiveStore", "frame"]

_log = logging.getLogger("hermes_actor.web")

TICK_SECONDS = 1.0
"""Time between two looks."""

_NICE = 10
"""Priority of the thread that looks: a tenth of the weight of a writer, and never before one. Not
the least there is: the thread holds the interpreter now and then, for which other pages wait."""

_GRACE_SECONDS = 5.0
"""Time for which the reader outlives the last page: one that is reloaded finds it at work."""

_KEPT_FRAMES = 200
"""Frames for pages that come back after a short loss of their connection."""

_QUEUED_FRAMES = 32
"""Frames that wait for one page: a quarter of a minute."""

_MOST_PAGES = 100
"""Live pages of one store."""

_ALIVE_SECONDS = 15.0
"""Time after which a page without news gets a sign of life, which ends dead connections."""

_ALIVE = b": alive\n\n"


def frame(event: str, data: bytes, commit_no: int | None = None) -> bytes:
    """Return a server-sent event; its id is what a page names when it comes back."""
    lines = [b"id: %d" % commit_no] if commit_no is not None else []
    lines.append(b"event: " + event.encode())
    # A line of data must not end a line of the protocol: CR counts as well.
    lines += [b"data: " + line for line in data.replace(b"\r", b"").split(b"\n")]
    return b"\n".join(lines) + b"\n\n"


def give_way() -> None:
    """Have the calling thread give way to writers on a busy machine, where the system can do that.

    The latency of the slowest hundredth of all writes is that of those which meet a burst of other
    work. A thread, not the process: an actor that a page starts would inherit it for life.
    """
    if sys.platform == "linux":  # elsewhere the number of a thread is not that of a process
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)


class _Page:
    """One open page: the frames that wait for it."""

    def __init__(self) -> None:
        self._frames: deque[bytes] = deque()
        self._news = anyio.Event()
        self._has_ended = False

    def put(self, data: bytes) -> None:
        """Queue a frame. A full queue is emptied: the page then reads the store again."""
        if len(self._frames) >= _QUEUED_FRAMES:
            self._frames.clear()
            data = frame("lost", b"slow")
        self._frames.append(data)
        self._news.set()

    def end(self) -> None:
        """Have :meth:`get` return that there is no more."""
        self._has_ended = True
        self._news.set()

    async def get(self) -> bytes:
        """Return the frames that wait, after a while a sign of life, and nothing at the end."""
        if not self._frames and not self._has_ended:
            with anyio.move_on_after(_ALIVE_SECONDS):
                await self._news.wait()
        self._news = anyio.Event()
        if self._has_ended:
            return b""
        if not self._frames:
            return _ALIVE
        data = b"".join(self._frames)
        self._frames.clear()
        return data


class _Look(NamedTuple):
    """One look at a store, rendered."""

    began_after: int | None
    """The last change that was known before."""
    seen: Seen | None
    parts: dict[str, bytes]
    """HTML by its place on the page: ``figures``, ``log``, ``changes``."""


class LiveStore:
    """The live pages of one store.

    *render* makes HTML of a part of a look: ``figures``, ``log`` or ``changes``.
    """

    def __init__(
        self, store: ShownStore, tasks: TaskGroup, render: Callable[[str, Seen], bytes]
    ) -> None:
        self.store, self._tasks, self._render = store, tasks, render
        self._pages: set[_Page] = set()
        self._feed: Feed | None = None
        self._thread = ThreadPoolExecutor(1, "live", give_way)
        self._is_running = self._has_ended = False
        self._latest: dict[str, bytes] = {}
        """The newest frame of each part that a later one replaces."""
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=_KEPT_FRAMES)
        self._complete_from: int | None = None
        """All changes after this one are in the frames that are kept, or are yet to be seen."""

    @property
    def is_full(self) -> bool:
        """True if no further page is served."""
        return self._has_ended or len(self._pages) >= _MOST_PAGES

    def end(self) -> None:
        """End every page."""
        self._has_ended = True
        for page in tuple(self._pages):
            page.end()

    @asynccontextmanager
    async def page(self, after: int | None) -> AsyncIterator[_Page]:
        """Give the frames for one page; *after* is the last change that it shows.

        ``None`` stands for the newest one there is.
        """
        page = _Page()
        if not self._is_running:
            self._latest.clear()  # of the time before: the page was rendered with newer ones
            if not self._goes_on(after):
                self._feed, self._complete_from = Feed(self.store, after), after
                self._kept.clear()
        self._welcome(page, after)
        self._pages.add(page)
        if not self._is_running:
            self._is_running = True
            self._tasks.start_soon(self._run)
        try:
            yield page
        finally:
            self._pages.discard(page)

    def _goes_on(self, after: int | None) -> bool:
        """Return True if a page that shows *after* needs what followed since the reader has ended.

        To another one it would show again what the page was rendered with.
        """
        first, last = self._complete_from, None if self._feed is None else self._feed.position
        return None not in (first, after, last) and first <= after <= last  # type: ignore[operator]

    def _welcome(self, page: _Page, after: int | None) -> None:
        """Queue what a new page must see first, and what one that comes back has missed."""
        for data in self._latest.values():
            page.put(data)
        if after is None:
            return
        if self._complete_from is not None and after < self._complete_from:
            page.put(frame("lost", b"gap"))
        missed = b"".join(self._frames_after(after))
        if missed:
            page.put(missed)

    def _frames_after(self, after: int) -> list[bytes]:
        """Return the frames that are kept and hold changes after *after*."""
        for place, (last, _) in enumerate(self._kept):
            # On a server changes come in the order of transactions, whose numbers may go back.
            if last == after:
                return [data for _, data in islice(self._kept, place + 1, None)]
        return [data for last, data in self._kept if last > after]

    async def _run(self) -> None:
        feed = self._feed
        assert feed is not None
        left, loop = _GRACE_SECONDS, asyncio.get_running_loop()
        try:
            while left > 0:
                try:
                    look = await loop.run_in_executor(self._thread, self._look, feed)
                except Exception:
                    # One bad look ends alone; the next one begins where it did.
                    _log.exception("a look at %s failed", self.store.address)
                else:
                    self._publish(look)
                left = _GRACE_SECONDS if self._pages else left - TICK_SECONDS
                await anyio.sleep(TICK_SECONDS)
        finally:
            self._is_running = False
            # In its own thread: a look that is under way ends first.
            self._thread.submit(feed.close)

    def _look(self, feed: Feed) -> _Look:
        """Look once and render what is new. Runs in its own thread, and changes nothing here."""
        before = feed.begin()
        try:
            seen = feed.look()
            if seen is None:
                return _Look(before, None, {})
            return _Look(before, seen, {name: self._render(name, seen) for name in seen.parts})
        except BaseException:
            feed.begin_again(before)
            raise

    def _publish(self, look: _Look) -> None:
        """Send what was seen to every page, and keep it for those that come."""
        if self._complete_from is None:
            self._complete_from = look.began_after
        for name, html in look.parts.items():
            assert look.seen is not None
            if name == "changes":
                data = frame(name, html, look.seen.last)
                self._keep(look.seen, data)
            else:
                data = self._latest[name] = frame(name, html)
            self._send(data)

    def _send(self, data: bytes) -> None:
        for page in self._pages:
            page.put(data)

    def _keep(self, seen: Seen, data: bytes) -> None:
        if seen.last is None:
            return
        if seen.gap:
            self._kept.clear()
            self._complete_from = seen.last
        if len(self._kept) == self._kept.maxlen:
            self._complete_from = self._kept[0][0]
        self._kept.append((seen.last, data))
