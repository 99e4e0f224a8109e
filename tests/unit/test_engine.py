"""The writer without threads: batches, fence, deferred indexing, checkpoints, faults."""

import json
import os
import sqlite3
from urllib.parse import quote

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.files import names, query, raw

from hermes_actor import exit_codes, limits
from hermes_actor.engine.checkpoint import (
    Action,
    CheckpointState,
    WalResult,
    decide,
    run_checkpoint,
)
from hermes_actor.engine.environment import Environment
from hermes_actor.engine.jobs import Request
from hermes_actor.engine.ownership import OwnerLock
from hermes_actor.engine.staged_parts import LeaseParts
from hermes_actor.engine.writer import Writer
from hermes_actor.errors import (
    ActorBroken,
    AlreadyOwned,
    BadValue,
    Busy,
    ConstraintFailed,
    Damaged,
    DeadlineExceeded,
    DiskFull,
    DiskIOError,
    HermesActorError,
    OutcomeUnknown,
    SqlError,
    ValueTooLarge,
)
from hermes_actor.paths import resolve_paths
from hermes_actor.sqlite import Connection
from hermes_actor.store.schema_features import features_of
from hermes_protocol.operations import (
    MessageAppend,
    MessageRow,
    MetaSet,
    SessionCreate,
    SqlLease,
    SqlStatement,
    Staged,
    StagePart,
    Vacuum,
)

INDEXES = ("messages_fts", "messages_fts_trigram")


class FakeTime:
    """Time that passes only by sleeping, or by looking at it if *look_costs*."""

    def __init__(self, look_costs=0.0):
        self.now = 0.0
        self.sleeps = 0
        self.look_costs = look_costs
        self.on_sleep = lambda: None

    def monotonic(self):
        self.now += self.look_costs
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        self.sleeps += 1
        self.on_sleep()

    def env(self, **more):
        return Environment(monotonic=self.monotonic, sleep=self.sleep, **more)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state.db"


@pytest.fixture
def open_writer(path):
    opened = []

    def open_(env=None):
        opened.append(Writer(resolve_paths(path), env))
        return opened[-1]

    yield open_
    for writer in opened:
        writer.connection.conn.close()


@pytest.fixture
def writer(open_writer):
    writer = open_writer()
    assert run(writer, SessionCreate(id="s", source="cli", started_at=1.0)) == [True]
    return writer


def run(writer, *operations):
    """The results of a batch in which nothing may fail."""
    outcomes = batch(writer, *operations)
    assert [outcome.error for outcome in outcomes] == [None] * len(operations)
    return [outcome.result for outcome in outcomes]


def batch(writer, *operations):
    """As a host does it: what a batch that took long did not come to is brought again."""
    requests, outcomes = [Request(operation) for operation in operations], []
    while len(outcomes) < len(requests):
        outcomes += writer.run_batch(requests[len(outcomes) :])
    return outcomes


def put(key, value="v"):
    return MetaSet(key=key, value=value)


def append(text, session_id="s"):
    return MessageAppend(
        session_id=session_id, message=MessageRow(role="user", timestamp=2.0, content=text)
    )


def sql(text):
    return SqlStatement(sql=text)


def keys(path):
    return [key for (key,) in query(path, "SELECT key FROM state_meta ORDER BY key")]


def own(path, key):
    ((value,),) = query(path, "SELECT value FROM hermes_actor_meta WHERE key = ?", key)
    return value


def indexed(path, table):
    """Ids in the index, as often as they are there."""
    return [n for (n,) in query(path, f"SELECT id FROM {table}_docsize ORDER BY id")]


def index_everything(writer):
    for _ in range(1000):
        if not writer.index.run_slice(0.01):
            return
    pytest.fail("indexing does not come to an end")


def assert_index_is_true(path):
    """Both indexes hold every message once, with its present text."""
    text = "COALESCE(content, '') || ' ' || COALESCE(tool_name, '') || ' '" + (
        " || COALESCE(tool_calls, '')"
    )
    wanted = query(path, f"SELECT id, {text} FROM messages ORDER BY id")
    for table in INDEXES:
        assert query(path, f"SELECT rowid, content FROM {table} ORDER BY rowid") == wanted
        assert indexed(path, table) == [n for n, _ in wanted]
        query(path, f"INSERT INTO {table}({table}) VALUES ('integrity-check')")


# Batches.


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


# The epoch fence.


