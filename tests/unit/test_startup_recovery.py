"""R1, the start-up barrier, and foreign locks that a writer waits for."""

import sqlite3

import pytest
from support.direct_writer import (
    FakeTime,
    append,
    assert_index_is_true,
    keys,
    run,
)
from support.files import raw

from hermes_actor.engine.jobs import Request
from hermes_actor.errors import (
    Busy,
)
from hermes_actor.paths import resolve_paths
from hermes_protocol.features import KINDS
from hermes_protocol.operations import (
    SessionCreate,
)


@pytest.mark.parametrize("file_kind", KINDS)
def test_opening_folds_the_wal_of_a_dead_owner_back(open_writer, path, put):
    dead = open_writer()
    run(dead, *(put(str(n)) for n in range(20)))
    wal = resolve_paths(path).wal
    assert wal.stat().st_size > 0
    writer = open_writer()
    commits = []
    writer.connection.conn.set_trace_callback(commits.append)
    run(writer, put("next"))
    checkpoint = next(n for n, text in enumerate(commits) if "TRUNCATE" in text)
    assert checkpoint < commits.index("COMMIT")
    assert commits.count("COMMIT") == 2  # one of the barrier, one of the batch


@pytest.mark.parametrize("file_kind", KINDS)
def test_reader_that_pins_the_wal_does_not_prevent_serving(open_writer, path, put):
    run(open_writer(), put("1"))
    time = FakeTime()
    with raw(path) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM hermes_actor_meta").fetchall()
        for epoch in (2, 3):
            writer = open_writer(time.env())
            run(writer, put(str(epoch)))
            assert writer.epoch == epoch
    assert time.now >= 2.0  # it was tried for that long


# --- foreign locks ---------------------------------------------------------------------------


@pytest.mark.parametrize("file_kind", KINDS)
def test_operation_waits_for_a_foreign_lock(open_writer, path, put):
    time = FakeTime()
    writer = open_writer(time.env())
    run(writer, put("1"))
    with raw(path) as foreign:
        foreign.execute("BEGIN IMMEDIATE")
        time.on_sleep = lambda: time.sleeps == 3 and foreign.execute("COMMIT")
        run(writer, put("2"))
    assert time.sleeps == 3
    assert keys(path) == ["1", "2"]


@pytest.mark.parametrize("file_kind", KINDS)
def test_foreign_lock_that_outlasts_the_deadline(open_writer, path, put):
    time = FakeTime()
    writer = open_writer(time.env())
    run(writer, put("1"))
    with raw(path) as foreign:
        foreign.execute("BEGIN IMMEDIATE")
        requests = [Request(put("2"), time.now + 1.0), Request(put("3"), time.now + 100.0)]
        (outcome,) = writer.run_batch(requests)  # the second is brought again
        assert isinstance(outcome.error, Busy)
        assert isinstance(outcome.error, sqlite3.OperationalError)
        assert str(outcome.error).startswith("database is locked")
        assert outcome.error.executed == "no"
        time.on_sleep = foreign.rollback
        assert writer.run_batch(requests[1:])[0].commit_no == 2
    assert keys(path) == ["1", "3"]


@pytest.mark.parametrize("file_kind", KINDS)
def test_foreign_lock_delays_the_barrier_too(open_writer, path, put):
    open_writer().close()
    time = FakeTime()
    with raw(path) as foreign:
        foreign.execute("BEGIN IMMEDIATE")
        writer = open_writer(time.env())
        (outcome,) = writer.run_batch([Request(put("1"), deadline=0.5)])
        assert isinstance(outcome.error, Busy)
        foreign.rollback()
        run(writer, put("2"))
    assert keys(path) == ["2"]


def test_foreign_lock_only_postpones_upkeep(open_writer, path):
    writer = open_writer(FakeTime().env())
    run(writer, SessionCreate(id="s", source="cli", started_at=1.0), append("x"))
    with raw(path) as foreign:
        foreign.execute("BEGIN IMMEDIATE")
        assert writer.idle_slice() > 0
        foreign.rollback()
    while writer.idle_slice() == 0.0:
        pass
    assert_index_is_true(path)
