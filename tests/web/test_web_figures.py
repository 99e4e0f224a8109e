"""The page of an actor at work in a real browser: each figure follows what happens."""

import os
import re
import sqlite3
import subprocess
import sys
import threading
import time

import pytest
from playwright.sync_api import expect as _expect
from support.actors import actor_pid, end_actors
from support.agent_stores import KEY
from support.browser import SECONDS, chromium_or_skip, visiting
from support.web import WebProcess, seed

import hermes_protocol.operations as ops
from hermes_actor import SessionDB, connect
from hermes_actor.client.control import request_handoff
from hermes_actor.errors import HandoffFailed, TitleInUse
from hermes_actor.paths import resolve_paths

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]


def expect(locator):
    _expect.set_options(timeout=1000 * SECONDS)
    return _expect(locator)


@pytest.fixture(scope="module")
def chromium():
    yield from chromium_or_skip()


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("figures") / "home"
    seed(home, time.time(), sessions=12)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HERMES_HOME", str(home))
        patch.setenv("HERMES_ACTOR_SECRETS_KEY", KEY)
        patch.setenv("HERMES_ACTOR_IDLE_EXIT", "600")
        yield home
    for name in ("state.db", "agents.db", "program.db"):
        end_actors(home / name)


@pytest.fixture(scope="module")
def db(home):
    with SessionDB(home / "state.db") as db:
        db.set_meta("a", "1")
        yield db


class Watched:
    """The page of an actor that is open all the time."""

    def __init__(self, visit, store):
        self.visit, self.page = visit, visit.go(f"/s/{store}/actor")
        expect(self.page.locator("#live-state")).to_have_text("Live: connected.")

    def figure(self, name):
        named = self.page.get_by_role("term").get_by_text(name, exact=True)
        return self.page.locator("#figures .facts div").filter(has=named).locator("dd")

    def number(self, name):
        return int(re.search(r"[\d,]+", self.figure(name).inner_text())[0].replace(",", ""))

    def is_shown(self, name, pattern):
        expect(self.figure(name)).to_have_text(re.compile(pattern))

    def grows(self, name, act):
        """Have *act* raise a figure."""
        before = self.number(name)
        act()
        give_up = time.monotonic() + SECONDS
        while self.number(name) <= before:
            assert time.monotonic() < give_up, f"{name} stays at {before}"
            self.page.wait_for_timeout(100)


@pytest.fixture(scope="module")
def web(home, db):
    with WebProcess(home) as web:
        yield web


@pytest.fixture(scope="module")
def actor(chromium, web):
    with visiting(chromium, web.url) as visit:
        yield Watched(visit, "state.db")
        assert visit.faults == []


def append(db, count=1):
    for number in range(count):
        db.append_message("s0001", "user", f"message {number}")


@pytest.mark.parametrize("name", ["Writes", "Batches", "Last change"])
def test_what_is_written(actor, db, name):
    actor.grows(name, lambda: append(db, 3))


def test_batches_by_size(actor, db):
    sizes = actor.page.locator("#figures .sizes")
    before = sizes.inner_text()
    append(db)
    expect(sizes).not_to_have_text(before)


def test_refused(actor, db):
    def refuse():
        db.set_session_title("s0001", "Taken by one")
        with pytest.raises(TitleInUse):
            db.set_session_title("s0002", "Taken by one")

    actor.grows("Refused", refuse)


def test_wal(actor, db):
    """Its frames come and go: it is emptied when nothing happens."""
    before, give_up = actor.number("WAL"), time.monotonic() + SECONDS
    while actor.number("WAL") == before:
        assert time.monotonic() < give_up
        append(db, 20)


def test_latency_percentiles(actor, db, home):
    """Those of an actor that has written nothing are zero."""
    names = ("Latency p50", "Latency p99", "Commit p50", "Commit p99")
    done = request_handoff(resolve_paths(home / "state.db"), sys.executable)
    expect(actor.page.locator("#figures .phase")).to_contain_text(f"pid {done['pid']}")
    for name in names:
        actor.is_shown(name, r"^0\.0 ms$")
    append(db, 3)
    for name in names:
        actor.is_shown(name, r"^(?!0\.0 )[\d.]+ ms$")


def test_checkpoints(actor, db):
    before = actor.figure("Checkpoints").inner_text()
    give_up = time.monotonic() + SECONDS
    while actor.figure("Checkpoints").inner_text() == before:
        assert time.monotonic() < give_up
        append(db, 50)
    actor.is_shown("Checkpoints", r"\d+ passive")


def test_what_pins_the_wal(actor, db, home):
    with sqlite3.connect(home / "state.db", isolation_level=None) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM messages").fetchone()
        stop = threading.Event()
        writer = threading.Thread(target=lambda: [append(db, 20) for _ in iter(stop.is_set, True)])
        writer.start()
        try:
            actor.is_shown("WAL", rf"pinned by pid .*{os.getpid()}")
        finally:
            stop.set()
            writer.join()
    reader.close()


