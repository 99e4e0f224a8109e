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
from hermes_actor.web import live as live_pages
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
        live._feed, live._complete_from, live._is_running = Feed(store, 10), 10, True
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


def rendered(name, seen):
    if name != "changes":
        return name.encode()
    return "".join(f"<li>{one['session_id']}</li>" for one in seen.changes).encode()


async def read_until(page, text):
    """What a page is sent until *text* is in it."""
    data = b""
    while text not in data:
        data += await page.get()
    return data


def with_live(home, store, steps, render=rendered):
    """Run *steps* with live pages and a writer."""

    async def main():
        with anyio.fail_after(SECONDS):
            async with anyio.create_task_group() as tasks:
                await steps(LiveStore(store, tasks, render), db)
                tasks.cancel_scope.cancel()

    with SessionDB(home / "state.db") as db:
        db.set_meta("a", "1")
        anyio.run(main)


def test_a_change_between_a_page_and_its_first_look_is_shown(home, store):
    async def steps(live, db):
        newest = store.newest_change()
        db.create_session("between", "cli")
        async with live.page(newest) as page:
            assert b"lost" not in await read_until(page, b"<li>between</li>")

    with_live(home, store, steps)


def test_a_stream_replaced_before_the_first_change_loses_nothing(home, store):
    """As after a look that has failed, or when the last page has been gone for a while."""
    with SessionDB(home / "state.db") as db:
        db.set_meta("a", "1")
        feed = Feed(store, None)
        try:
            look_until(feed, lambda seen: seen.figures)
            feed.close()
            db.create_session("meanwhile", "cli")
            seen = look_until(feed, lambda seen: seen.changes)
            assert (seen.changes[0]["session_id"], seen.gap) == ("meanwhile", False)
        finally:
            feed.close()


def test_the_first_changes_of_an_actor_that_a_page_waits_for_are_shown(home, store):
    feed = Feed(store, None)
    try:
        assert look_until(feed, lambda seen: seen.why).why == "not running"
        with SessionDB(home / "state.db") as db:
            db.create_session("first", "cli")
            db.create_session("second", "cli")
            seen = look_until(feed, lambda seen: seen.changes)
            assert [one["session_id"] for one in seen.changes][:1] == ["first"]
            assert not seen.gap
    finally:
        feed.close()


def test_the_last_changes_of_an_actor_that_has_ended_are_shown(home, store):
    with SessionDB(home / "state.db") as db:
        db.set_meta("a", "1")
        feed = Feed(store, None)
        try:
            look_until(feed, lambda seen: seen.figures)
            db.create_session("followed", "cli")
            look_until(feed, lambda seen: seen.changes)
            db.create_session("last", "cli")
            stop_actor(home / "state.db")
            seen = look_until(feed, lambda seen: seen.changes)
            assert seen.changes[-1]["session_id"] == "last"
            assert lock_holder(resolve_paths(home / "state.db")) is None
        finally:
            feed.close()


def test_changes_of_a_look_that_has_failed_are_shown_by_the_next(home, store):
    failed = threading.Event()

    def render(name, seen):
        if name == "changes" and not failed.is_set():
            failed.set()
            raise RuntimeError("a fault of a template")
        return rendered(name, seen)

    async def steps(live, db):
        async with live.page(store.newest_change()) as page:
            db.create_session("twice", "cli")
            assert b"lost" not in await read_until(page, b"<li>twice</li>")
        assert failed.is_set()

    with_live(home, store, steps, render)


def test_pages_with_and_without_a_position_mix(home, store):
    """A script that names no position, then pages with one: nothing is said to be missed."""

    async def steps(live, db):
        async with live.page(None) as script:
            await script.get()
            newest = store.newest_change()
            async with live.page(newest) as page:
                db.create_session("mixed", "cli")
                for one in (script, page):
                    assert b"lost" not in await read_until(one, b"<li>mixed</li>")
                async with live.page(newest) as late:
                    got = await read_until(late, b"<li>mixed</li>")
                    assert b"lost" not in got
                    assert got.count(b"<li>mixed</li>") == 1

    with_live(home, store, steps)


def test_the_first_page_after_a_pause_is_shown_nothing_that_it_was_rendered_with(
    home, store, monkeypatch
):
    monkeypatch.setattr(live_pages, "_GRACE_SECONDS", 0.1)

    async def steps(live, db):
        # The block of the tasks ends when the reader does.
        async with (
            anyio.create_task_group() as live._tasks,
            live.page(store.newest_change()) as page,
        ):
            db.create_session("seen", "cli")
            await read_until(page, b"<li>seen</li>")
            seen = live._feed.position
        db.create_session("unseen", "cli")
        newest = store.newest_change()
        async with anyio.create_task_group() as live._tasks, live.page(newest) as page:
            db.create_session("fresh", "cli")
            got = await read_until(page, b"<li>fresh</li>")
            assert b"lost" not in got
            assert b"unseen" not in got
        # One from before is given the changes that the actor has kept.
        async with anyio.create_task_group() as live._tasks, live.page(seen) as page:
            got = await read_until(page, b"<li>fresh</li>")
            assert b"lost" not in got
            assert b"<li>unseen</li>" in got

    with_live(home, store, steps)