def test_every_owner_raises_the_epoch(open_writer, path):
    for epoch in (1, 2, 3):
        writer = open_writer()
        run(writer, put("k"))
        assert (writer.epoch, own(path, "epoch")) == (epoch, epoch)
        writer.close()


def test_old_owner_commits_nothing_more(open_writer, path):
    old, new = open_writer(), open_writer()
    run(old, put("1"))
    run(new, put("2"))
    for _ in range(2):
        outcomes = batch(old, put("3"), put("4"))
        assert all(isinstance(outcome.error, ActorBroken) for outcome in outcomes)
        assert all(outcome.error.executed == "no" for outcome in outcomes)
    assert keys(path) == ["1", "2"]
    run(new, put("5"))
    assert own(path, "commit_no") == 3


def raise_(error):
    raise error


@pytest.mark.parametrize(
    "attempt",
    [
        lambda writer: writer.leases.begin(float("inf")),
        lambda writer: writer.index.run_slice(1.0),
        lambda writer: raise_(batch(writer, Vacuum())[0].error),
    ],
    ids=["lease", "index", "vacuum"],
)
def test_old_owner_does_nothing_else_either(writer, path, attempt):
    run(writer, append("x"))
    with raw(path) as foreign:
        foreign.execute("UPDATE hermes_actor_meta SET value = value + 1 WHERE key = 'epoch'")
    with pytest.raises(ActorBroken):
        attempt(writer)
    assert isinstance(batch(writer, put("1"))[0].error, ActorBroken)
    assert indexed(path, "messages_fts") == []
    assert writer.idle_slice() is None


# The barrier.


def test_opening_folds_the_wal_of_a_dead_owner_back(open_writer, path):
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


def test_reader_that_pins_the_wal_does_not_prevent_serving(open_writer, path):
    run(open_writer(), put("1"))
    time = FakeTime()
    with raw(path) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM state_meta").fetchall()
        for epoch in (2, 3):
            writer = open_writer(time.env())
            run(writer, put(str(epoch)))
            assert writer.epoch == epoch
    assert time.now >= 2.0  # it was tried for that long


# Foreign locks.


def test_operation_waits_for_a_foreign_lock(open_writer, path):
    time = FakeTime()
    writer = open_writer(time.env())
    run(writer, put("1"))
    with raw(path) as foreign:
        foreign.execute("BEGIN IMMEDIATE")
        time.on_sleep = lambda: time.sleeps == 3 and foreign.execute("COMMIT")
        run(writer, put("2"))
    assert time.sleeps == 3
    assert keys(path) == ["1", "2"]


def test_foreign_lock_that_outlasts_the_deadline(open_writer, path):
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


def test_foreign_lock_delays_the_barrier_too(open_writer, path):
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


# Deferred indexing (rules of the indexer).


def test_insert_is_indexed_later_and_once(writer, path):
    ids = run(writer, append("one walrus"), append("two walruses"))
    assert [indexed(path, table) for table in INDEXES] == [[], []]
    assert own(path, "watermark") == 0
    assert writer.index.run_slice(1.0) is False
    assert own(path, "watermark") == ids[-1] == writer.index.watermark
    assert_index_is_true(path)
    assert writer.index.run_slice(1.0) is False
    assert_index_is_true(path)


def test_triggers_stay_in_the_file(writer, path):
    run(writer, append("ours"))
    with raw(path) as foreign:
        foreign.execute("INSERT INTO messages (session_id, role, timestamp) VALUES ('s', 'u', 1)")
    assert indexed(path, "messages_fts") == [2]


def test_rows_of_a_foreign_program_are_not_indexed_twice(writer, path):
    foreign_sql = "INSERT INTO messages (session_id, role, content, timestamp) VALUES (?, ?, ?, ?)"
    with raw(path) as foreign:
        run(writer, append("ours 1"))
        foreign.execute(foreign_sql, ("s", "user", "theirs 2", 2))
        run(writer, append("ours 3"))
        foreign.execute(foreign_sql, ("s", "user", "theirs 4", 2))
    index_everything(writer)
    assert_index_is_true(path)
    assert own(path, "watermark") == 4


def test_update_of_a_row_that_is_not_indexed_yet(writer, path):
    run(writer, append("before"), append("other"))
    run(writer, sql("UPDATE messages SET content = 'after' WHERE id = 1"))
    index_everything(writer)
    assert_index_is_true(path)


def test_delete_of_a_row_that_is_not_indexed_yet(writer, path):
    run(writer, append("gone"), append("kept"), append("gone"))
    run(writer, sql("DELETE FROM messages WHERE content = 'gone'"))
    index_everything(writer)
    assert_index_is_true(path)
    run(writer, append("new"))
    index_everything(writer)
    assert_index_is_true(path)


