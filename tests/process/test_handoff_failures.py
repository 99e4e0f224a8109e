"""A hand-off that fails: the old actor serves on, and nothing is lost."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from contextlib import closing

import pytest
from support.actors import (
    actor_pid,
    actors_of,
    contents,
    folder_of,
    own,
    pause,
    socket_of,
    wait_for,
    wait_gone,
)
from support.fake_builds import (
    DIE,
    HANG,
    LEAVE,
    NEWER,
    OLDER,
    OURS,
    STOP,
    Build,
    around,
    command,
    failed_updates,
    serving,
    touch,
    wait_until,
    while_there,
)
from support.files import names, write_lock
from support.ownership_log import check_owners, kill, owners
from support.wire import Wire, append, create, hello, request, status
from support.writer_load import writer_load

from hermes_actor import SessionDB
from hermes_actor.client.control import ask_status, request_handoff
from hermes_actor.paths import resolve_paths
from hermes_actor.recovery.backup import create_backup

RECEIVE = "hermes_actor.actor.handoff.receiver:PredecessorLink.receive"
REPORT_SERVING = "hermes_actor.actor.handoff.receiver:PredecessorLink.report_serving"
MIGRATE = "hermes_actor.engine.startup.migrations:migrate"
OUTDATED = "def _is_current(conn): return False"
HALF_DONE = "args[0].execute('CREATE TABLE half_done (x)'); args[1](0.4)"


@pytest.fixture(autouse=True)
def no_process_stays_stopped(path):
    """What a test has stopped must be able to end."""
    yield
    for pid in actors_of(path):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@pytest.fixture
def build(tmp_path):
    return Build(tmp_path / "build")


def handoff(path, python, *options):
    return command("handoff", "--db", path, "--python", python, *options)


def succeed(path, python=sys.executable):
    """A hand-off that works, and who serves then."""
    pid = request_handoff(resolve_paths(path), str(python))["pid"]
    found = status(path)
    assert (found.pid, found.phase_text) == (pid, "serving")
    assert (found.handoff, failed_updates(found)) == (None, [])
    return pid


@contextlib.contextmanager
def in_background(*words):
    """A command that runs beside the block."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "hermes_actor", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def ending_of(process):
    """What a command has said in the end, and its exit code."""
    said, _ = process.communicate(timeout=60)
    return process.returncode, said


def logged(path, text):
    return text in (folder_of(path) / "log").read_text()


def check_failed(path, old, done, *words, refused=False):
    """The command has named the cause, and so does the status of the old actor, which serves."""
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    found = status(path)
    assert (found.pid, found.phase_text) == (old.pid, "serving")
    for word in words:
        assert word in done.stderr
        assert word in found.handoff.failed
    shown = [] if refused else [f"update failed, still serving: {found.handoff.failed}"]
    assert failed_updates(found) == shown
    assert actors_of(path) == {old.pid}


# --- before it is ready --------------------------------------------------------------------------


def cannot_import(build):
    build.append("hermes_actor.engine.writer", "import no_such_module")
    return build.python


def does_not_compile(build):
    build.append("hermes_actor.actor.server", "def f(:")
    return build.python


def is_not_there(build):
    return build.python.with_name("no-such-python")


def is_a_folder(build):
    return build.packages


def without_the_package(build):
    build.packages.joinpath("hermes_actor", "__main__.py").unlink()
    return build.python


def exits_at_once(build):
    build.append("hermes_actor.__init__", "import os; os._exit(0)")
    return build.python


def dies_before_ready(build):
    build.around(RECEIVE, before=DIE)
    return build.python


def talks_nonsense(build):
    build.around(RECEIVE, before="args[0]._channel.sendall(b'GET / HTTP/1.1')")
    return build.python


def speaks_out_of_turn(build):
    build.around(RECEIVE, before="args[0].report_serving()")
    return build.python


def knows_older_files_only(build):
    build.append("hermes_actor.engine.kinds", "NEWEST_FORMAT = 0")
    return build.python


