"""G16: an unexpected exception ends one request, connection or step, never the actor.

Each test has one place of a real actor raise once. Other clients are served all the while, by the
same process, and the log has the traceback.
"""

import contextlib
import errno
import os
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing

import pytest
from support.actors import actor_pid, folder_of, own, wait_for
from support.fake_builds import around, serving
from support.wire import Wire, append, create, select

from hermes_actor import SessionDB
from hermes_actor.build import is_newer
from hermes_actor.client.control import ask_status
from hermes_actor.errors import HermesActorError
from hermes_actor.paths import resolve_paths

# Places in the event loop: readers, asks, followers, callbacks, and everything that is periodic.
LOOP = [
    "hermes_actor.actor.connection:Connection.__init__",
    "hermes_actor.actor.connection:Connection._converse",
    "hermes_actor.actor.connection:Connection._finish_sending",
    "hermes_actor.actor.connection:Connection.send_frame",
    "hermes_actor.actor.connection:Connection._answer_the_rest",
    "hermes_actor.actor.frame_reader:FrameReader._receive",
    "hermes_protocol.server:ServerProtocol.next_message",
    "hermes_actor.actor.connections:ConnectionSet.welcome",
    "hermes_actor.actor.requests:RequestTracker.admit",
    "hermes_actor.actor.requests:RequestTracker.catch_up",
    "hermes_actor.actor.requests:RequestTracker.maintain",
    "hermes_actor.actor.requests:RequestTracker.lease",
    "hermes_actor.actor.requests:RequestTracker.forget",
    "hermes_actor.actor.status:StatusReporter.status",
    "hermes_actor.actor.server:Server.hand_off",
    "hermes_actor.actor.change_feed:ChangeFeed.feed",
    "hermes_actor.actor.change_feed:ChangeFeed._wake",
    "hermes_actor.actor.outbox:Outbox.flush",
    "hermes_actor.actor.timers:is_gone",
    "hermes_actor.actor.status:processes_with_write_fd",
    "hermes_actor.actor.mailbox:Mailbox.take_expired",
    "hermes_actor.actor.socket_activation:is_recorded_elsewhere",
    "hermes_actor.actor.sd_notify:ServiceManager.tick",
    "hermes_actor.actor.connection:peer_credentials",
]

# Places in the writer's thread.
WRITER = [
    "hermes_actor.actor.frame_reader:FrameReader._admit",
    "hermes_actor.engine.jobs:Job.take",
    "hermes_actor.engine.jobs:Request.decoded",
    "hermes_actor.actor.requests:RequestTracker._reply",
    "hermes_actor.actor.requests:RequestTracker._answer_ask",
    "hermes_actor.actor.metrics:Metrics.batch",
    "hermes_actor.actor.metrics:Metrics.answered",
    "hermes_actor.engine.writer:Writer.run_batch",
    "hermes_actor.engine.batch:BatchRunner._apply_request",
    "hermes_actor.engine.change_transaction:ChangeTransaction.publish",
    "hermes_actor.engine.leases:LeaseRunner.begin",
    "hermes_actor.engine.leases:LeaseRunner.run",
    "hermes_actor.engine.leases:LeaseRunner.end",
    "hermes_actor.engine.maintenance:IdleMaintenance.forget_client",
    "hermes_actor.engine.writer:Writer.idle_slice",
    "hermes_actor.engine.receipts:Receipts.find",
    "hermes_actor.engine.receipts:Receipts.record",
    "hermes_actor.engine.index.maintenance:index_until",
    "hermes_actor.engine.checkpoint:Checkpointer.run_if_due",
    "hermes_actor.engine.loop:maintain",
    "hermes_actor.engine.connection:WriteConnection.begin",
    "hermes_actor.engine.connection:set_internal",
]


def raise_once(where, flag):
    """Code that makes *where* raise, once, as soon as *flag* is there."""
    before = f"""
if os.path.exists({str(flag)!r}):
    os.unlink({str(flag)!r})
    raise RuntimeError('injected')
"""
    return around(where, before)