def test_update_and_delete_of_indexed_rows_are_noted_and_settled_later(writer, path):
    run(writer, append("first"), append("second"), append("third"))
    index_everything(writer)
    run(writer, sql("UPDATE messages SET content = 'changed' WHERE id = 1"))
    run(writer, sql("DELETE FROM messages WHERE id = 2"))
    run(writer, sql("UPDATE messages SET finish_reason = 'stop' WHERE id = 3"))
    assert query(path, "SELECT aside, id FROM hermes_actor_stale") == [(0, 1), (0, 2)]
    index_everything(writer)
    assert_index_is_true(path)
    assert query(path, "SELECT aside, id FROM hermes_actor_stale") == []


def test_insert_inside_the_operation_that_also_deletes(writer, path):
    run(writer, append("old"))
    index_everything(writer)
    batch(writer, sql("DELETE FROM messages"), append("new"), append("x", "nobody"))
    index_everything(writer)
    assert_index_is_true(path)


def test_other_triggers_run(writer, path):
    run(
        writer,
        sql("CREATE TABLE audit (id)"),
        sql(
            "CREATE TRIGGER audit_insert AFTER INSERT ON messages"
            " BEGIN INSERT INTO audit VALUES (new.id); END"
        ),
    )
    run(writer, append("x"))
    assert query(path, "SELECT id FROM audit") == [(1,)]
    assert indexed(path, "messages_fts") == []


def test_foreign_shape_keeps_its_triggers(writer, path):
    run(writer, append("deferred"))
    index_everything(writer)
    with raw(path) as foreign:
        foreign.execute("DROP TRIGGER messages_fts_insert")
        foreign.execute(
            "CREATE TRIGGER messages_fts_insert AFTER INSERT ON messages BEGIN"
            " INSERT INTO messages_fts(rowid, content) VALUES (new.id, upper(new.content)); END"
        )
    run(writer, append("at once"))
    assert [indexed(path, table) for table in INDEXES] == [[1, 2], [1, 2]]
    assert query(path, "SELECT content FROM messages_fts WHERE rowid = 2") == [("AT ONCE",)]
    assert writer.index.run_slice(1.0) is False


def test_deferring_begins_again_with_the_known_shape(writer, path):
    known = query(path, "SELECT sql FROM sqlite_master WHERE name = 'messages_fts_insert'")[0][0]
    with raw(path) as foreign:
        foreign.execute("DROP TRIGGER messages_fts_insert")
        foreign.execute(known.replace("new.content", "trim(new.content)"))
    run(writer, append("at once"))
    with raw(path) as foreign:
        foreign.execute("DROP TRIGGER messages_fts_insert")
        foreign.execute(known)
    run(writer, append("later"))
    assert indexed(path, "messages_fts") == [1]
    index_everything(writer)
    assert_index_is_true(path)


def forget_owner(path):
    """Make the file one that no owner of ours has ever met."""
    with raw(path) as foreign:
        for name in names(path, "table", "hermes_actor_%"):
            foreign.execute(f"DROP TABLE {name}")


def test_file_met_for_the_first_time_with_whole_indexes(open_writer, path):
    writer = open_writer()
    run(writer, SessionCreate(id="s", source="cli", started_at=1.0), append("1"), append("2"))
    index_everything(writer)
    writer.close()
    forget_owner(path)
    writer = open_writer()
    run(writer, put("k"))
    assert own(path, "watermark") == 2
    assert own(path, "commit_no") == 1


def test_file_met_for_the_first_time_with_indexes_that_end_too_early(open_writer, path):
    writer = open_writer()
    run(writer, SessionCreate(id="s", source="cli", started_at=1.0), append("1"))
    index_everything(writer)
    run(writer, append("2"))
    writer.close()
    forget_owner(path)
    writer = open_writer()
    run(writer, put("k"))
    assert own(path, "watermark") == 0
    index_everything(writer)
    assert_index_is_true(path)


@pytest.mark.parametrize("whole", [True, False])
def test_watermark_beyond_every_id_is_derived_again(open_writer, path, whole):
    writer = open_writer()
    run(writer, SessionCreate(id="s", source="cli", started_at=1.0), append("1"), append("2"))
    if whole:
        index_everything(writer)
    writer.close()
    with raw(path) as foreign:
        foreign.execute("UPDATE hermes_actor_meta SET value = 1000 WHERE key = 'watermark'")
    writer = open_writer()
    run(writer, put("k"))
    assert own(path, "watermark") == (2 if whole else 0)
    run(writer, append("3"))
    index_everything(writer)
    assert_index_is_true(path)


