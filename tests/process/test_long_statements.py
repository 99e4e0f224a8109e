"""No statement of a caller holds the writer for ever (G13): it is interrupted at its limit.

The statements here never end by themselves, so an answer to anything behind one proves that it was
interrupted.
"""

import contextlib
import os
import signal
import sqlite3
import sys
from contextlib import closing

import msgspec
import pytest
from support.actors import actor_pid, contents, wait_for, wait_gone
from support.fake_builds import serving
from support.wire import Wire, append, create, request, select, status

from hermes_actor.engine import guest_statements
from hermes_actor.engine.admin_tasks import maintain
from hermes_actor.engine.jobs import Request
from hermes_actor.engine.ownership import OwnerLock
from hermes_actor.engine.receipts import Ticket
from hermes_actor.engine.writer import Writer
from hermes_actor.errors import DeadlineExceeded
from hermes_actor.paths import resolve_paths
from hermes_protocol import operations as ops

_COUNT = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c"
ENDLESS = {
    "read": _COUNT,
    "write": f"UPDATE state_meta SET value = ({_COUNT})",
    "delete": f"DELETE FROM state_meta WHERE ({_COUNT}) > 0",
    "index": f"SELECT ({_COUNT}), count(*) FROM messages_fts",
}
endless = pytest.mark.parametrize("sql", ENDLESS.values(), ids=ENDLESS)

NEVER = 100_000.0


def limits(**seconds):
    """Code that gives an actor other limits."""
    lines = [f"limits.{name} = {value!r}" for name, value in seconds.items()]
    return "\n".join(["from hermes_actor import limits", *lines, ""])


@pytest.fixture
def store(path):
    """A served store with rows, and a client beside the one of the test."""
    with contextlib.ExitStack() as stack:

        def serve(prelude=""):
            actor = stack.enter_context(serving(path, prelude=prelude))
            other = stack.enter_context(closing(Wire(path)))
            assert other.do(1, create("s"))["t"] == "ok"
            assert other.do(2, append("s", "text"))["t"] == "ok"
            assert other.do(3, {"op": "meta.set", "key": "k", "value": "v"})["t"] == "ok"
            return actor, other

        yield serve


def refused(answer):
    assert answer["t"] == "failed", answer
    assert answer["code"] == "deadline"
    assert answer.get("executed", "no") == "no"
    assert "interrupted" in answer["message"] or "rolled back" in answer["message"]
    return answer["message"]


def runs(actor):
    """Wait until the writer is busy: it takes nothing that waits."""
    ticks = os.sysconf("SC_CLK_TCK")

    def used():
        with open(f"/proc/{actor.pid}/stat") as file:
            return sum(map(int, file.read().rpartition(")")[2].split()[11:13])) / ticks

    before = used()
    wait_for(lambda: used() > before + 0.1)


@endless
def test_statement_is_interrupted_when_others_wait(path, store, sql):
    actor, other = store(limits(LEASE_TOTAL_SECONDS=NEVER))
    with closing(Wire(path)) as wire:
        wire.send(request(1, select(sql), timeout=NEVER))
        runs(actor)
        assert other.do(4, append("s", "behind"))["t"] == "ok"
        assert "others wait" in refused(wire.answer(1))
        # The client goes on, and so does everything else.
        assert wire.do(2, append("s", "again"))["t"] == "ok"
    assert contents(path, "s") == ["text", "behind", "again"]


@endless
def test_statement_in_a_transaction_is_interrupted_when_others_wait(path, store, sql):
    actor, other = store(limits(LEASE_TOTAL_SECONDS=NEVER))
    with closing(Wire(path)) as wire:
        wire.send({"t": "lease.open", "ask": -1, "lease": 1})
        assert wire.answer(-1)["t"] == "done"
        for ask, text in ((-2, "INSERT INTO state_meta VALUES ('mine', '1')"), (-3, sql)):
            wire.send({"t": "lease.run", "ask": ask, "lease": 1, "statement": select(text)})
        runs(actor)
        assert other.do(4, append("s", "behind"))["t"] == "ok"
        assert "others wait" in refused(wire.answer(-3))
        # The whole transaction is gone, whatever kind of statement it was.
        wire.send({"t": "lease.commit", "seq": 1, "lease": 1})
        refused(wire.answer(1))
        assert wire.do(2, {"op": "meta.set", "key": "mine", "value": "2"})["t"] == "ok"