def stir(path, number):
    """Have an actor do something of every kind; what it does not survive is the test's business."""
    with contextlib.suppress(AssertionError, OSError), closing(Wire(path)) as wire:
        wire.sock.settimeout(1.0)
        session = f"stirred {number}"
        wire.send(
            {"t": "request", "seq": 1, "operation": create(session)},
            {"t": "request", "seq": 2, "operation": append(session, "text")},
            {"t": "status", "ask": -1},
            {"t": "catch-up", "ask": -2, "through": 1},
            {"t": "maintain", "ask": -3, "task": "dance"},
            {"t": "handoff", "ask": -4, "python": "python", "build": "0", "wait": False},
            {"t": "lease.open", "ask": -5, "lease": 3},
            {"t": "lease.run", "ask": -6, "lease": 3, "statement": select("SELECT 1")},
            {"t": "lease.commit", "seq": 3, "lease": 3},
            {"t": "request", "seq": 4, "operation": append(session, "late"), "patience": 0.0},
            {"t": "bye"},
        )
        wire.until_end()
    with contextlib.suppress(AssertionError, OSError), closing(Wire(path)) as follower:
        follower.sock.settimeout(0.2)
        follower.send({"t": "subscribe", "after": 0})
        with closing(sqlite3.connect(path)) as foreign:
            foreign.execute("PRAGMA user_version = 1")
            follower.until_end()


@pytest.mark.parametrize("where", LOOP + WRITER)
def test_unexpected_error_ends_one_thing_alone(path, tmp_path, where, monkeypatch):
    flag = tmp_path / "raise now"
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "no manager"))
    monkeypatch.setenv("WATCHDOG_USEC", "400000")
    with (
        serving(path, prelude=raise_once(where, flag)) as actor,
        closing(SessionDB(path, mode="actor")) as neighbour,
    ):
        neighbour.create_session("neighbour", "cli")
        flag.touch()
        number = 0
        while flag.exists():
            stir(path, number)
            # The neighbour may meet the error itself.
            with contextlib.suppress(HermesActorError, RuntimeError):
                neighbour.set_meta("k", str(number))
            number += 1
        assert actor.lives
        wait_for(lambda: "RuntimeError: injected" in actor.last_words())
        assert "Traceback" in actor.last_words()
        # One that met the error itself may have to ask once more; all others see nothing of it.
        with contextlib.suppress(HermesActorError):
            neighbour.append_message("neighbour", "user", "perhaps")
        assert neighbour.append_message("neighbour", "user", "after") > 0
        assert neighbour.search_messages("after")
        with closing(SessionDB(path, mode="actor")) as another:
            another.set_meta("another", "1")
            assert another._port.statistics()["pid"] == actor.pid == actor_pid(path)
            assert another._port.statistics()["phase"] == "serving"
    assert actor.exit_code() == 0


def test_wait_for_the_index_that_fails_holds_up_no_other(path):
    """Searches that wait for the index share a list; one that fails again and again leaves it."""
    fails = """
if args[1] == 77:
    raise RuntimeError('injected')
"""
    where = "hermes_actor.engine.index.maintenance:IndexMaintenance.pending_large_texts"
    with serving(path, prelude=around(where, fails)) as actor, closing(Wire(path)) as wire:
        wire.send({"t": "catch-up", "ask": -1, "through": 77, "patience": 60.0})
        wire.send({"t": "catch-up", "ask": -2, "through": 0, "patience": 60.0})
        assert wire.answer(-1)["t"] == "failed"
        assert wire.answer(-2)["t"] == "done"
        assert "RuntimeError: injected" in actor.last_words()


ATTEMPT = [
    "hermes_actor.actor.handoff.child:SuccessorProcess.__init__",
    "hermes_actor.actor.handoff.child:SuccessorProcess.ready",
    "hermes_actor.actor.handoff.child:SuccessorProcess.send_descriptors",
    "hermes_actor.actor.handoff.child:SuccessorProcess.serving",
    "hermes_actor.actor.handoff.coordinator:HandoffCoordinator.release_predecessor",
]


