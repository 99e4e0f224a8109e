"""The asynchronous shell and subscriptions with real actors: killed, stopped, forked from."""

import os
import random
import signal
import subprocess
import sys
import threading
import time

import anyio
import pytest
from support.actors import actor_pid, contents, pause, stop_actor
from support.processes import run_python

from hermes_actor import AsyncSessionDB, SessionDB, limits
from hermes_actor.errors import OutcomeUnknown
from hermes_protocol.messages import Changed, Gap

SECONDS = 60
"""How long a test waits for what must come. No test measures time."""


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


# --- writing ---------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_many_tasks_write_exactly_once_and_each_in_its_order(path):
    acknowledged = {f"t{n}": [] for n in range(200)}

    async def write(db, name):
        await db.create_session(name, "cli")
        for n in range(10):
            acknowledged[name].append(await db.append_message(name, "user", str(n)))

    async with AsyncSessionDB(path, mode="actor") as db:
        with anyio.fail_after(SECONDS):
            async with anyio.create_task_group() as tasks:
                for name in acknowledged:
                    tasks.start_soon(write, db, name)
        status = (await db._store())._port.statistics()
    assert len({c["name"] for c in status["connections"]}) == 1
    assert len(status["connections"]) == 2  # one for reads, one for all tasks
    ids = [number for numbers in acknowledged.values() for number in numbers]
    assert sorted(ids) == list(range(1, 2001))
    for name, numbers in acknowledged.items():
        assert numbers == sorted(numbers)
        assert contents(path, name) == [str(n) for n in range(10)]


async def kill_now_and_then(path, number, times, stop, acknowledged):
    """End the actor, each time once it has served: four starts that fail in a row are an error."""
    for _ in range(times):
        before = sum(map(len, acknowledged.values()))
        await anyio.sleep(0.2)
        while sum(map(len, acknowledged.values())) == before:  # noqa: ASYNC110 - of all tasks
            await anyio.sleep(0.01)
        stop_actor(path, number)
    await anyio.sleep(0.2)
    stop.set()


@pytest.mark.anyio
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_nothing_is_lost_or_doubled_when_the_actor_ends_under_load(path, number):
    acknowledged = {f"t{n}": [] for n in range(20)}
    stop = anyio.Event()

    async def write(db, name):
        await db.create_session(name, "cli")
        n = 0
        while not stop.is_set():
            await db.append_message(name, "user", str(n))
            acknowledged[name].append(str(n))
            n += 1

    async with AsyncSessionDB(path, mode="actor") as db:
        with anyio.fail_after(SECONDS):
            async with anyio.create_task_group() as tasks:
                for name in acknowledged:
                    tasks.start_soon(write, db, name)
                killed = anyio.Event()
                tasks.start_soon(kill_now_and_then, path, number, 5, killed, acknowledged)
                await killed.wait()
                while min(map(len, acknowledged.values())) <= 5:  # noqa: ASYNC110 - of all tasks
                    await anyio.sleep(0.01)
                stop.set()
    for name, written in acknowledged.items():
        assert len(written) > 5
        assert contents(path, name) == written


@pytest.mark.anyio
async def test_cancelling_at_random_under_load_loses_and_doubles_nothing(path):
    tried = {f"t{n}": [] for n in range(20)}
    acknowledged = {name: [] for name in tried}
    dice = random.Random(7)
    stop = anyio.Event()

    async def write(db, name):
        await db.create_session(name, "cli")
        while not stop.is_set():
            n = str(len(tried[name]))
            tried[name].append(n)
            with anyio.move_on_after(dice.choice([0.0005, 0.002, 0.01, 5])):
                await db.append_message(name, "user", n)
                acknowledged[name].append(n)

    async with AsyncSessionDB(path, mode="actor") as db:
        with anyio.fail_after(SECONDS):
            async with anyio.create_task_group() as tasks:
                for name in tried:
                    tasks.start_soon(write, db, name)
                tasks.start_soon(kill_now_and_then, path, signal.SIGKILL, 3, stop, acknowledged)
        # Whatever was cancelled after it was sent is there before anything that is sent later.
        await db.create_session("the last", "cli")
    assert sum(map(len, acknowledged.values())) < sum(map(len, tried.values()))
    for name, written in acknowledged.items():
        found = contents(path, name)
        assert len(found) == len(set(found))
        assert found == sorted(found, key=int)
        assert set(written) <= set(found) <= set(tried[name])


@pytest.mark.anyio
async def test_message_of_20_megabytes(path):
    content = "".join(map(chr, range(0x4E00, 0x4E00 + 1000))) * 6700
    assert len(content.encode()) > 20_000_000
    async with AsyncSessionDB(path, mode="actor") as db:
        await db.create_session("s", "cli")
        with anyio.fail_after(SECONDS):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(db.append_message, "s", "user", content)
                for n in range(20):
                    tasks.start_soon(db.set_meta, f"k{n}", "beside it")
        (message,) = await db.get_messages("s")
        assert message["content"] == content