NOT_READY = {
    cannot_import: ["has ended"],
    does_not_compile: ["has ended"],
    is_not_there: ["no-such-python", "cannot be started", "No such file"],
    is_a_folder: ["cannot be started", "Permission denied"],
    without_the_package: ["has ended"],
    exits_at_once: ["has ended"],
    dies_before_ready: ["has ended"],
    talks_nonsense: ["protocol error"],
    speaks_out_of_turn: ["Serving out of turn"],
    knows_older_files_only: ["has format", "this build knows 0 and older"],
    "/bin/false": ["has ended"],
    "/bin/true": ["has ended"],
}


def called(value):
    return getattr(value, "__name__", "").replace("_", " ") or None


@pytest.mark.parametrize("wrong", NOT_READY, ids=called)
def test_successor_that_does_not_get_ready_changes_nothing(path, build, wrong):
    with serving(path) as old, writer_load(path) as running:
        done = handoff(path, wrong if isinstance(wrong, str) else wrong(build))
        check_failed(path, old, done, *NOT_READY[wrong])
        assert own(path, "epoch") == 1
        running.goes_on()
        new = succeed(path)
        running.goes_on()
    assert check_owners(path) == [old.pid, new]


@pytest.mark.parametrize("stuck", [HANG, STOP], ids=["hangs", "stopped"])
def test_successor_that_is_not_ready_in_time_is_ended(path, build, tmp_path, stuck):
    hurry = tmp_path / "hurry"
    build.around(RECEIVE, before=stuck)
    hurry.touch()
    with (
        serving(path, prelude=while_there(hurry, SUCCESSOR_READY_SECONDS=1.0)) as old,
        writer_load(path) as running,
    ):
        done = handoff(path, build.python)
        check_failed(path, old, done, "was not ready in time")
        hurry.unlink()
        running.goes_on()
        new = succeed(path)
    assert check_owners(path) == [old.pid, new]


# --- refused -------------------------------------------------------------------------------------


def test_build_of_another_protocol_is_refused(path, build):
    """The clients that are there could not talk to it."""
    build.append("hermes_protocol.messages", "PROTOCOL = 2")
    with serving(path) as old, writer_load(path):
        done = handoff(path, build.python)
        check_failed(path, old, done, "speaks protocol 2 to 2", refused=True)
        new = succeed(path)
    assert check_owners(path) == [old.pid, new]


def test_older_build_is_refused_unless_it_is_asked_for(path, build, monkeypatch):
    build.install(OLDER)
    monkeypatch.setenv("HERMES_ACTOR_UPGRADE", "never")
    with serving(path) as old, writer_load(path) as running:
        done = handoff(path, build.python)
        check_failed(path, old, done, OLDER, "older", "--allow-older", refused=True)
        running.goes_on()
        done = command("handoff", "--db", path, "--allow-older", build.python)
        assert done.returncode == 0, done.stderr
        found = status(path)
        assert found.version == OLDER
        assert f"pid {found.pid} serves {path}, build {found.build}" in done.stdout
        running.goes_on()
        # And forward again.
        new = succeed(path)
    assert check_owners(path) == [old.pid, found.pid, new]


def test_newer_clients_do_not_undo_what_was_asked_for(path, build):
    """After going back from a bad update, the next connection does not bring it again."""
    build.install(OLDER)
    with serving(path), writer_load(path) as running:
        done = command("handoff", "--db", path, "--allow-older", build.python)
        assert done.returncode == 0
        older = actor_pid(path)
        running.goes_on(100)
        with closing(SessionDB(path)) as db:
            db.set_meta("k", "v")
        assert not logged(path, "hand-off: failed")
        found = status(path)
        assert (found.pid, found.version) == (older, OLDER)
        assert found.handoff is None


def test_older_build_that_does_not_know_the_file_is_refused_even_if_asked_for(path, build):
    build.install(OLDER)
    knows_older_files_only(build)
    with serving(path) as old:
        done = command("handoff", "--db", path, "--allow-older", build.python)
        check_failed(path, old, done, "has format")


def test_wrapper_that_does_not_become_python_is_refused(path, build, tmp_path):
    """It could be killed without ending what it has started, and then there were two owners."""
    wrapper = tmp_path / "wrapper"
    wrapper.write_text(f'#!/bin/sh\n{build.python} "$@"\n')
    wrapper.chmod(0o755)
    with serving(path) as old, writer_load(path):
        done = handoff(path, wrapper)
        assert done.returncode == 1
        assert "exec" in done.stderr
        wait_for(lambda: actors_of(path) == {old.pid})
        wrapper.write_text(f'#!/bin/sh\nexec {build.python} "$@"\n')
        new = succeed(path, wrapper)
    assert check_owners(path) == [old.pid, new]


