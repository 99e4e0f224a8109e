"""Live pages: one reader for all, resuming after gaps, and silence while nothing happens."""

import html
import os
import sys
import threading
import time
from pathlib import Path

import anyio
import pytest
from support.actors import actor_pid, paused, stop_actor
from support.web import WebProcess

from hermes_actor import SessionDB
from hermes_actor.client import control
from hermes_actor.client.control import StatusWatch, request_handoff
from hermes_actor.paths import resolve_paths
from hermes_actor.system.lock_inspection import lock_holder
from hermes_actor.web.feed import Feed
from hermes_actor.web.live import LiveStore, frame
from hermes_actor.web.stores import Stores

SECONDS = 90
"""Longest wait for something that is about to happen."""


class Events:
    """The events of a page as a browser reads them, in a thread of their own."""

    def __init__(self, client, after=None, path="/s/state.db/events"):
        headers = {} if after is None else {"Last-Event-ID": str(after)}
        self.found, self.last = [], after
        self._changed = threading.Condition()
        self._stream = client.stream("GET", path, headers=headers, timeout=SECONDS)
        self._answer = self._stream.__enter__()
        assert self._answer.status_code == 200
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self):
        name, data = "", []
        try:
            for line in self._answer.iter_lines():
                if line.startswith("event: "):
                    name = line[7:]
                elif line.startswith("data: "):
                    data.append(line[6:])
                elif line.startswith("id: "):
                    self.last = int(line[4:])
                elif not line and name:
                    with self._changed:
                        self.found.append((name, "\n".join(data)))
                        self._changed.notify_all()
                    name, data = "", []
        except Exception:
            pass  # closed by the test, or by the end of the server

    def wait(self, name, text):
        """Wait for an event with *text* in it."""

        def there():
            return any(one == name and text in data for one, data in self.found)

        with self._changed:
            assert self._changed.wait_for(there, SECONDS), self.found

    def close(self):
        self._answer.close()
        self._thread.join(SECONDS)
        assert not self._thread.is_alive()


@pytest.fixture
def web(home):
    with WebProcess(home) as web:
        yield web


def test_changes_of_any_process_arrive(web, home):
    with SessionDB(home / "state.db") as db, web.client() as client:
        events = Events(client)
        events.wait("figures", "serving")
        db.create_session("fresh", "cli")
        events.wait("changes", "session?id=fresh")
        events.close()


def events_of(page):
    """The address that a page follows."""
    return html.unescape(page.partition('data-events="')[2].partition('"')[0])


def test_what_is_committed_after_a_page_was_rendered_is_shown(web, home):
    """Whether an actor runs then or not."""
    with SessionDB(home / "state.db") as db, web.client() as client:
        for step in ("running", "stopped"):
            page = client.get("/s/state.db/actor").text
            for number in range(3):
                db.create_session(f"{step}{number}", "cli")
            events = Events(client, path=events_of(page))
            for number in range(3):
                events.wait("changes", f"{step}{number}")
            assert not any(name == "lost" for name, _ in events.found)
            events.close()
            stop_actor(home / "state.db")


def test_the_log_is_followed(web, home):
    with SessionDB(home / "state.db") as db, web.client() as client:
        db.set_meta("a", "1")
        page = client.get("/s/state.db/actor").text
        events = Events(client, path=events_of(page))
        events.wait("figures", "serving")
        line = f"handing over to {sys.executable}"
        assert line not in page
        request_handoff(resolve_paths(home / "state.db"), sys.executable)
        events.wait("log", "hand")
        events.close()


def test_a_page_that_comes_back_misses_nothing(web, home):
    with SessionDB(home / "state.db") as db, web.client() as client:
        first = Events(client)
        first.wait("figures", "serving")
        db.create_session("one", "cli")
        first.wait("changes", "one")
        first.close()
        for number in range(5):
            db.create_session(f"missed{number}", "cli")
        second = Events(client, after=first.last)
        for number in range(5):
            second.wait("changes", f"missed{number}")
        assert not any(name == "lost" for name, _ in second.found)
        second.close()


def test_a_page_from_before_the_server_is_brought_up_to_date(home):
    with SessionDB(home / "state.db") as db:
        with WebProcess(home) as web, web.client() as client:
            before = Events(client)
            before.wait("figures", "serving")
            db.create_session("one", "cli")
            before.wait("changes", "one")
            before.close()
        db.create_session("two", "cli")
        with WebProcess(home) as web, web.client() as client:
            after = Events(client, after=before.last)
            after.wait("changes", "two")
            after.close()


def test_a_handoff_is_seen_and_changes_go_on(web, home):
    with SessionDB(home / "state.db") as db, web.client() as client:
        db.set_meta("a", "1")
        events = Events(client)
        events.wait("figures", f"pid {actor_pid(home / 'state.db')}")
        headers = {"Authorization": f"Bearer {web.token}"}
        done = client.post(
            "/api/stores/state.db/do/handoff", json={"confirm": True}, headers=headers
        )
        assert done.status_code == 200, done.text
        events.wait("figures", f"pid {done.json()['pid']}")
        db.create_session("afterwards", "cli")
        events.wait("changes", "afterwards")
        events.close()


def test_an_open_page_keeps_no_actor_alive_and_starts_none(web, home):
    with web.client() as client:
        with SessionDB(home / "state.db") as db:
            db.set_meta("a", "1")
            events = Events(client)
            events.wait("figures", "serving")
        stop_actor(home / "state.db")
        events.wait("figures", "not running")
        assert lock_holder(resolve_paths(home / "state.db")) is None
        with SessionDB(home / "state.db") as db:
            db.create_session("again", "cli")
            events.wait("changes", "again")
        events.close()


