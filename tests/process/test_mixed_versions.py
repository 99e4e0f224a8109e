"""Programs of several versions side by side: the newest serves, and none takes turns."""

import subprocess
import sys
from contextlib import ExitStack, closing

import pytest
from support.actors import actor_pid, actors_of, folder_of, wait_for, wait_no_actor
from support.fake_builds import (
    NEWER,
    NEWEST,
    OLDER,
    OURS,
    Build,
    around,
    command,
    failed_updates,
    serving,
)
from support.ownership_log import check_owners
from support.wire import Wire, status
from support.writer_load import writer_load

from hermes_actor import SessionDB
from hermes_actor.client.control import ask_status, request_handoff
from hermes_actor.paths import resolve_paths

HERE = "import asyncio, sys; from pathlib import Path; path = Path(sys.argv[1])\n"
BLOCKING = (
    HERE
    + """
from hermes_actor import SessionDB
db = SessionDB(path)
db.create_session(sys.argv[2], "cli")
db.append_message(sys.argv[2], "user", "x")
db.close()
"""
)
ASYNCHRONOUS = (
    HERE
    + """
from hermes_actor import AsyncSessionDB

async def main():
    async with AsyncSessionDB(path) as db:
        await db.create_session(sys.argv[2], "cli")
        await db.append_message(sys.argv[2], "user", "x")

asyncio.run(main())
"""
)


@pytest.fixture
def newer(tmp_path):
    return Build(tmp_path / "newer", NEWER)


@pytest.fixture
def older(tmp_path):
    return Build(tmp_path / "older", OLDER)


def use(build, path, code=BLOCKING, session="s"):
    """A program of this build writes to the store."""
    words = [build.python, "-P", "-c", code, path, session]
    subprocess.run(list(map(str, words)), check=True, timeout=60)


def log(path):
    return (folder_of(path) / "log").read_text()


def started(path):
    """How many hand-offs were tried."""
    return log(path).count(" started: ")


def serves(path, version):
    """Wait until it is this version that serves. A client that asks may be sent away meanwhile."""
    wait_for(lambda: (found := ask_status(resolve_paths(path))) and found.version == version)


# --- a newer program -----------------------------------------------------------------------------


@pytest.mark.parametrize("code", [BLOCKING, ASYNCHRONOUS], ids=["blocking", "asynchronous"])
def test_newer_client_makes_the_actor_hand_over_to_its_build(path, newer, code):
    if code == ASYNCHRONOUS:
        # It has a blocking connection too, which is not to be the one that asks.
        newer.append(
            "hermes_actor.client.connection", "handoff_request = lambda paths, protocol: b''"
        )
    with serving(path) as old, writer_load(path) as running:
        use(newer, path, code)
        serves(path, NEWER)
        running.goes_on()
        use(newer, path, session="another")
        assert started(path) == 1
        new = status(path).pid
    assert check_owners(path) == [old.pid, new]


@pytest.mark.parametrize("setting", ["never", "ask", "config.yaml"])
def test_newer_client_that_may_not_ask_works_with_the_older_actor(
    path, newer, monkeypatch, setting
):
    if setting == "config.yaml":
        path.with_name(setting).write_text("actor: {upgrade: never}")
    else:
        monkeypatch.setenv("HERMES_ACTOR_UPGRADE", setting)
    with serving(path) as old, writer_load(path, 1):
        use(newer, path)
        use(newer, path, session="t")
        found = status(path)
        assert (found.pid, found.handoff) == (old.pid, None)
        assert started(path) == 0
        # A person may.
        done = command("handoff", "--db", path, python=newer.python)
        assert done.returncode == 0
        assert status(path).version == NEWER


def test_newer_build_that_cannot_take_over_is_tried_once(path, newer):
    """Its programs work with the old actor, however many of them come."""
    newer.around(
        "hermes_actor.actor.handoff.receiver:PredecessorLink.receive", before="os._exit(9)"
    )
    with serving(path) as old, writer_load(path) as running:
        for number in range(4):
            use(newer, path, session=str(number))
        wait_for(lambda: "hand-off: failed" in log(path))
        use(newer, path, session="last")
        running.goes_on()
        found = status(path)
        assert found.pid == old.pid
        assert "has ended" in found.handoff.failed
        assert failed_updates(found) == [f"update failed, still serving: {found.handoff.failed}"]
        assert started(path) == 1
    assert check_owners(path) == [old.pid]


def test_program_whose_code_on_disk_is_no_longer_its_own_changes_nothing(path, tmp_path):
    """In memory it is newer; what its interpreter finds is not."""
    claims = Build(tmp_path / "claims", OURS)
    claims.append("hermes_actor.client.upgrade", f"__version__ = {NEWER!r}")
    with serving(path) as old, writer_load(path) as running:
        use(claims, path)
        wait_for(lambda: "hand-off: failed" in log(path))
        running.goes_on()
        found = status(path)
        assert (found.pid, failed_updates(found)) == (old.pid, [])
        assert "which is not newer" in found.handoff.failed
    assert check_owners(path) == [old.pid]


# --- an older program ----------------------------------------------------------------------------


def test_older_client_works_with_a_newer_actor(path, newer, older):
    with (
        serving(path, python=newer.python) as actor,
        writer_load(path, python=older.python) as running,
    ):
        use(older, path)
        running.goes_on()
        found = status(path)
        assert (found.pid, found.handoff) == (actor.pid, None)
        builds = {c.build for c in found.connections}
        assert OLDER in builds
        done = command("handoff", "--db", path, python=older.python)
        assert done.returncode == 1
        assert "older" in done.stderr
        assert status(path).pid == actor.pid
    assert check_owners(path) == [actor.pid]