@pytest.mark.anyio
async def test_timeout_ends_while_the_actor_is_stopped(path):
    blocking = SessionDB(path, mode="actor")
    async with AsyncSessionDB(blocking) as db:
        await db.create_session("s", "cli")
        pid = actor_pid(path)
        try:
            pause(pid)
            blocking._timeout = 0.3
            with pytest.raises(OutcomeUnknown):
                await db.append_message("s", "user", "who knows")
        finally:
            os.kill(pid, signal.SIGCONT)
        blocking._timeout = SECONDS
        await db.append_message("s", "user", "after")
    blocking.close()
    assert contents(path, "s") in (["after"], ["who knows", "after"])


@pytest.mark.anyio
async def test_actor_is_started_once_for_all_tasks(path):
    async with AsyncSessionDB(path, mode="actor") as db:
        stop_actor(path, signal.SIGKILL)
        with anyio.fail_after(SECONDS):
            async with anyio.create_task_group() as tasks:
                for n in range(50):
                    tasks.start_soon(db.create_session, f"s{n}", "cli")
        assert await db.session_count() == 50


FORK = """
import json, os, sys, threading
from pathlib import Path
import anyio
from hermes_actor import AsyncSessionDB

path, backend = Path(sys.argv[1]), sys.argv[2]

async def write(db, name, first):
    return [await db.append_message("s", "user", f"{name}{n}") for n in range(first, first + 20)]

async def child(inherited, sock):
    assert sock.fileno() == -1  # a copy would keep the parent's connection open after its end
    async with AsyncSessionDB(path, mode="actor") as own:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write, own, "own", 0)
            tasks.start_soon(write, inherited, "inherited", 0)
    await inherited.aclose()

async def parent():
    async with AsyncSessionDB(path, mode="actor") as db:
        await db.create_session("s", "cli")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write, db, "beside", 0)  # under way while we fork
            await write(db, "parent", 0)
            sock = db._channel(db._db)._connection.exchange.sock
            pid = os.fork()
            if pid == 0:
                # A thread without a running loop, as a program that forks has it.
                def run():
                    try:
                        anyio.run(child, db, sock, backend=backend)
                        os._exit(0)
                    except BaseException:
                        sys.excepthook(*sys.exc_info())
                        os._exit(1)
                threading.Thread(target=run).start()
                threading.Event().wait()
            await write(db, "parent", 20)
            assert os.waitpid(pid, 0)[1] == 0
            await write(db, "parent", 40)
        print(json.dumps([m["content"] for m in await db.get_messages("s")]))

anyio.run(parent, backend=backend)
"""


def test_both_sides_of_a_fork_go_on(path, anyio_backend):
    found = run_python(FORK, path, anyio_backend)
    assert len(found) == len(set(found)) == 120
    for name, count in [("parent", 60), ("beside", 20), ("own", 20), ("inherited", 20)]:
        assert [c for c in found if c.startswith(name)] == [f"{name}{n}" for n in range(count)]


# --- following -------------------------------------------------------------------------------

WRITER = """
import sys
from pathlib import Path
from hermes_actor import SessionDB

db = SessionDB(Path(sys.argv[1]), mode="actor")
db.create_session(sys.argv[2], "cli")
for n in range(int(sys.argv[3])):
    db.append_message(sys.argv[2], "user", str(n))
db.close()
"""


def start_writer(path, name, count):
    return subprocess.Popen([sys.executable, "-c", WRITER, str(path), name, str(count)])


def numbers_of(subscription, through):
    """What comes until a number has come."""
    found = []
    while not found or found[-1] != through:
        change = subscription.get(SECONDS)
        assert isinstance(change, Changed), change
        found.append(change.commit_no)
    return found


def test_every_write_of_other_processes_is_delivered_in_order(path):
    db = SessionDB(path, mode="actor")
    with db.subscribe() as changes:
        writers = [start_writer(path, name, 100) for name in ("a", "b", "c")]
        found = [changes.get(SECONDS) for _ in range(303)]
        assert [writer.wait(SECONDS) for writer in writers] == [0, 0, 0]
        assert changes.get(0.1) is None
    db.close()
    assert [c.commit_no for c in found] == list(range(1, 304))
    for name in ("a", "b", "c"):
        ops = [c.op for c in found if c.session_id == name]
        assert ops == ["session.create", *["message.append"] * 100]


def write_while_actors_are_killed(path, kills):
    """In a thread: many changes, with the actor killed again and again. Returns how many."""
    db = SessionDB(path, mode="actor")
    for _ in range(kills):
        for n in range(50):
            db.set_meta("k", str(n))
        stop_actor(path, signal.SIGKILL)
    for n in range(50):
        db.set_meta("k", str(n))
    db.close()