def store_of(home):
    return next(one for one in Stores(home).all() if one.name == "state.db")


def test_nothing_is_rendered_while_nothing_changes(home):
    with SessionDB(home / "state.db") as db:
        db.set_meta("a", "1")
        feed = Feed(store_of(home), None)
        try:
            deadline = time.monotonic() + SECONDS
            # The actor comes to rest: index, checkpoint.
            while [feed.look() for _ in range(5)] != [None] * 5:
                assert time.monotonic() < deadline
            db.set_meta("a", "2")
            seen = feed.look()
            while seen is None or not seen.changes:
                assert time.monotonic() < deadline
                seen = feed.look()
            assert seen.changes[-1]["op"] == "meta.set"
        finally:
            feed.close()


def test_pages_share_one_reader(home):
    """Ten pages: one connection that follows, and one rendering of each change."""
    rendered, has_begun, loop = [], anyio.Event(), []

    def render(name, seen):
        rendered.append((name, len(seen.changes)))
        # The look before has begun to follow.
        anyio.from_thread.run_sync(has_begun.set, token=loop[0])
        return b"<li>change</li>"

    async def main():
        loop.append(anyio.lowlevel.current_token())
        with anyio.fail_after(SECONDS):
            await ten_pages()

    async def ten_pages():
        async with anyio.create_task_group() as tasks:
            live = LiveStore(store_of(home), tasks, render)
            async with anyio.create_task_group() as pages:
                got = []

                async def page():
                    async with live.page(None) as frames:
                        data = b""
                        while b"event: changes" not in data:
                            data = await frames.get()
                        got.append(data)

                for _ in range(10):
                    pages.start_soon(page)
                await has_begun.wait()
                await anyio.to_thread.run_sync(db.create_session, "shared", "cli")
            assert len(got) == 10
            tasks.cancel_scope.cancel()

    with SessionDB(home / "state.db") as db:
        db.set_meta("a", "1")
        anyio.run(main)
    changes = [count for name, count in rendered if name == "changes"]
    assert sum(changes) == 1


def test_looks_at_the_status_share_a_connection(home, monkeypatch):
    """One of its own for each look costs the loop that answers writers five times as much."""
    dialled = []

    def dial(*args):
        dialled.append(args)
        return plain_dial(*args)

    plain_dial = control.dial
    monkeypatch.setattr(control, "dial", dial)
    with SessionDB(home / "state.db") as db:
        db.set_meta("a", "1")
        watch = StatusWatch(resolve_paths(home / "state.db"))
        try:
            assert {watch.look().pid for _ in range(20)} == {actor_pid(home / "state.db")}
            assert len(dialled) == 1
            done = request_handoff(resolve_paths(home / "state.db"), sys.executable)
            assert watch.look().pid == done["pid"]
            stop_actor(home / "state.db")
            assert watch.look() == "not running"
        finally:
            watch.close()


def test_an_actor_that_does_not_answer_is_said_to_be_silent(home, monkeypatch):
    monkeypatch.setattr(control, "_STATUS_SECONDS", 0.2)
    with SessionDB(home / "state.db") as db:
        db.set_meta("a", "1")
        pid, watch = actor_pid(home / "state.db"), StatusWatch(resolve_paths(home / "state.db"))
        assert watch.look().pid == pid
        with paused(pid):
            assert watch.look() == "not answering"
            assert watch.look() == "not answering"
        deadline = time.monotonic() + SECONDS
        while isinstance(watch.look(), str):  # the busy machine may need more than 0.2 s
            assert time.monotonic() < deadline
        watch.close()


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks at /proc")
def test_the_reader_of_live_pages_gives_way_and_nothing_else_does(web, home):
    """A page may start an actor, which would keep a low priority for life."""
    with SessionDB(home / "state.db") as db, web.client() as client:
        db.set_meta("a", "1")
        events = Events(client)
        events.wait("figures", "serving")
        nice = {
            (task / "comm").read_text().strip(): os.getpriority(os.PRIO_PROCESS, int(task.name))
            for task in Path(f"/proc/{web.pid}/task").iterdir()
        }
        events.close()
    assert sorted(nice.values()) == [0] * (len(nice) - 1) + [10]


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks at /proc")
def test_pages_without_visitors_sleep(web):
    def waits():
        text = Path(f"/proc/{web.pid}/status").read_text()
        return int(text.partition("voluntary_ctxt_switches:")[2].split()[0])

    before = waits()
    time.sleep(2)  # what does not happen has no event to wait for
    assert waits() - before < 10


def test_a_page_that_does_not_read_is_given_up_alone():
    async def main():
        live = LiveStore(None, None, None)
        live._is_running = True
        live._feed = object()
        async with live.page(None) as lazy, live.page(None) as quick:
            for number in range(100):
                live._send(frame("changes", b"<li>%d</li>" % number, number))
                assert b"<li>%d</li>" % number in await quick.get()
            left = await lazy.get()
        assert left.startswith(b"event: lost")
        assert left.endswith(b"<li>99</li>\n\n")
        assert len(left) < 5000

    anyio.run(main)


def test_data_cannot_end_an_event():
    data = frame("changes", b"a\nevent: evil\r\n\r\nid: 7\n\nb", 3)
    assert [line[:6] for line in data.splitlines()[2:-1]] == [b"data: "] * 6
    assert data.count(b"\n\n") == 1