def test_ids_that_begin_anew_are_indexed(writer, path):
    run(writer, *(append(str(n)) for n in range(5)))
    index_everything(writer)
    run(writer, sql("DELETE FROM messages"), sql("DELETE FROM sqlite_sequence"))
    run(writer, append("first again"))
    index_everything(writer)
    assert_index_is_true(path)


def test_slice_is_bounded_and_tells_that_more_is_left(open_writer, path):
    writer = open_writer(FakeTime().env())
    run(writer, SessionCreate(id="s", source="cli", started_at=1.0))
    rows = 2 * limits.INDEX_STEP_ROWS + 1
    for n in range(rows):
        run(writer, append(str(n)))
    seen = []
    while writer.index.run_slice(0.0):
        seen.append(own(path, "watermark"))
        assert indexed(path, "messages_fts") == list(range(1, seen[-1] + 1))
    assert seen == [limits.INDEX_STEP_ROWS, 2 * limits.INDEX_STEP_ROWS]
    assert_index_is_true(path)


def test_crash_inside_a_slice_loses_and_doubles_nothing(open_writer, path):
    class Crash(Exception):
        pass

    failing = []

    def failpoint(name):
        if name == "index.slice" and not failing:
            failing.append(name)
            raise Crash

    writer = open_writer(Environment(failpoint=failpoint))
    run(writer, SessionCreate(id="s", source="cli", started_at=1.0), append("1"), append("2"))
    with pytest.raises(Crash):
        writer.index.run_slice(1.0)
    writer.connection.conn.close()
    writer = open_writer()
    run(writer, append("3"))
    index_everything(writer)
    assert_index_is_true(path)


# When to checkpoint.

NOW = 100.0
QUIET = NOW - limits.TRUNCATE_AFTER_IDLE_SECONDS


@pytest.mark.parametrize(
    ("state", "waiting", "action"),
    [
        ({}, False, Action.NOTHING),
        ({"writes": 49, "commits": 49}, False, Action.NOTHING),
        ({"writes": 50, "commits": 1}, False, Action.PASSIVE),
        ({"writes": 50, "commits": 1}, True, Action.NOTHING),
        ({"writes": 500, "commits": 49}, True, Action.NOTHING),
        ({"writes": 50, "commits": 50}, True, Action.PASSIVE),
        ({"writes": 50, "commits": 1, "grown_frames": 999}, True, Action.NOTHING),
        ({"writes": 50, "commits": 1, "grown_frames": 1000}, True, Action.PASSIVE),
        ({"writes": 1, "commits": 1, "grown_frames": 1000}, True, Action.PASSIVE),
        ({"writes": 0, "commits": 50}, True, Action.PASSIVE),
        ({"frames": 4000}, False, Action.NOTHING),
        ({"frames": 4001}, False, Action.RESTART),
        ({"frames": 4001}, True, Action.RESTART),
        ({"frames": 4001, "writes": 50, "commits": 50}, True, Action.RESTART),
        ({"frames": 4001, "last_restart": NOW - 0.9}, False, Action.NOTHING),
        ({"frames": 4001, "last_restart": NOW - 1.0}, False, Action.RESTART),
        (
            {"frames": 4001, "last_restart": NOW - 7.9, "restart_interval": 8.0},
            True,
            Action.NOTHING,
        ),
        (
            {"frames": 4001, "last_restart": NOW, "writes": 50, "commits": 50},
            True,
            Action.PASSIVE,
        ),
        ({"truncated": False, "last_write": QUIET}, False, Action.TRUNCATE),
        ({"truncated": False, "last_write": QUIET}, True, Action.NOTHING),
        ({"truncated": False, "last_write": QUIET + 0.1}, False, Action.NOTHING),
        ({"truncated": True, "last_write": QUIET}, False, Action.NOTHING),
        ({"truncated": False, "last_write": QUIET, "writes": 50}, False, Action.PASSIVE),
    ],
)
def test_checkpoint_decision(state, waiting, action):
    assert decide(CheckpointState(**state), NOW, waiting=waiting) is action


EVENTS = st.lists(
    st.tuples(
        st.integers(0, 200),  # writes of one commit
        st.floats(0, 3, allow_nan=False),  # seconds until then
        st.booleans(),  # whether somebody waits
        st.integers(0, 10_000),  # frames in the WAL
        st.booleans(),  # whether a reader pins it
    ),
    max_size=60,
)


