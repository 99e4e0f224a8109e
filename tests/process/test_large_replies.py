"""Large answers: bounded in memory (G8), and delivered to every client that takes them."""

import threading
from collections import Counter
from contextlib import ExitStack, closing

import pytest
from support.actor_process import served
from support.actors import peak_memory, wait_for
from support.files import query, write_lock
from support.wire import Wire, keep_writer_busy, request, select, status

from hermes_actor import SessionDB
from hermes_actor.errors import ValueTooLarge
from hermes_protocol import operations as ops

MEGABYTE = 1_000_000


PATIENT = """
from hermes_actor import limits
limits.LEASE_TOTAL_SECONDS = limits.LEASE_IDLE_SECONDS = 20.0
"""


@pytest.fixture
def actor(path):
    with served(path, PATIENT) as actor:
        yield actor


@pytest.fixture
def db(path, actor):
    with closing(SessionDB(path)) as db:
        db._conn.execute("CREATE TABLE t (a INTEGER)")
        yield db


def returning(size):
    return f"INSERT INTO t VALUES (?) RETURNING hex(zeroblob({size // 2}))"


ONE_BATCH = """
from hermes_actor import limits
limits.BATCH_SOFT_SECONDS, limits.BATCH_ANSWER_BYTES = 600.0, 1 << 40
"""


@pytest.mark.parametrize("prelude", ["", ONE_BATCH], ids=["as it is", "in one batch"])
def test_client_that_reads_gets_many_large_answers(path, prelude):
    """Together far more than the bound of its outbox; each change is made once."""
    with served(path, prelude), closing(SessionDB(path)) as db:
        db._conn.execute("CREATE TABLE t (a INTEGER)")
        ask_for_large_answers(path, db)


def ask_for_large_answers(path, db):
    told = Counter()

    def write(number):
        try:
            ((answer,),) = db._conn.execute(returning(MEGABYTE), (number,)).fetchall()
            told[len(answer)] += 1
        except Exception as error:
            told[repr(error)] += 1

    threads = [threading.Thread(target=write, args=(number,)) for number in range(24)]
    with Wire(path) as wire, write_lock(path):
        keep_writer_busy(path, wire)
        for thread in threads:
            thread.start()
        wait_for(lambda: status(path).queue.count == 24)
    for thread in threads:
        thread.join()
    assert told == {MEGABYTE: 24}
    assert sorted(query(path, "SELECT a FROM t")) == [(n,) for n in range(24)]
    # Each batch of answers is delivered in part at least: nothing is answered without end.
    assert db._port.statistics()["receipts_replayed"] < 24 * 24


def test_answers_that_no_client_takes_are_bounded_for_all_clients_together(path, actor, db):
    before = peak_memory(actor.pid)
    operation = select("SELECT hex(zeroblob(500000))")
    with ExitStack() as stack:
        wires = [stack.enter_context(closing(Wire(path))) for _ in range(60)]
        for wire in wires:
            wire.send(*(request(seq, operation) for seq in range(1, 5)))
        wait_for(lambda: status(path).writes >= 200)
        db.set_meta("k", "v")
        assert peak_memory(actor.pid) < before + 80 * MEGABYTE


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT hex(zeroblob(500000000))",
        "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c LIMIT 9999999)"
        " SELECT x, 'some text' FROM c",
        "INSERT INTO t SELECT value FROM json_each('[' || substr(replace(hex(zeroblob(900)),"
        " '00', ',1'), 2) || ']') RETURNING hex(zeroblob(100000))",
    ],
    ids=["one value", "many rows", "of a change"],
)
def test_answer_that_is_too_large_is_refused(path, actor, db, sql):
    before = peak_memory(actor.pid)
    with pytest.raises(ValueTooLarge) as caught:
        db._port.submit(ops.SqlStatement(sql=sql), 60.0)
    assert caught.value.executed == "no"
    assert query(path, "SELECT COUNT(*) FROM t") == [(0,)]

    def in_transaction(conn):
        conn.execute("INSERT INTO t VALUES (1)")
        conn.execute(sql).fetchall()

    with pytest.raises(ValueTooLarge):
        db._execute_write(in_transaction)
    assert query(path, "SELECT COUNT(*) FROM t") == [(0,)]
    assert peak_memory(actor.pid) < before + 300 * MEGABYTE
    db.set_meta("k", "v")


def test_statement_that_was_too_large_is_not_committed_with_the_rest(path, actor, db):
    sql = "INSERT INTO t VALUES (1), (2) RETURNING hex(zeroblob(30000000))"
    with Wire(path) as wire:
        wire.send({"t": "lease.open", "ask": -1, "lease": 1})
        wire.send({"t": "lease.run", "ask": -2, "lease": 1, "statement": select(sql)})
        wire.send({"t": "lease.commit", "seq": 1, "lease": 1})
        assert wire.answer(-2)["code"] == "too-big"
        assert wire.answer(1)["t"] == "failed"
    assert query(path, "SELECT COUNT(*) FROM t") == [(0,)]


def test_followers_get_changes_whose_sessions_have_endless_ids(path, actor, db):
    """The last ten thousand changes are kept: their ids must not be of any size."""
    before = peak_memory(actor.pid)
    for number in range(100):
        db._port.submit(ops.SessionReopen(id=f"{number}" + "x" * 900_000), 30.0)
    assert peak_memory(actor.pid) < before + 30 * MEGABYTE
