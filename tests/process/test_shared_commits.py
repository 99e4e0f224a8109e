"""Leases of several programs share one sync; none is answered before it (G1)."""

import os
import signal
from contextlib import ExitStack

import pytest
from support.actor_process import served
from support.actors import wait_for
from support.files import query
from support.wire import Wire, create, status

from hermes_actor import exit_codes

# Syncs that leases share wait for a file, and say that they wait by another.
GATED = """
import os, time
from hermes_actor.engine.connection import WriteConnection

def sync_wal(self, plain=WriteConnection.sync_wal):
    open("{0}.waits", "w").close()
    while not (os.path.exists("{0}") and os.path.getsize("{0}")):
        time.sleep(0.01)
    if open("{0}").read() == "fail":
        raise OSError(5, "Input/output error")
    plain(self)

WriteConnection.sync_wal = sync_wal
"""


@pytest.fixture
def gate(tmp_path):
    return tmp_path / "gate"


@pytest.fixture
def actor(path, gate):
    with served(path, GATED.format(gate)) as actor:
        yield actor


@pytest.fixture
def wires(path, actor):
    """Four clients: the first has a session."""
    with ExitStack() as stack:
        found = [stack.enter_context(Wire(path)) for _ in range(4)]
        found[0].do(1, create("s"))
        yield found


def insert(text):
    sql = "INSERT INTO messages (session_id, role, content, timestamp) VALUES ('s', 'user', ?, 1.0)"
    return {"op": "sql.run", "steps": [{"sql": sql, "parameters": [text]}]}


def opening(number, text):
    return {
        "t": "lease.open",
        "ask": -number,
        "lease": number,
        "patience": 60.0,
        "first": insert(text),
    }


def commit(number):
    return {"t": "lease.commit", "seq": number, "lease": number}


def texts(path):
    return [text for (text,) in query(path, "SELECT content FROM messages ORDER BY id")]


def two_committed(path, wires, gate):
    """Have the leases of two clients committed, and neither synced nor answered."""
    first, second, third, last = wires
    for wire, text in zip(wires, ("first", "second", "third", "last"), strict=True):
        wire.send(opening(2, text))
        # One after the other, and all of them there before the first one ends.
        if wire is first:
            wire.answer(-2)
        else:
            count = wires.index(wire)
            wait_for(lambda count=count: status(path).queue.count == count)
    first.send(commit(2))
    assert first.answer(2)["t"] == "ok"  # it was alone when it began: synced by itself
    for wire in (second, third):
        wire.answer(-2)
        wire.send(commit(2))
    wait_for(gate.with_name("gate.waits").exists)
    # The next lease runs while they wait; what they have written is in the file.
    last.answer(-2)
    assert texts(path) == ["first", "second", "third"]
    return second, third


def next_numbers(wire):
    """Return what the actor has answered by now: ``seq`` of changes."""
    wire.send({"t": "status", "ask": -99})
    found = []
    while (message := wire.receive())["t"] != "status.reply":
        found.append(message.get("seq"))
    return found


def test_commits_are_answered_after_the_sync_that_they_share(path, wires, gate):
    second, third = two_committed(path, wires, gate)
    assert next_numbers(second) == next_numbers(third) == []
    gate.write_text("go")
    assert [wire.answer(2)["t"] for wire in (second, third)] == ["ok", "ok"]
    last = wires[-1]
    last.send(commit(2))
    assert last.answer(2)["t"] == "ok"
    assert texts(path) == ["first", "second", "third", "last"]


def test_other_changes_wait_for_the_sync(path, wires, gate):
    """A batch syncs by itself, and would take the report of a sync that has failed."""
    second, third = two_committed(path, wires, gate)
    last = wires[-1]
    last.send({"t": "lease.rollback", "ask": -3, "lease": 2})
    last.answer(-3)
    wires[0].send({"t": "request", "seq": 3, "operation": create("t")})
    assert next_numbers(second) == []
    assert query(path, "SELECT id FROM sessions") == [("s",)]
    gate.write_text("go")
    assert wires[0].answer(3)["t"] == "ok"
    assert {second.answer(2)["t"], third.answer(2)["t"]} == {"ok"}


def test_failed_sync_ends_the_actor_and_nothing_is_acknowledged(path, wires, gate, actor):
    second, third = two_committed(path, wires, gate)
    gate.write_text("fail")
    ended = [second.until_end(), third.until_end()]
    assert not any(message["t"] == "ok" for messages in ended for message in messages)
    assert actor.exit_code() == exit_codes.FSYNC_FAILED


def test_commit_of_a_killed_actor_is_answered_by_its_receipt(path, wires, gate, actor):
    second, _ = two_committed(path, wires, gate)
    os.kill(actor.pid, signal.SIGKILL)
    actor.exit_code()
    gate.write_text("go")
    with served(path), Wire(path, second.client_id) as again:
        again.send(commit(2))
        answer = again.answer(2)
        assert answer["t"] == "ok", answer
    assert texts(path) == ["first", "second", "third"]


def test_drain_answers_what_waits_for_its_sync(path, wires, gate, actor):
    second, third = two_committed(path, wires, gate)
    wires[-1].close()
    os.kill(actor.pid, signal.SIGTERM)
    gate.write_text("go")
    for wire in (second, third):
        assert [m["t"] for m in wire.until_end() if m.get("seq") == 2] == ["ok"]
    assert actor.exit_code() == 0
    assert texts(path) == ["first", "second", "third"]