@given(EVENTS)
def test_checkpoints_are_neither_too_rare_nor_too_frequent(events):
    state, now, restarts, unwatched = CheckpointState(), 0.0, [], 0
    for writes, seconds, waiting, frames, pinned in events:
        now += seconds
        state.wrote(writes, now)
        unwatched += 1
        action = decide(state, now, waiting=waiting)
        if state.writes >= limits.CHECKPOINT_EVERY_WRITES and not waiting:
            assert action is not Action.NOTHING
        if state.writes >= limits.CHECKPOINT_EVERY_WRITES:
            assert unwatched < limits.CHECKPOINT_EVERY_COMMITS or action is not Action.NOTHING
        if action is Action.TRUNCATE:
            assert not waiting
        if action is Action.NOTHING:
            continue
        result = WalResult(frames, 0 if pinned else frames, busy=pinned)
        interval = state.restart_interval
        state.ran(action, result, now)
        unwatched = 0
        assert state.writes == state.commits == 0
        if action is Action.RESTART:
            assert not restarts or now - restarts[-1] >= interval
            restarts.append(now)
            assert interval >= limits.RESTART_MIN_INTERVAL_SECONDS
            assert state.restart_interval <= limits.RESTART_MAX_INTERVAL_SECONDS
            assert (state.restart_interval > interval) is (
                pinned and interval < limits.RESTART_MAX_INTERVAL_SECONDS
            )
        if action is Action.TRUNCATE and not pinned:
            assert decide(state, now + 1000, waiting=False) is Action.NOTHING


def test_fifty_writes_are_folded_back_at_the_first_quiet_moment(writer):
    run(writer, *(put(str(n)) for n in range(48)))
    writer.checkpointer.run_if_due(waiting=False)
    assert writer.checkpointer.state.outcomes == {}
    run(writer, put("x"))
    writer.checkpointer.run_if_due(waiting=True)
    assert writer.checkpointer.state.outcomes == {}
    writer.checkpointer.run_if_due(waiting=False)
    assert writer.checkpointer.state.outcomes == {"passive.complete": 1}


def test_a_thousand_frames_do_not_wait_for_fifty_writes(writer):
    """4 KiB pages: twenty rows of half a megabyte are 2,500 frames."""
    for n in range(20):
        run(writer, put(str(n), "x" * 512 * 1024))
        writer.checkpointer.run_if_due(waiting=True)
    assert writer.checkpointer.state.outcomes


@pytest.mark.parametrize("action", [Action.PASSIVE, Action.RESTART, Action.TRUNCATE])
def test_pinned_wal_is_reported_as_partial(writer, path, action):
    time = FakeTime()
    with raw(path) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM state_meta").fetchall()
        run(writer, *(put(str(n), "x" * 5000) for n in range(5)))
        result = run_checkpoint(writer.connection.conn, action, time.env(), budget=0.02)
        assert not result.complete
        assert time.now >= 0.02 or action is Action.PASSIVE
        reader.rollback()
    result = run_checkpoint(writer.connection.conn, action, time.env(), budget=0.02)
    assert result.complete
    writer.checkpointer.state.ran(action, result, 0.0)
    assert writer.checkpointer.state.outcomes == {f"{action.value.lower()}.complete": 1}


def test_reader_that_leaves_in_time_is_waited_for(writer, path):
    time = FakeTime()
    with raw(path) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM state_meta").fetchall()
        run(writer, put("1"))
        time.on_sleep = lambda: time.sleeps == 3 and reader.rollback()
        assert run_checkpoint(
            writer.connection.conn, Action.TRUNCATE, time.env(), budget=1.0
        ).complete
    assert resolve_paths(path).wal.stat().st_size == 0


def test_quiet_file_gets_a_short_wal(open_writer, path):
    time = FakeTime()
    writer = open_writer(time.env())
    run(writer, put("1"))
    assert writer.idle_slice() == limits.TRUNCATE_AFTER_IDLE_SECONDS
    time.now += limits.TRUNCATE_AFTER_IDLE_SECONDS
    assert writer.idle_slice() == limits.FOREIGN_LOOK_SECONDS
    assert resolve_paths(path).wal.stat().st_size == 0


def test_only_the_writer_decides_about_checkpoints(writer):
    assert writer.connection.conn.execute("PRAGMA wal_autocheckpoint").fetchone() == (0,)
    assert writer.connection.conn.execute("PRAGMA synchronous").fetchone() == (2,)


