"""What clients send while no writer is there: it reaches one writer, or none, never two (G2)."""

import os
import signal
import sys
from contextlib import closing

from support.actors import actor_pid, contents, folder_of, wait_for
from support.fake_builds import around, serving
from support.wire import Wire, append, create, hello, request

from hermes_actor import SessionDB
from hermes_actor.client.control import ask_status
from hermes_actor.paths import resolve_paths

HANDOFF = {"t": "handoff", "ask": -1, "python": sys.executable, "wait": True}


def logged(path, text):
    log = folder_of(path) / "log"
    return log.exists() and text in log.read_text(errors="replace")


def file_is_closed(path):
    """Whether the successor has the lock, so that the old actor has closed the file."""
    return (folder_of(path) / "log").read_text(errors="replace").count(f" owns {path}") == 2


def test_request_of_a_connection_that_waits_for_a_hand_off_is_not_kept(
    path, long_lived, monkeypatch
):
    """Its client has it executed by the successor; a take-back must not execute it once more."""
    monkeypatch.setenv("HERMES_ACTOR_FAILPOINT", "successor.serving:1:sleep=1")
    with serving(path) as old:
        with closing(Wire(path)) as first:
            assert first.do(1, create("s"))["t"] == "ok"
        with closing(Wire(path)) as wire:
            wire.send(HANDOFF)
            wait_for(lambda: file_is_closed(path))
            after = wire.welcome["commit_no"]
            wire.send(request(1, append("s", "once"), after=after))
            assert wire.answer(-1)["t"] == "done"
            assert [one["t"] for one in wire.until_end()] == ["goaway"]
            with closing(Wire(path, wire.client_id)) as again:
                assert again.do(1, append("s", "once"), after=after)["t"] == "ok"
                again.send({"t": "bye"})
                assert again.until_end() == []
        assert contents(path, "s") == ["once"]
        successor = actor_pid(path)
        assert successor != old.pid
        os.kill(successor, signal.SIGKILL)
        wait_for(lambda: actor_pid(path) == old.pid)
        with closing(Wire(path)) as last:
            assert last.welcome["pid"] == old.pid
            assert last.do(1, append("s", "later"))["t"] == "ok"
        assert contents(path, "s") == ["once", "later"]


def test_request_that_waited_for_a_failed_hand_off_is_executed_once(path, monkeypatch):
    """The file is ours again: what came meanwhile is answered on the same connection."""
    monkeypatch.setenv("HERMES_ACTOR_FAILPOINT", "successor.serving")
    with serving(path) as old:
        with closing(Wire(path)) as first:
            assert first.do(1, create("s"))["t"] == "ok"
        with closing(Wire(path)) as wire:
            wire.send(HANDOFF)
            wait_for(lambda: file_is_closed(path))
            wire.send(request(1, append("s", "once")))
            assert wire.answer(-1)["t"] == "failed"
            assert wire.answer(1)["t"] == "ok"
        assert old.lives
        assert contents(path, "s") == ["once"]


def test_status_is_answered_while_a_drain_takes_long(path):
    """The file takes long to close: a sync hangs, or a checkpoint is large."""
    slow = around("hermes_actor.engine.connection:WriteConnection.close", "time.sleep(8)")
    with serving(path, prelude=slow) as old:
        with closing(Wire(path)) as first:
            assert first.do(1, create("s"))["t"] == "ok"
        os.kill(old.pid, signal.SIGTERM)
        wait_for(lambda: logged(path, "draining"))
        # Asked before it listens again, answered when it does; the request waits for the next one.
        found = ask_status(resolve_paths(path), 30.0)
        assert found is not None
        assert (found.pid, found.phase_text) == (old.pid, "draining")
        with closing(SessionDB(path, mode="actor")) as late:
            late.append_message("s", "user", "late")
            assert late._port.statistics()["pid"] != old.pid
        assert old.exit_code(60) == 0
    assert contents(path, "s") == ["late"]


def test_client_that_comes_during_a_long_drain_is_sent_on(path):
    slow = around("hermes_actor.engine.connection:WriteConnection.close", "time.sleep(5)")
    with serving(path, prelude=slow) as old:
        with closing(Wire(path)) as first:
            assert first.do(1, create("s"))["t"] == "ok"
        os.kill(old.pid, signal.SIGTERM)
        wait_for(lambda: logged(path, "draining"))
        with closing(Wire(path, greet=False)) as late:
            late.send(hello(late.client_id), request(1, append("s", "never here")))
            said = late.until_end()
        assert {one["t"] for one in said} <= {"welcome", "goaway"}
        assert not any(one.get("ready", True) for one in said if one["t"] == "welcome")
        assert old.exit_code(60) == 0
    assert contents(path, "s") == []