@pytest.mark.parametrize("where", ATTEMPT)
def test_unexpected_error_in_a_hand_off_is_a_failed_hand_off(path, tmp_path, where):
    flag = tmp_path / "raise now"
    with serving(path, prelude=raise_once(where, flag)) as actor:
        flag.touch()
        with closing(Wire(path)) as wire:
            wire.send({"t": "handoff", "ask": -1, "python": sys.executable, "wait": True})
            answer = wire.answer(-1)
        assert answer["t"] == "failed"
        assert "injected" in answer["message"]
        assert actor.lives
        assert "RuntimeError: injected" in actor.last_words()
        with closing(SessionDB(path, mode="actor")) as db:
            db.set_meta("k", "after")
        found = wait_for(lambda: ask_status(resolve_paths(path)))
        assert found.pid == actor.pid
        assert any("injected" in text for text in found.degraded)


@pytest.mark.parametrize(
    "sabotage",
    ["del os.pidfd_open", "def no(*_): raise PermissionError('seccomp')\nos.pidfd_open = no"],
)
def test_hand_off_needs_no_pidfd(path, sabotage):
    """macOS, kernels before 5.3, and the seccomp filters of older containers have none."""
    prelude = f"import os\n{sabotage}\n"
    with serving(path, prelude=prelude) as actor:
        with closing(Wire(path)) as wire:
            wire.send({"t": "handoff", "ask": -1, "python": "/bin/true", "wait": True})
            assert wire.answer(-1)["t"] == "failed"
        assert actor.lives
        with closing(Wire(path)) as wire:
            wire.send({"t": "handoff", "ask": -1, "python": sys.executable, "wait": True})
            answer = wire.answer(-1)
        assert answer["t"] == "done", answer
        assert wait_for(lambda: actor_pid(path)) != actor.pid
        assert actor.exit_code() == 0


def test_build_of_too_many_digits_is_no_version(path):
    with serving(path) as actor, closing(Wire(path)) as wire:
        build = "9" * 5000
        wire.send({"t": "handoff", "ask": -1, "python": "python", "build": build, "wait": False})
        assert wire.answer(-1)["code"] == "handoff-failed"
        assert not is_newer(build, than="0")
        assert wire.do(1, create("s"))["t"] == "ok"
        assert actor.lives


# --- files that cannot be looked at ---------------------------------------------------------------

BLIND = """
import os
looks = os.stat
def stat(path, *args, **kwargs):
    if isinstance(path, (str, os.PathLike)) and os.fspath(path).startswith({home!r}):
        if len(os.listdir({flags!r})):
            raise OSError({code}, os.strerror({code}), os.fspath(path))
    return looks(path, *args, **kwargs)
os.stat = stat
"""


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO, errno.ESTALE])
def test_home_that_cannot_be_looked_at_refuses_until_it_can(path, tmp_path, code):
    """As on a network or FUSE mount that fails for a while (G11): the actor stays, and says why."""
    flags = tmp_path / "flags"
    flags.mkdir()
    home = tmp_path / "home"
    home.mkdir()
    path = home / "state.db"
    prelude = BLIND.format(home=str(home), flags=str(flags), code=code)
    with serving(path, prelude=prelude) as actor, closing(Wire(path)) as wire:
        assert wire.do(1, create("s"))["t"] == "ok"
        before = own(path, "commit_no")
        (flags / "blind").touch()
        wait_for(lambda: os.strerror(code) in actor.last_words())
        seq, refused = 2, {}
        while not refused:
            answer = wire.do(seq, append("s", "text"), timeout=60.0)
            refused = answer if answer["t"] == "failed" else {}
            seq += 1
        assert os.strerror(code) in refused["message"]
        assert actor.lives
        (flags / "blind").unlink()
        assert wire.do(seq, append("s", "again"))["t"] == "ok"
        assert own(path, "commit_no") > before
        assert actor.lives