# Extra indexes.


def test_missing_extra_indexes_are_built_when_idle(open_writer, path):
    open_writer().close()
    with raw(path) as foreign:
        foreign.execute("DROP INDEX hermes_actor_messages_time")
        foreign.execute("DROP INDEX hermes_actor_sessions_source")
    writer = open_writer()
    run(writer, put("1"))
    while writer.idle_slice() == 0.0:
        pass
    built = names(path, "index", "hermes_actor_%")
    assert {"hermes_actor_messages_time", "hermes_actor_sessions_source"} <= built


# Errors of the storage.


class Failing(Connection):
    """Fails the statements that a test names, and remembers all statements after that."""

    code = sqlite3.SQLITE_IOERR_FSYNC
    fail_on = ""
    times = 1000

    def execute(self, sql, *args):
        if self.later is not None:
            self.later.append(sql)
        if self.fail_on and sql.startswith(self.fail_on) and self.times > 0:
            self.times -= 1
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = self.code
            error.sqlite_errorname = "SQLITE_TEST"
            if self.later is None:
                self.later = []
            raise error
        return super().execute(sql, *args)

    def __init__(self, *args, **kwargs):
        self.later = None
        super().__init__(*args, **kwargs)


@pytest.fixture
def failing(open_writer, path):
    def connect(file):
        return sqlite3.connect(
            f"file:{quote(str(file))}?mode=rw", uri=True, timeout=0, isolation_level=None,
            factory=Failing,
        )  # fmt: skip

    writer = open_writer(Environment(connect_writer=connect))
    run(writer, SessionCreate(id="s", source="cli", started_at=1.0))
    return writer


@pytest.mark.parametrize("code", [sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_WRITE])
@pytest.mark.parametrize("count", [1, 3])
def test_failed_commit_leaves_the_outcome_open_and_breaks_the_writer(failing, path, code, count):
    failing.connection.conn.fail_on, failing.connection.conn.code = "COMMIT", code
    outcomes = batch(failing, *(put(str(n)) for n in range(count)))
    assert [type(outcome.error) for outcome in outcomes] == [OutcomeUnknown] * count
    assert {outcome.error.executed for outcome in outcomes} == {"unknown"}
    assert {outcome.commit_no for outcome in outcomes} == {None}
    failing.connection.conn.fail_on = ""
    later = batch(failing, put("later"))
    assert isinstance(later[0].error, ActorBroken)
    assert "disk I/O error" in str(later[0].error)
    with pytest.raises(ActorBroken):
        failing.leases.begin(float("inf"))
    with pytest.raises(ActorBroken):
        failing.index.run_slice(1.0)
    failing.checkpointer.run_if_due(waiting=False)
    assert failing.idle_slice() is None
    failing.close()
    # The connection is neither rolled back, nor checkpointed, nor closed.
    assert failing.connection.conn.later == []
    assert failing.connection.conn.in_transaction


def test_failed_commit_of_a_lease_breaks_the_writer(failing):
    failing.leases.begin(float("inf"))
    failing.leases.run(sql("INSERT INTO state_meta VALUES ('k', 'v')"))
    failing.connection.conn.fail_on = "COMMIT"
    outcome = failing.leases.end(Request(SqlLease(lease=0)))
    assert isinstance(outcome.error, OutcomeUnknown)
    assert isinstance(batch(failing, put("later"))[0].error, ActorBroken)


def test_failed_commit_of_an_index_slice_breaks_the_writer(failing):
    run(failing, append("x"))
    failing.connection.conn.fail_on = "COMMIT"
    with pytest.raises(OutcomeUnknown):
        failing.index.run_slice(1.0)
    assert isinstance(batch(failing, put("later"))[0].error, ActorBroken)