def test_killed_actors_cost_a_follower_nothing_but_a_reported_gap(path):
    """What a new actor no longer knows one by one is a gap; nothing is delivered twice."""
    db = SessionDB(path, mode="actor")
    with db.subscribe() as changes:
        writer = threading.Thread(target=write_while_actors_are_killed, args=(path, 5))
        writer.start()
        reached, gaps = 0, 0
        while reached < 300:
            change = changes.get(SECONDS)
            if isinstance(change, Gap):
                gaps += 1
                assert change.after == reached
                reached = change.through
            else:
                assert change.commit_no == reached + 1
                reached += 1
        writer.join()
        assert changes.get(0.1) is None
        assert gaps <= 5
    db.close()


def test_follower_starts_the_next_actor_and_resumes(path):
    db = SessionDB(path, mode="actor")
    db.set_meta("k", "1")
    with db.subscribe(after=0) as changes:
        assert numbers_of(changes, 1) == [1]
        stop_actor(path, signal.SIGKILL)
        assert changes.get(1.0) is None  # connects again
        assert actor_pid(path) is not None
        for n in (2, 3):
            db.set_meta("k", str(n))
        assert numbers_of(changes, 3) == [2, 3]
        stop_actor(path, signal.SIGTERM)
        db.set_meta("k", "4")
        change = changes.get(SECONDS)
        assert change in (Changed(commit_no=4, op="meta.set"), Gap(after=3, through=4))
        assert changes.get(0.1) is None
    db.close()


@pytest.mark.anyio
async def test_async_follower_survives_killed_actors(path):
    async with AsyncSessionDB(path, mode="actor") as db, db.subscribe() as changes:
        with anyio.fail_after(SECONDS):
            async with anyio.create_task_group() as tasks:

                async def write():
                    for n in range(200):
                        await db.set_meta("k", str(n))
                        if n % 50 == 25:
                            stop_actor(path, signal.SIGKILL)

                tasks.start_soon(write)
                reached = 0
                async for change in changes:
                    if isinstance(change, Gap):
                        assert change.after == reached
                        reached = change.through
                    else:
                        assert change.commit_no == reached + 1
                        reached += 1
                    if reached == 200:
                        break
        assert await changes.get(0.1) is None


def test_further_behind_than_the_ring_is_a_gap(path):
    db = SessionDB(path, mode="actor")
    with db.pipeline() as p:
        for n in range(limits.RING_CHANGES + 100):
            p.set_meta("k", str(n))
    with db.subscribe(after=0) as changes:
        assert changes.get(SECONDS) == Gap(after=0, through=100)
        assert numbers_of(changes, limits.RING_CHANGES + 100) == list(
            range(101, limits.RING_CHANGES + 101)
        )
    db.close()


def test_follower_that_does_not_read_sees_the_gap_later(path):
    """And no writer waits for it meanwhile."""
    db = SessionDB(path, mode="actor")
    total = 4 * limits.RING_CHANGES
    with db.subscribe() as changes:
        with db.pipeline() as p:
            for n in range(total):
                p.set_meta("k", str(n))
        reached, gaps = 0, 0
        while reached < total:
            change = changes.get(SECONDS)
            if isinstance(change, Gap):
                gaps += 1
                assert change.after == reached
                reached = change.through
            else:
                assert change.commit_no == reached + 1
                reached += 1
        assert gaps >= 1
    db.close()


FORKED_FOLLOWER = """
import json, os, sys
from pathlib import Path
from hermes_actor import SessionDB

db = SessionDB(Path(sys.argv[1]), mode="actor")
with db.subscribe() as changes:
    db.set_meta("k", "1")
    assert changes.get(30).commit_no == 1
    pid = os.fork()
    if pid == 0:
        found = [changes.get(30).commit_no for _ in range(3)]
        changes.close()
        os._exit(0 if found == [2, 3, 4] else 1)
    for n in (2, 3, 4):
        db.set_meta("k", str(n))
    assert os.waitpid(pid, 0)[1] == 0
    found = [changes.get(30).commit_no for _ in range(3)]
    db.set_meta("k", "5")
    found.append(changes.get(30).commit_no)
    print(json.dumps(found))
db.close()
"""


def test_forked_follower_goes_on_in_both(path):
    assert run_python(FORKED_FOLLOWER, path) == [2, 3, 4, 5]


def test_follower_that_leaves_is_noticed(path):
    db = SessionDB(path, mode="actor")
    with db.subscribe():
        assert len(db._port.statistics()["connections"]) == 2
    give_up = time.monotonic() + SECONDS
    while len(db._port.statistics()["connections"]) > 1:
        assert time.monotonic() < give_up
        db.set_meta("k", "v")
    db.close()