@pytest.mark.parametrize(
    "python", ["a\0b", "", "x" * 1_000_000, "ä\n"], ids=["NUL", "empty", "long", "odd"]
)
def test_name_that_no_interpreter_can_have_does_not_harm_the_actor(path, python):
    with serving(path) as old, Wire(path) as wire:
        wire.send({"t": "handoff", "ask": -1, "python": python})
        answer = wire.answer(-1)
        assert (answer["t"], answer["code"]) == ("failed", "handoff-failed")
        assert wire.status().pid == old.pid
        assert wire.do(1, create("s"))["t"] == "ok"


# --- after the descriptors -----------------------------------------------------------------------

TAKEN = {
    "dies at once": (RECEIVE, "", DIE),
    "dies inside the migration": (MIGRATE, "", f"{HALF_DONE}; {DIE}"),
    "fails to migrate": (MIGRATE, "", f"{HALF_DONE}; raise RuntimeError('not like this')"),
    "dies before it says that it serves": (REPORT_SERVING, DIE, ""),
}


@pytest.mark.parametrize("fault", TAKEN)
def test_successor_that_does_not_come_to_serve_is_taken_back_from(path, build, fault):
    where, before, after = TAKEN[fault]
    build.append("hermes_actor.engine.kinds.sessions", OUTDATED)
    build.around(where, before, after)
    with serving(path) as old, writer_load(path) as running:
        running.goes_on()
        cause = "not like this" if fault == "fails to migrate" else "has ended"
        check_failed(path, old, handoff(path, build.python), cause)
        assert names(path, "table", "half_done") == set()
        running.goes_on()
        new = succeed(path)
        running.goes_on()
    order = check_owners(path)
    assert [pid for pid in order if pid in (old.pid, new)] == [old.pid, old.pid, new]


@pytest.mark.parametrize(
    ("where", "before", "after"),
    [(RECEIVE, "", STOP), (MIGRATE, f"{HALF_DONE}; {STOP}", ""), (REPORT_SERVING, STOP, "")],
    ids=["with the descriptors", "inside the migration", "before it says so"],
)
def test_successor_that_is_stopped_is_ended_and_taken_back_from(
    path, build, tmp_path, where, before, after
):
    hurry = tmp_path / "hurry"
    build.append("hermes_actor.engine.kinds.sessions", OUTDATED)
    build.around(where, before, after)
    hurry.touch()
    with (
        serving(path, prelude=while_there(hurry, SUCCESSOR_SERVING_SECONDS=0.5)) as old,
        writer_load(path) as running,
    ):
        check_failed(path, old, handoff(path, build.python), "did not serve in time")
        assert names(path, "table", "half_done") == set()
        hurry.unlink()
        running.goes_on()
        new = succeed(path)
    order = check_owners(path)
    assert [pid for pid in order if pid in (old.pid, new)] == [old.pid, old.pid, new]


def test_successor_that_is_signalled_before_it_serves_is_taken_back_from(path, build, tmp_path):
    """What it leaves behind is not its own yet: socket and lock stay."""
    here, go = tmp_path / "here", tmp_path / "go"
    build.append("hermes_actor.engine.kinds.sessions", OUTDATED)
    build.around(MIGRATE, before=f"{touch(here)}\n{wait_until(go)}")
    with serving(path) as old, writer_load(path) as running:
        with in_background("handoff", "--db", path, "--python", build.python) as process:
            wait_for(here.exists)
            (successor,) = actors_of(path) - {old.pid}
            os.kill(successor, signal.SIGTERM)
            wait_for(lambda: logged(path, "draining: SIGTERM"))
            go.touch()
            assert ending_of(process)[0] in (0, 1)
        wait_gone(successor)
        running.goes_on()
        assert actors_of(path) == {old.pid}
        new = succeed(path)
    assert check_owners(path) == [old.pid, successor, old.pid, new]


