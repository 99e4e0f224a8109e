"""Batches of the writer: each operation by itself, one commit, one order."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.actors import own
from support.direct_writer import (
    FakeTime,
    append,
    batch,
    keys,
    put,
    run,
    sql,
)
from support.files import query, raw

from hermes_actor import limits
from hermes_actor.engine.jobs import Request
from hermes_actor.engine.staged_parts import LeaseParts
from hermes_actor.engine.writer import Writer
from hermes_actor.errors import (
    BadValue,
    ConstraintFailed,
    DeadlineExceeded,
    HermesActorError,
    SqlError,
    ValueTooLarge,
)
from hermes_actor.paths import resolve_paths
from hermes_protocol.operations import (
    SqlStatement,
    Staged,
    StagePart,
    Vacuum,
)


def test_failing_operation_takes_no_other_with_it(writer, path):
    outcomes = batch(writer, put("1"), put("2"), append("x", "nobody"), put("4"), put("5"))
    assert [type(outcome.error) for outcome in outcomes] == [
        type(None), type(None), ConstraintFailed, type(None), type(None),
    ]  # fmt: skip
    assert [outcome.commit_no for outcome in outcomes] == [2, 3, None, 4, 5]
    assert keys(path) == ["1", "2", "4", "5"]
    assert own(path, "commit_no") == 5


def test_failing_operation_leaves_nothing_of_itself(writer, path):
    script = "CREATE TABLE notes AS SELECT 1; INSERT INTO nope VALUES (1)"
    outcomes = batch(writer, put("1"), sql(script), append("x", "nobody"), put("4"))
    assert [outcome.error is None for outcome in outcomes] == [True, False, False, True]
    assert query(path, "SELECT name FROM sqlite_master WHERE name = 'notes'") == []
    assert query(path, "SELECT COUNT(*) FROM messages") == [(0,)]


def test_batch_without_a_success_commits_nothing(writer, path):
    with raw(path) as foreign:
        version = foreign.execute("PRAGMA data_version").fetchone()
        outcomes = batch(writer, append("x", "nobody"), append("y", "nobody"))
        assert [outcome.commit_no for outcome in outcomes] == [None, None]
        assert foreign.execute("PRAGMA data_version").fetchone() == version


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=6), max_size=6))
def test_commit_numbers_have_no_gaps(tmp_path_factory, batches):
    path = tmp_path_factory.mktemp("numbers") / "state.db"
    writer = Writer(resolve_paths(path))
    try:
        numbers = []
        for wanted in batches:
            operations = [put("k") if good else append("x", "nobody") for good in wanted]
            outcomes = []
            while len(outcomes) < len(operations):
                # A batch that takes long, on a busy machine, answers a part of it.
                outcomes += batch(writer, *operations[len(outcomes) :])
            assert [outcome.error is None for outcome in outcomes] == wanted
            numbers += [o.commit_no for o in outcomes if o.commit_no is not None]
        assert numbers == list(range(1, len(numbers) + 1))
        assert own(path, "commit_no") == len(numbers) == writer.commit_no
    finally:
        writer.close()


def test_commit_numbers_go_on_with_the_next_owner(open_writer, path):
    first = open_writer()
    run(first, put("1"), put("2"))
    first.close()
    assert batch(open_writer(), put("3"))[0].commit_no == 3


def test_trigger_that_ends_the_transaction_costs_only_its_operation(writer, path):
    run(
        writer,
        sql(
            "CREATE TRIGGER no BEFORE INSERT ON state_meta WHEN new.key = 'bad'"
            " BEGIN SELECT RAISE(ROLLBACK, 'never'); END"
        ),
    )
    outcomes = batch(writer, put("1"), put("2"), put("bad"), put("4"))
    assert [type(outcome.error) for outcome in outcomes] == [
        type(None), type(None), ConstraintFailed, type(None),
    ]  # fmt: skip
    assert [outcome.commit_no for outcome in outcomes] == [3, 4, None, 5]
    assert keys(path) == ["1", "2", "4"]


@pytest.fixture
def deferred(writer):
    """A table whose rule is looked at when the transaction commits."""
    reference = "REFERENCES sessions(id) DEFERRABLE INITIALLY DEFERRED"
    run(writer, sql(f"CREATE TABLE later (session TEXT {reference})"))
    return writer


def test_refused_commit_costs_only_its_operation(deferred, path):
    outcomes = batch(deferred, put("1"), sql("INSERT INTO later VALUES ('nobody')"), put("3"))
    assert [type(outcome.error) for outcome in outcomes] == [
        type(None), ConstraintFailed, type(None),
    ]  # fmt: skip
    assert [outcome.commit_no for outcome in outcomes] == [3, None, 4]
    assert keys(path) == ["1", "3"]
    assert query(path, "SELECT * FROM later") == []


def test_refused_commit_of_a_lone_operation(deferred, path):
    (outcome,) = batch(deferred, sql("INSERT INTO later VALUES ('nobody')"))
    assert isinstance(outcome.error, ConstraintFailed)
    assert outcome.error.executed == "no"
    run(deferred, put("1"))
    assert query(path, "SELECT * FROM later") == []


def test_order_of_a_batch_is_kept(writer, path):
    run(writer, put("k", "1"), put("k", "2"), put("k", "3"))
    assert query(path, "SELECT value FROM state_meta") == [("3",)]


def test_passed_deadline_is_not_executed(open_writer, path):
    time = FakeTime()
    writer = open_writer(time.env())
    time.now = 10.0
    late, in_time = Request(put("late"), deadline=9.0), Request(put("ok"), deadline=11.0)
    outcomes = writer.run_batch([in_time, late, in_time])
    assert isinstance(outcomes[1].error, DeadlineExceeded)
    assert outcomes[1].error.executed == "no"
    assert [outcome.commit_no for outcome in outcomes] == [1, None, 2]
    (outcome,) = writer.run_batch([late])
    assert isinstance(outcome.error, DeadlineExceeded)
    assert keys(path) == ["ok"]


def test_long_batch_commits_what_it_has(open_writer, path):
    writer = open_writer(FakeTime(look_costs=limits.BATCH_SOFT_SECONDS / 4).env())
    waiting = [put(f"{n:02}") for n in range(20)]
    done = 0
    while waiting:
        outcomes = batch(writer, *waiting)
        assert outcomes
        done += len(outcomes)
        assert len(keys(path)) == own(path, "commit_no") == done
        waiting = waiting[len(outcomes) :]
        assert done < 20 or not waiting
    assert done == 20
    assert writer.checkpointer.state.commits > 1


def test_vacuum_runs_between_batches(writer, path):
    requests = [Request(operation) for operation in (put("1"), Vacuum(), put("2"))]
    assert len(writer.run_batch(requests)) == 1
    assert keys(path) == ["1"]
    (outcome,) = writer.run_batch(requests[1:])
    assert (outcome.error, outcome.commit_no) == (None, None)
    run(writer, put("2"))
    assert keys(path) == ["1", "2"]


def test_bad_sql_of_a_caller_is_explained(writer):
    (outcome,) = batch(writer, sql("INSERT INTO nope VALUES (1)"))
    assert isinstance(outcome.error, SqlError)
    assert str(outcome.error).startswith("no such table: nope")


def test_file_without_our_tables_fails_the_batch_and_not_the_host(writer, path):
    with raw(path) as foreign:
        foreign.execute("DROP TABLE hermes_actor_meta")
    outcomes = batch(writer, put("1"), put("2"))
    assert all(isinstance(outcome.error, HermesActorError) for outcome in outcomes)
    assert keys(path) == []


def test_parts_of_a_statement_of_a_lease_come_in_order_and_within_bounds(monkeypatch):
    encoded = msgspec.msgpack.encode(SqlStatement(sql="SELECT 1"))
    parts = LeaseParts()
    parts.keep(StagePart(key=1, part=0, data=encoded[:5]))
    with pytest.raises(BadValue):
        parts.keep(StagePart(key=1, part=2, data=encoded[5:]))
    with pytest.raises(BadValue):
        parts.take(Staged(key=1, parts=2))
    # Nothing of what failed is left.
    parts.keep(StagePart(key=2, part=0, data=encoded[:5]))
    parts.keep(StagePart(key=2, part=1, data=encoded[5:]))
    assert parts.take(Staged(key=2, parts=2)) == SqlStatement(sql="SELECT 1")
    monkeypatch.setattr(limits, "STAGED_MAX_BYTES", 10)
    parts.keep(StagePart(key=3, part=0, data=bytes(10)))
    with pytest.raises(ValueTooLarge):
        parts.keep(StagePart(key=3, part=1, data=b"x"))