@endless
def test_statement_ends_with_its_transaction(path, store, sql):
    """Nothing else waits; the limit of the transaction counts the statement that runs."""
    _, other = store(limits(STATEMENT_BESIDE_OTHERS_SECONDS=NEVER))
    with closing(Wire(path)) as wire:
        wire.send({"t": "lease.open", "ask": -1, "lease": 1})
        wire.send({"t": "lease.run", "ask": -2, "lease": 1, "statement": select(sql)})
        assert "time is over" in refused(wire.answer(-2))
        assert other.do(4, append("s", "behind"))["t"] == "ok"


@endless
def test_statement_ends_at_its_deadline(path, store, sql):
    _, other = store(limits(STATEMENT_BESIDE_OTHERS_SECONDS=NEVER))
    with closing(Wire(path)) as wire:
        wire.send(request(1, select(sql), timeout=0.3))
        refused(wire.answer(1))
        assert other.do(4, append("s", "behind"))["t"] == "ok"


@endless
def test_statement_of_a_client_that_left_is_interrupted(path, store, sql):
    actor, other = store(limits(LEASE_TOTAL_SECONDS=NEVER, STATEMENT_BESIDE_OTHERS_SECONDS=NEVER))
    with closing(Wire(path)) as wire:
        wire.send({"t": "lease.open", "ask": -1, "lease": 1})
        wire.send({"t": "lease.run", "ask": -2, "lease": 1, "statement": select(sql)})
        runs(actor)
    assert other.do(4, append("s", "behind"))["t"] == "ok"


@pytest.mark.parametrize("leased", [False, True], ids=["alone", "in a transaction"])
@endless
def test_drain_does_not_wait_for_a_statement(path, store, sql, leased):
    actor, _ = store(limits(LEASE_TOTAL_SECONDS=NEVER))
    with closing(Wire(path)) as wire:
        if leased:
            wire.send({"t": "lease.open", "ask": -1, "lease": 1})
            wire.send({"t": "lease.run", "ask": -2, "lease": 1, "statement": select(sql)})
        else:
            wire.send(request(1, select(sql), timeout=NEVER))
        runs(actor)
        os.kill(actor.pid, signal.SIGTERM)
        # One that runs alone is answered; a transaction ends with its connection.
        if not leased:
            refused(wire.answer(1))
        assert actor.exit_code(60) == 0


def test_hand_off_does_not_wait_for_a_statement(path, store):
    actor, _ = store(limits(LEASE_TOTAL_SECONDS=NEVER))
    with closing(Wire(path)) as wire, closing(Wire(path)) as asking:
        wire.send(request(1, select(_COUNT), timeout=NEVER))
        runs(actor)
        asking.send({"t": "handoff", "ask": -1, "python": sys.executable, "wait": True})
        assert asking.answer(-1)["t"] == "done"
        refused(wire.answer(1))
    successor = actor_pid(path)
    assert successor not in (None, actor.pid)
    os.kill(successor, signal.SIGTERM)
    wait_gone(successor, 60)


def was_taken(found):
    """Whether the writer has the fourth request of a client, and waits for the lock."""
    return not found.queue.count and 4 in [one.requests for one in found.connections]


@pytest.mark.parametrize("timeout", [float("nan"), float("inf"), 1e308])
def test_drain_does_not_wait_for_a_foreign_lock(path, store, timeout):
    """However long a client wants to wait for another program."""
    actor, other = store()
    with closing(sqlite3.connect(path, isolation_level=None)) as foreign:
        foreign.execute("BEGIN IMMEDIATE")
        other.send(request(4, append("s", "behind"), timeout=timeout))
        wait_for(lambda: was_taken(status(path)))
        os.kill(actor.pid, signal.SIGTERM)
        answer = other.answer(4)
        assert answer["code"] == "busy"
        assert answer.get("executed", "no") == "no"
        assert actor.exit_code(60) == 0
    assert contents(path, "s") == ["text"]


def test_timeout_that_is_no_number_is_the_default_one(path, store):
    _, other = store()
    for seq, timeout in ((4, float("nan")), (5, float("inf")), (6, 1e308)):
        assert other.do(seq, append("s", "text"), timeout=timeout)["t"] == "ok"