def test_index_lag(actor, db):
    def session(number):
        rows = [ops.MessageRow(role="user", content=f"word{place} and more", timestamp=float(place))
                for place in range(2000)]  # fmt: skip
        db.import_session(ops.SessionRow(id=f"bulk{number}", source="cli", started_at=1.0), rows)

    def keep_on():
        number = 0
        while not stop.is_set():
            session(number := number + 1)

    stop = threading.Event()
    writer = threading.Thread(target=keep_on)
    writer.start()
    try:
        actor.is_shown("Index lag", r"^[1-9][\d,]* of [\d,]+$")
    finally:
        stop.set()
        writer.join()
    actor.is_shown("Index lag", r"^0 of [1-9]")


def test_clients(actor, home):
    program = "import sys; from hermes_actor import SessionDB; db = SessionDB(sys.argv[1]);" \
              " db.set_meta('b', '1'); print(1, flush=True); input()"  # fmt: skip
    clients = actor.page.locator("#figures .clients")
    with subprocess.Popen(
        [sys.executable, "-c", program, str(home / "state.db")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as client:  # fmt: skip
        assert client.stdout.readline() == b"1\n"
        expect(clients).to_contain_text(re.compile(rf"pid {client.pid}\b.* · 1 request"))
        client.communicate(b"\n", timeout=SECONDS)
    expect(clients).not_to_contain_text(f"pid {client.pid} ")


def test_followers(actor, db):
    actor.is_shown("Followers", r"^\d+$")

    def follow():
        stack.append(db.subscribe())

    stack = []
    actor.grows("Followers", follow)
    stack.pop().close()


def test_changes_lead_to_their_session(actor, db):
    db.create_session("shown-live", "cli")
    line = actor.page.locator("#changes li", has_text="shown-live")
    expect(line).to_contain_text("session.create")
    expect(line.locator("a")).to_have_attribute("href", "session?id=shown-live")


def test_a_handoff_that_fails_is_a_fault_and_one_that_succeeds_ends_it(actor, home, tmp_path):
    first, program = actor_pid(home / "state.db"), tmp_path / "python"
    program.write_text("#!/bin/sh\necho broken on purpose >&2\nexit 3\n")
    program.chmod(0o755)
    with pytest.raises(HandoffFailed):
        request_handoff(resolve_paths(home / "state.db"), str(program))
    expect(actor.page.locator("#figures .refusal")).to_contain_text("update failed")
    actor.is_shown("Hand-off", "has ended")
    expect(actor.page.locator("#log")).to_contain_text("broken on purpose")
    done = request_handoff(resolve_paths(home / "state.db"), sys.executable)
    expect(actor.page.locator("#figures .phase")).to_contain_text(f"pid {done['pid']}")
    assert done["pid"] != first
    expect(actor.page.locator("#figures .refusal")).to_have_count(0)
    expect(actor.page.locator("#log")).to_contain_text(str(done["pid"]))


def test_a_foreign_writer_is_a_fault(actor, home):
    with sqlite3.connect(home / "state.db", isolation_level=None, timeout=SECONDS) as other:

        def write():
            other.execute("UPDATE sessions SET model = 'changed outside' WHERE id = 's0003'")

        actor.grows("Foreign commits", write)
        found = actor.page.locator("#figures .refusal", has_text="foreign writer")
        expect(found.first).to_contain_text(f"pid {os.getpid()}")
    other.close()


def test_queue_and_lease(chromium, web, home):
    """A long transaction on a plain file, and writers that wait for its end."""
    path = home / "program.db"
    with connect(path) as conn, visiting(chromium, web.url) as visit:
        conn.execute("CREATE TABLE t (a)")
        conn.commit()
        give_up = time.monotonic() + SECONDS  # stores are looked for now and then
        while visit.go("/s/program.db/actor").locator("#figures").count() == 0:
            assert time.monotonic() < give_up
            time.sleep(1)
        actor = Watched(visit, "program.db")
        actor.is_shown("Lease", "^none$")
        conn.lease_seconds = 600
        conn.execute("INSERT INTO t VALUES (1)")
        actor.is_shown("Lease", rf"^held by pid {os.getpid()} .* 1 statements")
        waiting = threading.Thread(target=write_beside, args=(path,))
        waiting.start()
        actor.is_shown("Queue", r"^[1-9]\d* \(\d+ bytes\)$")
        conn.commit()
        waiting.join()
        actor.is_shown("Queue", r"^0 \(0 bytes\)$")
        actor.is_shown("Lease", "^none$")
        assert visit.faults == ["Failed to load resource: the server responded with a status of 404"
                                " (Not Found)"] * len(visit.faults)  # fmt: skip


def write_beside(path):
    other = connect(path, timeout=SECONDS)
    other.execute("INSERT INTO t VALUES (2)")
    other.commit()
    other.close()