def test_sign_of_life_gives_more_time(path, build, tmp_path):
    """A migration may take longer than the limit, as long as it goes on."""
    hurry = tmp_path / "hurry"
    build.append("hermes_actor.engine.kinds.sessions", OUTDATED)
    build.around(MIGRATE, "for n in range(8): time.sleep(0.5); args[1](n / 8)")
    hurry.touch()
    with serving(path, prelude=while_there(hurry, SUCCESSOR_SERVING_SECONDS=3.0)) as old:
        SessionDB(path).close()
        new = request_handoff(resolve_paths(path), str(build.python))["pid"]
        assert actor_pid(path) == new != old.pid


def test_successor_that_cannot_be_ended_keeps_the_old_actor_closed(path, build, tmp_path):
    """Two owners would be worse than none. It says why, and goes on when the other is gone."""
    hurry = tmp_path / "hurry"
    prelude = while_there(hurry, SUCCESSOR_SERVING_SECONDS=0.5, SUCCESSOR_END_SECONDS=0.1)
    prelude += "import subprocess\nsubprocess.Popen.kill = lambda *_: None\n"
    build.around(RECEIVE, after=STOP)
    hurry.touch()
    with serving(path, prelude=prelude) as old, writer_load(path):
        with in_background("handoff", "--db", path, "--python", build.python) as process:
            wait_for(lambda: logged(path, "cannot be ended"))
            (stuck,) = actors_of(path) - {old.pid}
            # Not ready: a client that comes learns why, and waits.
            found = ask_status(resolve_paths(path))
            assert found.pid == old.pid
            assert f"pid {stuck}" in found.phase_text
            assert "cannot be ended" in found.phase_text
            assert [pid for _, pid, _ in owners(path)] == [old.pid, old.pid]
            done = command("status", "--db", path)
            assert done.returncode == 5
            assert "cannot be ended" in done.stdout
            os.kill(stuck, signal.SIGKILL)
            code, said = ending_of(process)
        assert code == 1
        assert "did not serve in time" in said
        assert status(path).is_serving
    assert check_owners(path) == [old.pid, old.pid]


# --- it serves, and then it dies -----------------------------------------------------------------


def test_old_actor_takes_back_from_a_successor_that_is_killed(path):
    with serving(path) as old, writer_load(path) as running:
        first = succeed(path)
        running.goes_on()
        kill(path, first)
        wait_for(lambda: actor_pid(path) == old.pid)
        running.goes_on()
        found = status(path)
        assert found.pid == old.pid
        assert "served and then ended" in found.handoff.failed
        assert failed_updates(found) == [f"update failed, still serving: {found.handoff.failed}"]
        second = succeed(path)
        running.goes_on()
    assert check_owners(path) == [old.pid, first, old.pid, second]
    assert own(path, "epoch") == 4


@pytest.mark.parametrize("end", [LEAVE, DIE], ids=["without an error", "with an error"])
def test_old_actor_takes_back_from_a_successor_that_ends_by_itself(path, build, end):
    """It has not said that it is about to: that it serves was the last that was heard."""
    build.around(REPORT_SERVING, after=end)
    with serving(path) as old, writer_load(path) as running:
        assert handoff(path, build.python).returncode == 0
        wait_for(lambda: actor_pid(path) == old.pid and logged(path, "taking back"))
        running.goes_on()
        assert "served and then ended" in status(path).handoff.failed
        new = succeed(path)
    order = check_owners(path)
    assert [pid for pid in order if pid in (old.pid, new)] == [old.pid, old.pid, new]


def test_nothing_is_taken_back_from_a_successor_that_was_signalled(path):
    with serving(path) as old, closing(SessionDB(path)) as db:
        db.create_session("s", "cli")
        new = succeed(path)
        os.kill(new, signal.SIGTERM)
        assert old.exit_code() == 0
        wait_gone(new)
        assert not socket_of(path).exists()
        # The next writer starts another one.
        db.append_message("s", "user", "x")
        assert actors_of(path) == {actor_pid(path)}
        assert actor_pid(path) not in (old.pid, new)
    assert check_owners(path)[:2] == [old.pid, new]
    assert contents(path, "s") == ["x"]