def test_failed_sync_in_the_barrier_breaks_the_writer(open_writer, path):
    """After a failed sync a later one may succeed without having saved anything."""

    def connect(file):
        conn = sqlite3.connect(file, timeout=0, isolation_level=None, factory=Failing)
        conn.execute("PRAGMA foreign_keys = ON")
        return conn

    open_writer().close()
    writer = open_writer(Environment(connect_writer=connect))
    writer.connection.conn.fail_on, writer.connection.conn.times = "COMMIT", 1
    (outcome,) = batch(writer, put("1"))
    assert isinstance(outcome.error, DiskIOError | OutcomeUnknown)
    assert isinstance(batch(writer, put("2"))[0].error, ActorBroken)
    assert keys(path) == []


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (sqlite3.SQLITE_FULL, DiskFull),
        (sqlite3.SQLITE_BUSY, Busy),
        (sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY, ConstraintFailed),
    ],
)
def test_refused_commit_is_not_executed_and_the_writer_goes_on(
    failing, path, code, kind, monkeypatch
):
    monkeypatch.setattr(limits, "COMMIT_BUSY_SECONDS", 0.0)
    failing.connection.conn.fail_on, failing.connection.conn.code = "COMMIT", code
    outcomes = batch(failing, put("1"), put("2"))
    assert [type(outcome.error) for outcome in outcomes] == [kind, kind]
    assert {outcome.error.executed for outcome in outcomes} == {"no"}
    failing.connection.conn.fail_on = ""
    assert keys(path) == []
    assert [outcome.commit_no for outcome in batch(failing, put("3"), put("4"))] == [2, 3]


def test_damage_that_a_commit_meets_is_not_executed_and_stops_changes(failing, path):
    """FTS5 and the tables are looked at before SQLite writes anything: no sync has failed."""
    failing.connection.conn.fail_on, failing.connection.conn.code = "COMMIT", sqlite3.SQLITE_CORRUPT
    outcomes = batch(failing, put("1"), put("2"))
    assert [type(outcome.error) for outcome in outcomes] == [Damaged, ActorBroken]
    assert {outcome.error.executed for outcome in outcomes} == {"no"}
    failing.connection.conn.fail_on = ""
    assert failing.connection.broken is None
    assert not resolve_paths(path).fsync_failed.exists()
    assert keys(path) == []


@pytest.mark.parametrize(("count", "times"), [(1, 1), (3, 2)])
def test_damaged_index_that_a_commit_meets_costs_nothing(failing, path, count, times):
    run(failing, append("walrus"))
    failing.connection.conn.code, failing.connection.conn.times = sqlite3.SQLITE_CORRUPT_VTAB, times
    failing.connection.conn.fail_on = "COMMIT"
    run(failing, *(put(str(n)) for n in range(count)))
    assert keys(path) == [str(n) for n in range(count)]
    assert failing.connection.broken is None
    index_everything(failing)
    assert failing.index.rebuilds == 1
    assert_index_is_true(path)


class Interfering(Failing):
    """Another program acts while the file is rewritten."""

    meanwhile = staticmethod(lambda: None)

    def execute(self, sql, *args):
        done = super().execute(sql, *args)
        if sql == "VACUUM":
            self.meanwhile()
        return done


@pytest.fixture
def interfered(open_writer, path):
    def connect(file):
        return sqlite3.connect(file, timeout=0, isolation_level=None, factory=Interfering)

    writer = open_writer(Environment(connect_writer=connect))
    run(writer, put("1"))
    return writer


@pytest.mark.parametrize("code", [sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_WRITE])
def test_failed_sync_of_a_vacuum_breaks_the_writer(failing, path, code):
    failing.connection.conn.fail_on, failing.connection.conn.code = "VACUUM", code
    (outcome,) = batch(failing, Vacuum())
    assert isinstance(outcome.error, DiskIOError | ActorBroken)
    assert failing.connection.exit_code == exit_codes.FSYNC_FAILED
    assert resolve_paths(path).fsync_failed.exists()
    failing.connection.conn.fail_on = ""
    assert isinstance(batch(failing, put("later"))[0].error, ActorBroken)


def test_vacuum_without_room_changes_nothing(failing, path):
    failing.connection.conn.fail_on, failing.connection.conn.code = "VACUUM", sqlite3.SQLITE_FULL
    (outcome,) = batch(failing, Vacuum())
    assert isinstance(outcome.error, DiskFull)
    failing.connection.conn.fail_on = ""
    run(failing, put("later"))


def test_file_that_is_replaced_during_a_vacuum_stops_the_writer(interfered, path):
    def replace():
        copy = path.with_name("copy.db")
        with raw(copy) as other:
            other.execute("CREATE TABLE theirs (id)")
        os.replace(copy, path)

    interfered.connection.conn.meanwhile = replace
    (outcome,) = batch(interfered, Vacuum())
    assert isinstance(outcome.error, ActorBroken)
    assert interfered.connection.exit_code == exit_codes.FILES_REPLACED
    assert names(path, "table") == {"theirs"}


def test_owner_that_comes_during_a_vacuum_fences_the_old_one(interfered, path):
    def take_over():
        with raw(path) as other:
            other.execute("UPDATE hermes_actor_meta SET value = value + 1 WHERE key = 'epoch'")

    interfered.connection.conn.meanwhile = take_over
    (outcome,) = batch(interfered, Vacuum())
    assert isinstance(outcome.error, ActorBroken)
    assert interfered.connection.exit_code == exit_codes.FENCED


