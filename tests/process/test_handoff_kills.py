"""The old actor, or its successor, is killed in the middle of a hand-off: nothing is lost."""

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import closing

import pytest
from support.actors import actor_pid, actors_of, contents, wait_for, wait_gone
from support.fake_builds import DIE, KILL, NEWER, STOP, Build, around, serving, while_there
from support.ownership_log import check_owners, kill
from support.wire import status
from support.writer_load import writer_load

from hermes_actor import SessionDB
from hermes_actor.client.control import request_handoff
from hermes_actor.errors import HermesActorError, OutcomeUnknown
from hermes_actor.paths import resolve_paths

LONG = bool(os.environ.get("HERMES_ACTOR_LONG"))
KILLS = 40 if LONG else 4

HANDOFF = "hermes_actor.actor.handoff.coordinator:HandoffAttempt"
SUCCESSOR = "hermes_actor.actor.handoff.child:SuccessorProcess"
RECEIVE = "hermes_actor.actor.handoff.receiver:PredecessorLink.receive"
REPORT_SERVING = "hermes_actor.actor.handoff.receiver:PredecessorLink.report_serving"
STOP_WRITING = "hermes_actor.actor.writer_thread:WriterThread.stop"

# While the old actor has the descriptors alone, its successor can only end with it.
ALONE = {
    "before the successor is ready": around(f"{SUCCESSOR}.ready", before=KILL),
    "when the successor is ready": around(f"{SUCCESSOR}.ready", after=KILL),
    "before the file is closed": around(STOP_WRITING, before=KILL),
    "after the file is closed": around(STOP_WRITING, after=KILL),
}
# From here on the successor goes on.
TOGETHER = {
    "after the descriptors were sent": around(f"{SUCCESSOR}.send_descriptors", after=KILL),
    "when the successor serves": around(f"{SUCCESSOR}.serving", after=KILL),
    "while it stays": around(f"{HANDOFF}.watch_successor", before=KILL),
}


@pytest.fixture
def build(tmp_path):
    return Build(tmp_path / "build")


def hand_over_to_the_end(path, python):
    """Ask for a hand-off in which the actor that is asked may not live to answer."""
    with pytest.raises(OutcomeUnknown):
        request_handoff(resolve_paths(path), str(python))


@pytest.mark.parametrize("step", ALONE)
def test_old_actor_is_killed_before_it_gave_anything_away(path, build, step):
    with serving(path, prelude=ALONE[step]) as old, writer_load(path) as running:
        hand_over_to_the_end(path, build.python)
        wait_gone(old.pid)
        running.goes_on()
        # Those who write have started the next one, and the successor is gone.
        wait_for(lambda: actors_of(path) == {actor_pid(path)})
        found = status(path)
        assert found.version != NEWER
        assert found.is_serving
    assert check_owners(path) == [old.pid, found.pid]


@pytest.mark.parametrize("step", TOGETHER)
def test_old_actor_is_killed_after_it_gave_everything_away(path, build, step):
    with serving(path, prelude=TOGETHER[step]) as old, writer_load(path) as running:
        hand_over_to_the_end(path, build.python)
        wait_gone(old.pid)
        running.goes_on()
        found = status(path)
        assert found.version == NEWER
        assert actors_of(path) == {found.pid}
        # It is an actor like any other: it can hand over itself.
        new = request_handoff(resolve_paths(path), str(build.python))["pid"]
        running.goes_on()
    assert check_owners(path) == [old.pid, found.pid, new]


def test_old_actor_is_killed_while_it_takes_back(path, build):
    """Its successor has died already, so no process is left that holds anything."""
    build.around(RECEIVE, after=DIE)
    prelude = around(f"{SUCCESSOR}.end", after=KILL)
    with serving(path, prelude=prelude) as old, writer_load(path) as running:
        hand_over_to_the_end(path, build.python)
        wait_gone(old.pid)
        running.goes_on()
        (new,) = actors_of(path)
        assert status(path).version != NEWER
    assert check_owners(path) == [old.pid, new]


def test_both_are_killed(path, build):
    build.around(REPORT_SERVING, after=DIE)
    prelude = around(f"{HANDOFF}.watch_successor", before=KILL)
    with serving(path, prelude=prelude) as old, writer_load(path) as running:
        hand_over_to_the_end(path, build.python)
        wait_gone(old.pid)
        wait_for(lambda: actor_pid(path) is not None)
        running.goes_on()
        assert status(path).version != NEWER
    assert len(check_owners(path)) == 3


def test_client_that_comes_after_the_kill_finds_everything(path, build):
    """No client is connected: the next start alone brings the store back."""
    with serving(path, prelude=ALONE["after the file is closed"]) as old:
        with closing(SessionDB(path)) as db:
            db.create_session("s", "cli")
            db.append_message("s", "user", "before")
        hand_over_to_the_end(path, build.python)
        wait_gone(old.pid)
        wait_for(lambda: not actors_of(path))
        with closing(SessionDB(path)) as db:
            db.append_message("s", "user", "after")
    assert contents(path, "s") == ["before", "after"]


def test_old_actor_that_was_stopped_while_it_stayed_does_not_take_back(path, build, tmp_path):
    """Its successor has ended in good order meanwhile, which it finds when it goes on."""
    hurry = tmp_path / "hurry"
    hurry.touch()
    build.append("hermes_actor.limits", while_there(hurry, SUCCESSOR_SERVING_SECONDS=0.5))
    prelude = around(f"{HANDOFF}.watch_successor", before=STOP)
    words = [sys.executable, "-P", "-m", "hermes_actor", "handoff", "--db", str(path)]
    with (
        serving(path, prelude=prelude) as old,
        subprocess.Popen([*words, "--python", build.python], stdout=subprocess.DEVNULL) as asking,
    ):
        wait_for(lambda: state(old.pid) == "T")
        new = status(path).pid
        os.kill(new, signal.SIGTERM)
        wait_gone(new)
        os.kill(old.pid, signal.SIGCONT)
        assert old.exit_code() == 0
        assert asking.wait(60) == 0
    assert actors_of(path) == set()
    assert check_owners(path) == [old.pid, new]


def state(pid):
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


@pytest.mark.slow
@pytest.mark.timeout(1200 if LONG else 120)
def test_kills_of_either_side_at_random_moments(path):
    chance = random.Random(4)
    with closing(SessionDB(path)) as db:
        db.set_meta("k", "v")
    with writer_load(path) as running:
        for _ in range(KILLS):
            running.goes_on()
            words = [sys.executable, "-P", "-m", "hermes_actor", "handoff", "--db", str(path)]
            with subprocess.Popen(words, stdout=subprocess.DEVNULL) as asking:
                time.sleep(chance.uniform(0.0, 1.2))
                victims = sorted(actors_of(path))
                if victims:
                    kill(path, chance.choice(victims))
                assert asking.wait(100) in (0, 1, 3)
            running.goes_on()
            try:
                found = status(path)
            except (OSError, HermesActorError):
                continue
            assert found.phase_text in ("serving", "handing over", "recovering", "opening")
        running.goes_on()
    check_owners(path)