def test_successor_that_is_stopped_while_it_serves_is_left_alone(path, tmp_path):
    """It may go on at any moment, so no other can serve. When it does, nothing is missing."""
    hurry = tmp_path / "hurry"
    hurry.touch()
    with (
        serving(path, prelude=while_there(hurry, HANDOFF_STAY_SECONDS=1.0)) as old,
        writer_load(path) as running,
    ):
        new = succeed(path)
        pause(new)
        assert old.exit_code() == 0
        assert actors_of(path) == {new}
        os.kill(new, signal.SIGCONT)
        running.goes_on()
    assert check_owners(path) == [old.pid, new]


def test_third_in_a_row_with_the_middle_one_killed_while_it_stays(path):
    with serving(path) as old, writer_load(path) as running:
        second = succeed(path)
        third = succeed(path)
        kill(path, second)
        fourth = succeed(path)
        running.goes_on()
        assert old.exit_code() == 0
        assert actors_of(path) <= {third, fourth}
    assert check_owners(path) == [old.pid, second, third, fourth]
    assert own(path, "epoch") == 4


# --- at the same time ----------------------------------------------------------------------------


def test_second_of_two_at_once_is_refused(path, build, tmp_path):
    go = tmp_path / "go"
    build.around(RECEIVE, before=wait_until(go))
    with serving(path) as old, writer_load(path) as running:
        with in_background("handoff", "--db", path, "--python", build.python) as first:
            wait_for(lambda: logged(path, "started:"))
            second = handoff(path, sys.executable)
            assert second.returncode == 1
            assert "another hand-off is under way" in second.stderr
            running.goes_on()
            assert status(path).handoff.failed is None
            go.touch()
            code, said = ending_of(first)
        assert code == 0
        found = status(path)
        assert f"pid {found.pid} serves" in said
        assert found.version == NEWER
    assert check_owners(path) == [old.pid, found.pid]


def test_handoff_outlives_the_process_that_asked_for_it(path, build, tmp_path):
    go = tmp_path / "go"
    build.around(RECEIVE, before=wait_until(go))
    with serving(path) as old, writer_load(path) as running:
        with in_background("handoff", "--db", path, "--python", build.python) as process:
            wait_for(lambda: logged(path, "started:"))
            process.kill()
        go.touch()
        wait_for(lambda: actor_pid(path) not in (None, old.pid))
        running.goes_on()
        assert status(path).version == NEWER
    assert len(check_owners(path)) == 2


def test_handoff_during_a_drain_finds_no_actor(path):
    with serving(path) as old, closing(Wire(path)) as wire:
        assert wire.do(1, create("s"))["t"] == "ok"
        with write_lock(path), closing(Wire(path)) as other:
            wire.send(*[request(n, append("s", str(n))) for n in range(2, 12)])
            wait_for(lambda: sum(c.requests for c in other.status().connections) == 11)
            os.kill(old.pid, signal.SIGTERM)
            assert other.until_end()[-1]["t"] == "goaway"
            # It drains now, and a client asks that it has not let in any more.
            late = Wire(path, greet=False)
            late.send(hello(late.client_id), ask_for(sys.executable))
        with late:
            assert late.until_end() == []
        assert old.exit_code() == 0
    assert not logged(path, "hand-off")
    done = handoff(path, sys.executable)
    assert (done.returncode, actors_of(path)) == (3, set())
    assert "not running" in done.stdout
    assert contents(path, "s") == [str(n) for n in range(2, 12)]


def ask_for(python):
    return {"t": "handoff", "ask": -1, "python": str(python)}


def test_drain_before_the_successor_is_ready_calls_the_handoff_off(path, build, tmp_path):
    build.around(RECEIVE, before=HANG)
    with serving(path) as old, writer_load(path) as running:
        with in_background("handoff", "--db", path, "--python", build.python) as process:
            wait_for(lambda: logged(path, "started:"))
            os.kill(old.pid, signal.SIGTERM)
            code, said = ending_of(process)
        assert old.exit_code() == 0
        assert code == 1
        assert "the actor is draining" in said
        running.goes_on()
        (next_one,) = actors_of(path)
        assert status(path).version == OURS
    assert check_owners(path) == [old.pid, next_one]