def test_commit_whose_files_cannot_be_looked_at_is_unknown_and_answered_when_they_can(
    path, tmp_path
):
    """R3 acknowledges nothing unseen; the receipt answers the client that asks again, once."""
    flag = tmp_path / "blind"
    prelude = f"""
import os
from hermes_actor.engine.file_identity import FileIdentityGuard
from hermes_actor.engine.connection import WriteConnection
committing = []
def commit(self, *args, really=WriteConnection.commit, **kwargs):
    committing.append(1)
    try:
        return really(self, *args, **kwargs)
    finally:
        committing.clear()
def intact(self, really=FileIdentityGuard.intact):
    if committing and os.path.exists({str(flag)!r}):
        os.unlink({str(flag)!r})
        raise OSError(5, "Input/output error")
    return really(self)
WriteConnection.commit, FileIdentityGuard.intact = commit, intact
"""
    with serving(path, prelude=prelude) as actor, closing(Wire(path)) as wire:
        assert wire.do(1, create("s"))["t"] == "ok"
        flag.touch()
        answer = wire.do(2, append("s", "once"))
        assert answer["t"] == "failed"
        assert answer["executed"] == "unknown"
        again = wire.do(2, append("s", "once"))
        assert again["t"] == "ok"
        assert wire.do(3, append("s", "next"))["commit_no"] == again["commit_no"] + 1
        assert actor.lives


def test_two_errors_at_once_do_not_add_up(path, tmp_path):
    """Many clients meet the same error at the same time."""
    flag = tmp_path / "raise now"
    where = "hermes_actor.actor.requests:RequestTracker.maintain"
    prelude = around(where, f"if os.path.exists({str(flag)!r}): raise RuntimeError('injected')")
    with serving(path, prelude=prelude) as actor:
        flag.touch()
        answers = []

        def ask():
            with closing(Wire(path)) as wire:
                wire.send({"t": "maintain", "ask": -1, "task": "dance"})
                answers.append(wire.answer(-1)["message"])

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(answers) == 8
        assert all("injected" in answer for answer in answers)
        assert actor.lives


# --- outside of the actor -------------------------------------------------------------------------


def test_actor_whose_terminal_is_gone_serves(path):
    """It cannot print that it serves."""
    ours, theirs = os.pipe()
    os.close(ours)
    words = [sys.executable, "-P", "-m", "hermes_actor", "serve", "--plain", "--db", str(path)]
    with subprocess.Popen(words, stdout=theirs, stderr=subprocess.DEVNULL) as process:
        os.close(theirs)
        try:
            wait_for(lambda: ask_status(resolve_paths(path)))
            with closing(SessionDB(path, mode="actor")) as db:
                db.set_meta("k", "v")
                assert db._port.statistics()["pid"] == process.pid
        finally:
            process.terminate()
        process.wait(60)


def test_look_for_foreign_writers_keeps_no_client_waiting(path, tmp_path):
    """There may be tens of thousands of descriptors to look at: it is done in a thread."""
    begun = tmp_path / "begun"
    slow = around(
        "hermes_actor.actor.status:processes_with_write_fd",
        f"open({str(begun)!r}, 'w').close(); time.sleep(600)",
    )
    with serving(path, prelude=slow) as actor, closing(Wire(path)) as wire:
        assert wire.do(1, create("s"))["t"] == "ok"
        with closing(sqlite3.connect(path)) as foreign:
            foreign.execute("PRAGMA user_version = 1")
            wait_for(begun.exists)
        assert wire.do(2, append("s", "text"))["t"] == "ok"
        assert wire.status().is_serving
    assert actor.exit_code() == 0


@pytest.mark.parametrize("task", ["restore", "rebuild-index", "reindex"])
def test_ask_that_meets_a_foreign_lock_is_refused(path, task):
    """Also before the barrier, where nothing has been begun yet."""
    with serving(path), closing(Wire(path)) as wire:
        assert wire.do(1, create("s"))["t"] == "ok"
    copy = folder_of(path) / "copy.db"
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    with closing(sqlite3.connect(path, isolation_level=None)) as foreign:
        foreign.execute("BEGIN IMMEDIATE")
        with serving(path) as actor, closing(Wire(path)) as wire, closing(Wire(path)) as other:
            assert wire.welcome["phase"] == "recovering"
            wire.send({"t": "maintain", "ask": -1, "task": task, "path": str(copy), "patience": 1})
            answer = wire.answer(-1)
            assert answer["code"] in ("busy", "deadline"), answer
            assert answer.get("executed", "no") == "no"
            other.send({"t": "request", "seq": 1, "operation": append("s", "text")})
            foreign.execute("ROLLBACK")
            assert other.answer(1)["t"] == "ok"
            assert actor.lives