@contextlib.contextmanager
def owned(folder, **options):
    """A writer in this process."""
    lock = OwnerLock.acquire(resolve_paths(folder / "state.db"))
    writer = Writer(resolve_paths(folder / "state.db"), on_epoch=lock.describe, **options)
    try:
        yield writer
    finally:
        writer.close()
        lock.release()


def as_it_came(operation, seq):
    ticket = Ticket(b"c" * 16, seq, b"", after=0, acked_through=0, floor=0)
    return Request(msgspec.Raw(msgspec.msgpack.encode(operation)), float("inf"), ticket)


@pytest.mark.parametrize("make", [lambda one, _seq: Request(one), as_it_came])
@endless
def test_statement_that_was_interrupted_is_not_tried_again(tmp_path, sql, make, monkeypatch):
    """Changes that share its batch are made, and the writer meets it once."""
    tried = []

    def apply(conn, operation, really=guest_statements.run_statement):
        tried.append(operation)
        return really(conn, operation)

    monkeypatch.setattr(guest_statements, "run_statement", apply)
    with owned(tmp_path, others_wait=lambda: True) as writer:
        first, statement = ops.MetaSet(key="a", value="1"), ops.SqlStatement(sql=sql)
        last = ops.MetaSet(key="b", value="2")
        requests = [make(one, seq) for seq, one in enumerate((first, statement, last), start=1)]
        outcomes = writer.run_batch(requests)
        assert [outcome.error is None for outcome in outcomes] == [True, False, True]
        assert isinstance(outcomes[1].error, DeadlineExceeded)
        assert tried.count(statement) == 1
        rows = writer.connection.conn.execute("SELECT key, value FROM state_meta").fetchall()
        assert {("a", "1"), ("b", "2")} <= {tuple(row) for row in rows}


def test_work_on_the_whole_file_ends_when_the_file_is_to_be_closed(tmp_path):
    """VACUUM and REINDEX may take minutes; a drain and a hand-off do not wait for them."""
    with owned(tmp_path) as writer:
        rows = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < 20000)"
        fill = f"INSERT INTO state_meta {rows} SELECT hex(randomblob(8)), x FROM c"
        (outcome,) = writer.run_batch([Request(ops.SqlStatement(sql=fill))])
        assert outcome.error is None
        writer.connection.leave_by = 0.0
        (outcome,) = writer.run_batch([Request(ops.Vacuum())])
        assert isinstance(outcome.error, DeadlineExceeded)
        with pytest.raises(DeadlineExceeded):
            maintain(writer, "reindex", "", float("inf"))
        writer.connection.leave_by = float("inf")
        (outcome,) = writer.run_batch([Request(ops.Vacuum())])
        assert outcome.error is None
        maintain(writer, "reindex", "", float("inf"))
        (found,) = writer.connection.conn.execute("PRAGMA integrity_check").fetchone()
        assert found == "ok"


def lease_run(ask, sql):
    return {"t": "lease.run", "ask": ask, "lease": 1, "statement": select(sql)}


@pytest.mark.parametrize("way", ["pauses", "short statements"])
def test_transaction_ends_soon_after_others_begin_to_wait(path, store, way):
    """Neither its pauses nor the sum of its statements keep others waiting."""
    _, other = store(limits(LEASE_TOTAL_SECONDS=NEVER, LEASE_IDLE_SECONDS=NEVER))
    with closing(Wire(path)) as wire:
        wire.send({"t": "lease.open", "ask": -1, "lease": 1})
        assert wire.answer(-1)["t"] == "done"
        wire.send(lease_run(-2, "INSERT INTO state_meta VALUES ('of', 'the lease')"))
        assert wire.answer(-2)["t"] == "done"
        other.send(request(4, append("s", "behind"), timeout=NEVER))
        ask = -2
        while way == "short statements":
            ask -= 1
            wire.send(lease_run(ask, "SELECT 1"))
            if wire.answer(ask)["t"] == "failed":
                break
        assert other.answer(4)["t"] == "ok"
    assert contents(path, "s") == ["text", "behind"]
    with closing(sqlite3.connect(path)) as conn:
        assert conn.execute("SELECT 1 FROM state_meta WHERE key = 'of'").fetchall() == []