def test_older_client_starts_its_own_actor_and_a_newer_one_takes_over(path, newer, older):
    use(older, path, session="a")
    assert status(path).version == OLDER
    use(newer, path, session="b")
    serves(path, NEWER)
    use(older, path, session="c")
    assert status(path).version == NEWER
    with closing(SessionDB(path)) as db:
        assert {s["id"] for s in db.list_sessions_rich()} == {"a", "b", "c"}
    assert len(check_owners(path)) == 2


# --- the same version ----------------------------------------------------------------------------


def test_other_code_of_the_same_version_is_handed_over_only_when_asked_for(path, tmp_path):
    checkout = Build(tmp_path / "checkout", OURS)
    with serving(path) as old, writer_load(path, 2) as running:
        use(checkout, path)
        running.goes_on()
        found = status(path)
        assert (found.pid, found.handoff) == (old.pid, None)
        told = request_handoff(resolve_paths(path), str(checkout.python))
        after = status(path)
        assert after.pid == told["pid"]
        assert after.version == found.version
        assert after.build == told["build"] != found.build
        # And not back by itself.
        running.goes_on()
        with closing(SessionDB(path)) as db:
            db.set_meta("k", "v")
        assert status(path).pid == told["pid"]
    assert check_owners(path) == [old.pid, told["pid"]]


# --- three versions ------------------------------------------------------------------------------


def test_three_versions_at_once_come_to_rest(path, tmp_path):
    """Programs of each come and go all the time; there are no more hand-offs than versions."""
    builds = [Build(tmp_path / version, version) for version in (OLDER, NEWER, NEWEST)]
    use(builds[0], path, session="first")
    with ExitStack() as stack:
        for build in builds:
            stack.enter_context(load_once(path, build))
        serves(path, NEWEST)
        for number in range(3):
            for build in reversed(builds):
                use(build, path, session=f"{build.python} {number}")
        assert status(path).version == NEWEST
    assert 1 <= started(path) <= 2
    assert len(check_owners(path)) == 1 + started(path)


def load_once(path, build):
    """Writers of one build; their sessions are named after it."""
    return writer_load(path, 1, python=build.python, name=build.python.parents[1].name)


# --- idleness (G12) ------------------------------------------------------------------------------


def live_and_end_twice(path):
    """The life of an actor without clients is the clock."""
    for _ in range(2):
        SessionDB(path).close()
        wait_no_actor(path)


def test_actor_that_knows_of_a_failed_update_stays(tmp_path, newer, monkeypatch):
    monkeypatch.setenv("HERMES_ACTOR_IDLE_EXIT", "0.5")
    path, other = tmp_path / "state.db", tmp_path / "other.db"
    newer.append("hermes_actor.__init__", "raise ImportError('broken')")
    with closing(SessionDB(path)) as db:
        db.set_meta("k", "v")
        pid = actor_pid(path)
        done = command("handoff", "--db", path, "--python", newer.python)
        assert done.returncode == 1
    live_and_end_twice(other)
    assert actors_of(path) == {pid}
    done = command("status", "--db", path)
    assert done.returncode == 0
    assert "degraded: update failed, still serving" in done.stdout
    # Once the code is repaired it goes on as usual.
    new = request_handoff(resolve_paths(path), sys.executable)["pid"]
    assert new != pid
    wait_no_actor(path)


@pytest.mark.parametrize("refused", ["by a program", "by a person"])
def test_actor_that_has_refused_a_build_ends_as_usual(tmp_path, older, monkeypatch, refused):
    monkeypatch.setenv("HERMES_ACTOR_IDLE_EXIT", "0.5")
    path = tmp_path / "state.db"
    with closing(SessionDB(path)) as db:
        db.set_meta("k", "v")
        if refused == "by a program":
            with Wire(path) as wire:
                ask = {"t": "handoff", "ask": -1, "python": str(older.python), "wait": False}
                wire.send({**ask, "build": NEWER})
                assert wire.answer(-1)["t"] == "done"
                wait_for(lambda: "hand-off: failed" in log(path))
        else:
            done = command("handoff", "--db", path, python=older.python)
            assert done.returncode == 1
        assert status(path).handoff.failed
    wait_no_actor(path)


def test_request_that_is_not_worth_it_is_refused(path, newer):
    """A program that asks by itself must be newer, and gets one try in a minute."""
    prelude = around("hermes_actor.actor.handoff.child:_popen", before="raise OSError('no')")
    with serving(path, prelude=prelude) as old, Wire(path) as wire:

        def ask(build):
            wire.send({"t": "handoff", "ask": -1, "python": "x", "wait": False, "build": build})
            return wire.answer(-1)

        for build in (OLDER, OURS, f"{OURS}+abc", "", "nonsense"):
            answer = ask(build)
            assert (answer["t"], answer["code"]) == ("failed", "handoff-failed")
            assert "not newer" in answer["message"]
        assert ask(NEWER)["t"] == "done"
        wait_for(lambda: wire.status().handoff.failed)
        assert "less than 60 s ago" in ask(NEWER)["message"]
        # Another build is another matter.
        assert ask(NEWEST)["t"] == "done"
        wait_for(lambda: wire.status().handoff.failed)
        assert wire.status().pid == old.pid
