"""Checkpoints: when one is due, and what it reports."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.direct_writer import (
    FakeTime,
    run,
)
from support.files import raw

from hermes_actor import limits
from hermes_actor.engine.checkpoint import (
    Action,
    CheckpointState,
    WalResult,
    decide,
    run_checkpoint,
)
from hermes_actor.paths import resolve_paths
from hermes_protocol.features import KINDS

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
        st.booleans(),  # whether a request waits
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


@pytest.mark.parametrize("file_kind", KINDS)
def test_fifty_writes_are_checkpointed_at_the_first_quiet_moment(writer, put):
    run(writer, *(put(str(n)) for n in range(48)))
    writer.checkpointer.run_if_due(waiting=False)
    assert writer.checkpointer.state.outcomes == {}
    run(writer, put("x"))
    writer.checkpointer.run_if_due(waiting=True)
    assert writer.checkpointer.state.outcomes == {}
    writer.checkpointer.run_if_due(waiting=False)
    assert writer.checkpointer.state.outcomes == {"passive.complete": 1}


@pytest.mark.parametrize("file_kind", KINDS)
def test_a_thousand_frames_do_not_wait_for_fifty_writes(writer, put):
    """4 KiB pages: twenty rows of half a megabyte are 2,500 frames."""
    for n in range(20):
        run(writer, put(str(n), "x" * 512 * 1024))
        writer.checkpointer.run_if_due(waiting=True)
    assert writer.checkpointer.state.outcomes


@pytest.mark.parametrize("file_kind", KINDS)
@pytest.mark.parametrize("action", [Action.PASSIVE, Action.RESTART, Action.TRUNCATE])
def test_pinned_wal_is_reported_as_partial(writer, path, action, put):
    time = FakeTime()
    with raw(path) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM hermes_actor_meta").fetchall()
        run(writer, *(put(str(n), "x" * 5000) for n in range(5)))
        result = run_checkpoint(writer.connection.conn, action, time.env(), budget=0.02)
        assert not result.complete
        assert time.now >= 0.02 or action is Action.PASSIVE
        reader.rollback()
    result = run_checkpoint(writer.connection.conn, action, time.env(), budget=0.02)
    assert result.complete
    writer.checkpointer.state.ran(action, result, 0.0)
    assert writer.checkpointer.state.outcomes == {f"{action.value.lower()}.complete": 1}


@pytest.mark.parametrize("file_kind", KINDS)
def test_reader_that_leaves_in_time_is_waited_for(writer, path, put):
    time = FakeTime()
    with raw(path) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM hermes_actor_meta").fetchall()
        run(writer, put("1"))
        time.on_sleep = lambda: time.sleeps == 3 and reader.rollback()
        assert run_checkpoint(
            writer.connection.conn, Action.TRUNCATE, time.env(), budget=1.0
        ).complete
    assert resolve_paths(path).wal.stat().st_size == 0


@pytest.mark.parametrize("file_kind", KINDS)
def test_quiet_file_gets_a_short_wal(open_writer, path, put):
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
