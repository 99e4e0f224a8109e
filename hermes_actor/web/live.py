"""Live pages: one reader for each store, rendered once, and sent to every page that is open.

The number of pages costs the actor nothing: while there is at least one, one task looks at the
store, at most twice a second, renders what is new into one frame of server-sent events, and hands
the same bytes to all. While nothing changes, nothing is rendered and nothing is sent.

A page that reads slowly has a queue of its own. When it is full, the page loses frames and is sent
a notice of that; no other page and no reader waits for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
from anyio.abc import TaskGroup

from hermes_actor.web.feed import Feed, Seen
from hermes_actor.web.stores import ShownStore

__all__ = ["LiveStore", "frame"]

TICK_SECONDS = 0.5
"""Time between two looks for changes; the status is asked for at every second one."""

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


class LiveStore:
    """The live pages of one store.

    *render* makes HTML of the parts of a look: ``figures`` or ``changes``.
    """

    def __init__(
        self, store: ShownStore, tasks: TaskGroup, render: Callable[[str, Seen], bytes]
    ) -> None:
        self._store, self._tasks, self._render = store, tasks, render
        self._pages: set[_Page] = set()
        self._feed: Feed | None = None
        self._is_running = self._has_ended = False
        self._figures = b""
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=_KEPT_FRAMES)
        self._complete_from: int | None = None
        """All changes after this one are in the frames that are kept."""

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
        """Give the frames for one page; *after* is the last change that it has seen."""
        page = _Page()
        self._welcome(page, after)
        self._pages.add(page)
        if not self._is_running:
            self._is_running = True
            self._tasks.start_soon(self._run)
        try:
            yield page
        finally:
            self._pages.discard(page)

    def _welcome(self, page: _Page, after: int | None) -> None:
        """Queue what a new page must see first, and what one that comes back has missed."""
        if self._figures:
            page.put(self._figures)
        if self._feed is None:
            self._feed = Feed(self._store, after)
            self._complete_from = after
        elif after is not None:
            if self._complete_from is None or after < self._complete_from:
                page.put(frame("lost", b"gap"))
            missed = b"".join(data for last, data in self._kept if last > after)
            if missed:
                page.put(missed)

    async def _run(self) -> None:
        assert self._feed is not None
        left, ticks = _GRACE_SECONDS, 0
        try:
            while left > 0:
                with_status = ticks % 2 == 0
                seen = await anyio.to_thread.run_sync(self._look, with_status)
                for data in seen:
                    self._send(data)
                left = _GRACE_SECONDS if self._pages else left - TICK_SECONDS
                ticks += 1
                await anyio.sleep(TICK_SECONDS)
        finally:
            self._is_running = False
            self._feed.close()

    def _send(self, data: bytes) -> None:
        for page in self._pages:
            page.put(data)

    def _look(self, with_status: bool) -> list[bytes]:
        """Look once and return the frames for what is new. Runs in a thread."""
        assert self._feed is not None
        seen = self._feed.look(with_status)
        if seen is None:
            return []
        made = []
        if seen.figures is not None or seen.why:
            self._figures = frame("figures", self._render("figures", seen))
            made.append(self._figures)
        if seen.changes or seen.gap:
            data = frame("changes", self._render("changes", seen), seen.last)
            made.append(data)
            self._keep(seen, data)
        return made

    def _keep(self, seen: Seen, data: bytes) -> None:
        if seen.last is None:
            return
        if seen.gap:
            self._kept.clear()
            self._complete_from = seen.last
        elif self._complete_from is None and seen.changes:
            first = seen.changes[0]["commit_no"]
            self._complete_from = None if first is None else first - seen.unlisted - 1
        if len(self._kept) == self._kept.maxlen:
            self._complete_from = self._kept[0][0]
        self._kept.append((seen.last, data))
