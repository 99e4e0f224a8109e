"""The feed of the live pages in this process: what it starts, shares and survives."""

import sys
import threading
import time

import anyio
import pytest
from support.actors import actor_pid, stop_actor
from support.web import TOKEN

from hermes_actor import SessionDB
from hermes_actor.client.control import request_handoff
from hermes_actor.paths import resolve_paths
from hermes_actor.system.lock_inspection import lock_holder
from hermes_actor.web.feed import Feed, Seen
from hermes_actor.web.live import LiveStore
from hermes_actor.web.security import Access
from hermes_actor.web.site import Site
from hermes_actor.web.stores import Stores

SECONDS = 90


@pytest.fixture
def store(home):
    return next(one for one in Stores(home).all() if one.name == "state.db")


def look_until(feed, is_there):
    """The first look that has what is waited for."""
    deadline = time.monotonic() + SECONDS
    while (seen := feed.look()) is None or not is_there(seen):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return seen


def test_a_look_starts_no_actor(home, store):
    with SessionDB(home / "state.db") as db:
        db.set_meta("a", "1")
    stop_actor(home / "state.db")
    feed = Feed(store, None)
    try:
        for _ in range(3):
            feed.look()
        assert lock_holder(resolve_paths(home / "state.db")) is None
    finally:
        feed.close()


def test_changes_go_on_after_a_handoff(home, store):
    """A subscription that is only asked for what is there would never hear the Welcome."""
    with SessionDB(home / "state.db") as db:
        db.set_meta("a", "1")
        feed = Feed(store, None)
        try:
            look_until(feed, lambda seen: seen.figures)
            for number in range(2):
                done = request_handoff(resolve_paths(home / "state.db"), sys.executable)
                look_until(feed, lambda seen, pid=done["pid"]: seen.figures and
                           seen.figures["pid"] == pid)  # fmt: skip
                db.create_session(f"after{number}", "cli")
                seen = look_until(feed, lambda seen: seen.changes)
                assert seen.changes[-1]["session_id"] == f"after{number}"
                assert not seen.gap
        finally:
            feed.close()


def test_a_page_that_opens_later_is_shown_nothing_old(home, store):
    """The figures that are kept may be of an actor that has ended meanwhile."""
    with SessionDB(home / "state.db") as db:
        db.set_meta("a", "1")
        feed = Feed(store, None)
        look_until(feed, lambda seen: seen.figures)
        feed.close()
        seen = feed.look()
        assert seen.figures["pid"] == actor_pid(home / "state.db")
        feed.close()


def test_one_look_that_fails_ends_alone(home, store, monkeypatch, caplog):
    rendered = threading.Event()

    def render(name, _seen):
        if not rendered.is_set():
            rendered.set()
            raise RuntimeError("a fault of a template")
        return name.encode()

    async def main():
        with anyio.fail_after(SECONDS):
            async with anyio.create_task_group() as tasks:
                live = LiveStore(store, tasks, render)
                async with live.page(None) as page:
                    assert b"figures" in await page.get()
                tasks.cancel_scope.cancel()

    with SessionDB(home / "state.db") as db:
        db.set_meta("a", "1")
        anyio.run(main)
    assert "a fault of a template" in caplog.text


def test_a_page_that_comes_back_is_given_what_it_missed(store):
    """From the frames that are kept; what they do not reach back to is a gap."""

    async def main():
        live = LiveStore(store, None, None)
        live._is_running = True
        async with live.page(10):
            for number in range(11, 15):
                data = b"<li>%d</li>" % number
                live._keep(Seen(None, "", [{"commit_no": number}], 0, False, number), data)
        async with live.page(12) as page:
            assert await page.get() == b"<li>13</li><li>14</li>"
        async with live.page(3) as page:
            assert (await page.get()).startswith(b"event: lost")

    anyio.run(main)


def test_all_pages_of_a_store_have_one_reader(home, store):
    site = Site(Stores(home), Access(TOKEN, frozenset()))

    async def main():
        async with anyio.create_task_group() as tasks:
            site.tasks = tasks
            first = site.live(store)
            assert all(site.live(store) is first for _ in range(10))

    anyio.run(main)
