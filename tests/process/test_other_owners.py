"""A store whose owner serves no clients: who it is, since when, and what to do."""

import asyncio
import os
import re
from contextlib import closing

import pytest

import hermes_actor
from hermes_actor import AsyncSessionDB, SessionDB
from hermes_actor.agent_store.store import AgentStore
from hermes_actor.engine.ownership import OwnerLock
from hermes_actor.errors import AlreadyOwned, DeadlineExceeded
from hermes_actor.paths import resolve_paths

SHORT = 0.5


def open_with_session_db(path):
    SessionDB(path, timeout=SHORT)


def open_with_async_session_db(path):
    async def use():
        async with AsyncSessionDB(path, timeout=SHORT) as db:
            await db.create_session("s", source="cli")

    asyncio.run(use())


def open_with_connect(path):
    with closing(hermes_actor.connect(path, timeout=SHORT)) as connection:
        connection.execute("CREATE TABLE t(a)")


def open_with_agent_store(path):
    AgentStore(None, path, timeout=SHORT)


OPENERS = [
    open_with_session_db, open_with_async_session_db, open_with_connect, open_with_agent_store,
]  # fmt: skip


@pytest.mark.parametrize("open_it", OPENERS, ids=lambda opener: opener.__name__)
def test_embedded_owner_is_named_and_no_actor_is_started_beside_it(path, open_it):
    with (
        closing(SessionDB(path, mode="embedded")),
        pytest.raises(AlreadyOwned) as caught,
    ):
        open_it(path)
    text = str(caught.value)
    assert f"{path} is owned by process {os.getpid()} " in text
    assert re.search(r" since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d: ", text), text
    assert "embedded mode, which shares with no other process: end that program" in text
    assert caught.value.pid == os.getpid()
    assert not resolve_paths(path).log.exists()  # every actor has a log


def test_owner_that_does_not_listen_is_named_although_the_last_start_was_cut_short(path):
    lock = OwnerLock.acquire(resolve_paths(path))
    try:
        with pytest.raises(AlreadyOwned, match=f"process {os.getpid()} .* since ") as caught:
            SessionDB(path, timeout=2)
    finally:
        lock.release()
    assert caught.value.executed == "no"


def test_start_that_takes_too_long_says_how_long_the_caller_has_waited(path):
    with pytest.raises(DeadlineExceeded) as caught:
        SessionDB(path, timeout=0.01)
    said = re.search(
        r"\((pid \d+|no process owns it)\) has not answered for ([\d.]+) s", str(caught.value)
    )
    assert said is not None, caught.value
    assert float(said[2]) >= 0.01
    assert "it goes on, so a later call finds it" in str(caught.value)
    assert "hermes-actor doctor" in str(caught.value)