def test_failed_sync_of_an_extra_index_breaks_the_writer(failing, path):
    with raw(path) as foreign:
        foreign.execute("DROP INDEX hermes_actor_messages_time")
    conn = failing.connection.conn
    while "hermes_actor_messages_time" in features_of(conn).indexes:
        failing.index.run_slice(1.0)
    while failing.index.fill_gaps():
        pass
    conn.fail_on = "COMMIT"
    with pytest.raises(OutcomeUnknown):
        failing.idle_slice()
    assert failing.connection.exit_code == exit_codes.FSYNC_FAILED


def test_batch_that_is_too_big_for_the_disk_goes_through_one_by_one(failing, path):
    failing.connection.conn.fail_on, failing.connection.conn.code = "COMMIT", sqlite3.SQLITE_FULL
    failing.connection.conn.times = 1
    assert [outcome.commit_no for outcome in batch(failing, put("1"), put("2"))] == [2, 3]
    assert keys(path) == ["1", "2"]


@pytest.mark.parametrize("code", [sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_READ])
def test_storage_error_inside_an_operation_costs_only_that_operation(
    failing, path, code, monkeypatch
):
    # Of the disk, and so of every connection: all at once, and again with a way back for each.
    monkeypatch.setattr(Failing, "fail_on", "INSERT INTO messages")
    monkeypatch.setattr(Failing, "code", code)
    outcomes = batch(failing, put("1"), append("x"), put("2"))
    assert isinstance(outcomes[1].error, DiskFull | DiskIOError)
    assert [outcome.commit_no for outcome in outcomes] == [2, None, 3]
    assert keys(path) == ["1", "2"]


def test_error_that_does_not_come_again_costs_nothing(failing, path):
    failing.connection.conn.code, failing.connection.conn.times = sqlite3.SQLITE_IOERR_READ, 1
    failing.connection.conn.fail_on = "INSERT INTO state_meta"
    suspect = failing.connection.conn
    outcomes = batch(failing, put("1"), put("2"))
    assert [outcome.commit_no for outcome in outcomes] == [2, 3]
    assert keys(path) == ["1", "2"]
    # What a full-text table remembers of the failed try went with its connection.
    assert failing.connection.conn is not suspect


# Files and the owner lock.


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_files_belong_to_their_owner_alone(path, umask):
    paths, old = resolve_paths(path), os.umask(umask)
    try:
        lock = OwnerLock.acquire(paths)
        writer = Writer(paths)
        run(writer, put("k"))
    finally:
        os.umask(old)
    modes = {
        file.name: oct(file.stat().st_mode & 0o777)
        for file in (paths.db, paths.wal, paths.shm, paths.owner_lock, paths.folder)
    }
    writer.close()
    lock.release()
    assert modes.pop(paths.folder.name) == "0o700"
    assert set(modes.values()) == {"0o600"}


def test_owner_lock_tells_who_holds_it(path):
    paths = resolve_paths(path)
    lock = OwnerLock.acquire(paths)
    lock.describe(epoch=7)
    content = json.loads(paths.owner_lock.read_text())
    assert sorted(content) == ["build", "epoch", "pid", "started"]
    assert (content["pid"], content["epoch"]) == (os.getpid(), 7)
    lock.release()


def test_second_owner_is_told_about_the_first(path):
    paths = resolve_paths(path)
    lock = OwnerLock.acquire(paths)
    with pytest.raises(AlreadyOwned, match=str(os.getpid())) as caught:
        OwnerLock.acquire(paths)
    assert caught.value.pid == os.getpid()
    inode = paths.owner_lock.stat().st_ino
    lock.release()
    lock.release()
    OwnerLock.acquire(paths).release()
    assert paths.owner_lock.stat().st_ino == inode


def test_unreadable_lock_content_does_not_hide_the_owner(path):
    paths = resolve_paths(path)
    lock = OwnerLock.acquire(paths)
    paths.owner_lock.write_bytes(b"\xff{")
    with pytest.raises(AlreadyOwned, match="unknown"):
        OwnerLock.acquire(paths)
    lock.release()


def test_lock_is_not_handed_to_programs_that_are_started(path):
    lock = OwnerLock.acquire(resolve_paths(path))
    assert not os.get_inheritable(lock._descriptor)
    lock.release()


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
