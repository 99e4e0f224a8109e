"""Reads of pages: an end for each, few at a time, a queue with an end; changes are not ended."""

import threading
import time

import anyio
import pytest
import sqlalchemy
from support import servers
from support.agent_stores import KEY
from support.stores import SERVERS, chosen_kinds
from support.web import TOKEN, opened

from hermes_actor import SessionDB
from hermes_actor.errors import Busy
from hermes_actor.web import reads
from hermes_actor.web.reads import READS, WAITING, Slots
from hermes_actor.web.views import VIEWS

ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT max(x) FROM n"


def endless_sessions(store, _asked):
    return store.sessions._queries.reader.snapshot(lambda conn: conn.execute(ENDLESS).fetchall())


def endless_agents(store, _asked):
    return store.agents.ask(lambda rows: rows.all(ENDLESS))


@pytest.mark.parametrize(
    ("store", "view", "read", "other"),
    [
        ("state.db", "chats", endless_sessions, "sessions"),
        ("agents.db", "agent", endless_agents, "agents"),
    ],
)
def test_a_read_without_an_end_is_interrupted(pages, monkeypatch, store, view, read, other):
    monkeypatch.setattr(reads, "READ_SECONDS", 0.5)
    monkeypatch.setitem(VIEWS, view, VIEWS[view]._replace(read=read))
    for _ in range(READS + 1):  # none keeps its place
        answer = pages.get(f"/s/{store}/{view}?id=main")
        assert answer.status_code == 504
        assert "took longer than 0.5 s and was ended" in answer.text
    error = pages.get(f"/api/stores/{store}/{view}?id=main").json()["error"]
    assert (error["class"], error["executed"]) == ("DeadlineExceeded", "no")
    monkeypatch.setattr(reads, "READ_SECONDS", 60)
    assert pages.get(f"/s/{store}/{other}").status_code == 200


def test_a_page_of_many_reads_ends_between_them(pages, monkeypatch):
    def many(store, _asked):
        while True:
            store.sessions.get_session("s0001")

    monkeypatch.setattr(reads, "READ_SECONDS", 0.5)
    monkeypatch.setitem(VIEWS, "chats", VIEWS["chats"]._replace(read=many))
    assert pages.get("/s/state.db/chats").status_code == 504


@pytest.mark.parametrize("kind", [kind for kind in SERVERS if kind in chosen_kinds()])
def test_a_server_ends_the_statement_of_a_page(kind, tmp_path, monkeypatch):
    monkeypatch.setenv("HERMES_ACTOR_SECRETS_KEY", KEY)
    monkeypatch.setattr("hermes_actor.web.stores.READ_SECONDS", 1.0)
    monkeypatch.setattr(reads, "READ_SECONDS", 1.0)
    sleep = "pg_sleep(60)" if kind == "postgresql" else "SLEEP(60)"

    def slow(store, _asked):
        queries = store.sessions._queries
        return {"x": queries._database.read(run, (), queries._timeout, False)}

    def run(conn):
        # Into a table: a sleep that is interrupted is no error of MySQL by itself.
        return conn.rows(sqlalchemy.text(f"SELECT {sleep} FROM sessions"))

    url = servers.new_store(kind)
    with SessionDB(url) as db:
        db.create_session("s1", "cli")
    with opened(tmp_path, only=url) as client:
        client.headers["Authorization"] = f"Bearer {TOKEN}"
        (store,) = client.get("/api/stores").json()
        assert client.get(f"/s/{store['name']}/sessions").status_code == 200
        monkeypatch.setitem(VIEWS, "chats", VIEWS["chats"]._replace(read=slow))
        begun = time.monotonic()
        answer = client.get(f"/s/{store['name']}/chats")
        assert (answer.status_code, "took longer than" in answer.text) == (504, True)
        assert time.monotonic() - begun < 40
        # The limit does not stay with the connection.
        assert client.get(f"/s/{store['name']}/sessions").status_code == 200


def test_reads_that_wait_are_bounded():
    release, refused = threading.Event(), []

    async def main():
        slots = Slots("the store")

        async def read():
            try:
                await slots.read(release.wait, 60)
            except Busy as error:
                refused.append(str(error))
                if len(refused) == 3:
                    release.set()

        async with anyio.create_task_group() as tasks:
            for _ in range(READS + WAITING + 3):
                tasks.start_soon(read)

    anyio.run(main)
    assert len(refused) == 3
    assert "try again in a moment" in refused[0]


def test_a_read_whose_turn_does_not_come_is_refused(monkeypatch):
    monkeypatch.setattr(reads, "_WAIT_SECONDS", 0.2)

    async def main():
        slots, release = Slots("the store", places=1), threading.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(slots.read, release.wait, 60)
            await anyio.sleep(0.05)
            with pytest.raises(Busy, match="have been reading"):
                await slots.read(int)
            release.set()
        assert await slots.read(int) == 0

    anyio.run(main)


def test_pages_that_are_refused_say_when_to_come_back(pages, monkeypatch):
    begun, release = threading.Semaphore(0), threading.Event()

    def wait(_store, _asked):
        begun.release()
        release.wait(60)
        return {}

    monkeypatch.setattr(reads, "WAITING", 0)
    monkeypatch.setitem(VIEWS, "chats", VIEWS["chats"]._replace(read=wait))
    address = "/api/stores/state.db/chats"
    readers = [threading.Thread(target=pages.get, args=(address,)) for _ in range(READS)]
    for reader in readers:
        reader.start()
        assert begun.acquire(timeout=60)
    answer = pages.get("/s/state.db/sessions")
    release.set()
    for reader in readers:
        reader.join(60)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    assert "try again in a moment" in answer.text


def test_changes_have_no_end(monkeypatch):
    monkeypatch.setattr(reads, "READ_SECONDS", 0.05)

    async def main():
        return await Slots("the store").change(slow)

    def slow():
        time.sleep(0.2)
        reads.check_time()
        return "done"

    assert anyio.run(main) == "done"