def test_drain_while_the_successor_is_being_started_leaves_none_behind(path, build, tmp_path):
    here, go = tmp_path / "here", tmp_path / "go"
    build.around(RECEIVE, before=HANG)
    prelude = around("hermes_actor.actor.handoff.child:_popen", f"{touch(here)}\n{wait_until(go)}")
    with serving(path, prelude=prelude) as old:
        with in_background("handoff", "--db", path, "--python", build.python) as process:
            wait_for(here.exists)
            os.kill(old.pid, signal.SIGTERM)
            code, said = ending_of(process)
            assert code == 1
            assert "the actor is draining" in said
            go.touch()
        assert old.exit_code() == 0
    wait_for(lambda: not actors_of(path))


@pytest.mark.parametrize("end", ["", DIE], ids=["serves", "dies"])
def test_drain_after_the_descriptors(path, build, tmp_path, end):
    """It is too late to keep the successor from serving; if it does not, the next one does."""
    here, go = tmp_path / "here", tmp_path / "go"
    build.around(RECEIVE, after=f"{touch(here)}\n{wait_until(go)}\n{end}")
    with serving(path) as old, writer_load(path) as running:
        with in_background("handoff", "--db", path, "--python", build.python) as process:
            wait_for(here.exists)
            os.kill(old.pid, signal.SIGTERM)
            go.touch()
            code, said = ending_of(process)
        assert old.exit_code() == 0
        running.goes_on()
        (new,) = actors_of(path)
        if end:
            assert code == 1
            assert "has ended" in said
            assert status(path).version == OURS
        else:
            assert code == 0
            assert f"pid {new} serves" in said
            assert status(path).version == NEWER
    assert check_owners(path) == [old.pid, new]


BUSY = {
    "index slice": "hermes_actor.engine.index.maintenance:index_until",
    "checkpoint": "hermes_actor.engine.checkpoint:run_checkpoint",
}


@pytest.mark.parametrize("busy", BUSY)
def test_handoff_waits_for_what_the_writer_is_doing(path, tmp_path, busy):
    """The successor is ready while the writer is in the middle of something."""
    armed, here, go = tmp_path / "armed", tmp_path / "here", tmp_path / "go"
    prelude = around(
        BUSY[busy],
        before=f"if os.path.exists({str(armed)!r}):\n    {touch(here)}\n    {wait_until(go)}",
    )
    with serving(path, prelude=prelude) as old, writer_load(path, 2) as running:
        running.goes_on()
        armed.touch()
        with closing(SessionDB(path)) as db:
            searching = threading.Thread(target=db.search_messages, args=("7",))
            searching.start()
            wait_for(here.exists)
            with in_background("handoff", "--db", path) as process:
                wait_for(lambda: logged(path, "is ready"))
                assert [what for what, *_ in owners(path)] == ["opened"]
                go.touch()
                code, said = ending_of(process)
            assert code == 0, said
            searching.join()
            running.goes_on()
            # The one that took over goes on where the other stopped.
            db.create_session("s", "cli")
            db.append_message("s", "user", "walrus")
            assert [hit["session_id"] for hit in db.search_messages("walrus")] == ["s"]
    new = status(path).pid
    assert check_owners(path) == [old.pid, new]


def test_handoff_while_a_backup_runs(path, tmp_path):
    copy = tmp_path / "copy.db"
    pids = []

    def hand_over_once(_done, _total):
        if not pids:
            before.extend(contents(path, "writer-0"))
            pids.append(succeed(path))
            running.goes_on()

    before = []
    with serving(path) as old, writer_load(path) as running:
        running.goes_on()
        create_backup(path, copy, hand_over_once)
    assert check_owners(path) == [old.pid, *pids]
    copied = contents(copy, "writer-0")
    # What it began with, whatever came after.
    assert copied == before[: len(copied)]
    assert copied


FIRST = """
import types
from hermes_actor.actor.handoff import coordinator
coordinator.os = types.SimpleNamespace(getpid=lambda: 1)
"""


def test_the_first_process_of_a_container_hands_nothing_over(path):
    """The successor would be killed with it. `make dist` tries it in a real namespace."""
    with serving(path, prelude=FIRST) as actor:
        done = command("handoff", "--db", path)
        assert done.returncode == 1
        assert "is process 1 of its container, which ends with it" in done.stderr
        with closing(SessionDB(path)) as db:
            db.create_session("s", "cli")
        assert actor_pid(path) == actor.pid
