"""Answers that wait for a sync that they share."""

import queue
import threading

from support.direct_writer import run, sql

from hermes_actor.engine.environment import Environment
from hermes_actor.engine.jobs import Request
from hermes_actor.engine.shared_sync import SharedSync
from hermes_actor.errors import ActorBroken, OutcomeUnknown
from hermes_protocol.operations import SessionCreate, SqlLease

SECONDS = 60.0


class Disk:
    """A disk whose syncs a test lets through, one by one."""

    def __init__(self):
        self.began = queue.SimpleQueue()
        self.may_end = queue.SimpleQueue()

    def sync(self, *_descriptor):
        self.began.put(None)
        error = self.may_end.get(timeout=SECONDS)
        if error is not None:
            raise error

    def end(self, error=None):
        self.may_end.put(error)

    def wait_for_sync(self):
        self.began.get(timeout=SECONDS)


def test_commit_that_comes_during_a_sync_waits_for_the_next_one():
    disk, answers = Disk(), queue.SimpleQueue()
    shared = SharedSync(disk.sync, lambda error: error, lambda: None)
    shared.withhold(lambda error: answers.put(("first", error)))
    disk.wait_for_sync()
    for name in ("second", "third"):
        shared.withhold(lambda error, name=name: answers.put((name, error)))
    disk.end()
    assert answers.get(timeout=SECONDS) == ("first", None)
    disk.wait_for_sync()
    assert answers.empty()
    assert not shared.is_idle
    disk.end()
    shared.settle()
    assert [answers.get_nowait() for _ in range(2)] == [("second", None), ("third", None)]
    assert shared.is_idle
    shared.close()


def test_failed_sync_is_what_all_answers_say():
    disk, answers, failure = Disk(), queue.SimpleQueue(), RuntimeError("broken")
    shared = SharedSync(disk.sync, lambda _error: failure, lambda: None)
    shared.withhold(answers.put)
    disk.wait_for_sync()
    disk.end(OSError(5, "Input/output error"))
    assert answers.get(timeout=SECONDS) is failure
    shared.close()


def test_its_thread_ends():
    shared = SharedSync(lambda: None, lambda error: error, lambda: None)
    done = threading.Event()
    shared.withhold(lambda _error: done.set())
    thread = shared._thread
    shared.settle()
    shared.close()
    thread.join(SECONDS)
    assert done.is_set()
    assert not thread.is_alive()


def commit(writer, number):
    writer.leases.begin(float("inf"), may_share=True)
    writer.leases.run(sql(f"INSERT INTO state_meta VALUES ('k{number}', 'v')"))
    outcome = writer.leases.end(Request(SqlLease(lease=number)))
    writer.abandon()
    return outcome


def synchronous(writer):
    return writer.connection.conn.execute("PRAGMA synchronous").fetchone()


def test_all_but_leases_sync_by_themselves(open_writer):
    settled = []
    writer = open_writer(Environment())
    writer.connection.settle = lambda: settled.append(synchronous(writer))
    run(writer, SessionCreate(id="s", source="cli", started_at=1.0))
    assert commit(writer, 1).error is None
    assert synchronous(writer) == (1,)
    assert writer.connection.shares_sync
    run(writer, SessionCreate(id="t", source="cli", started_at=1.0))
    # Waited for before the transaction began, and only then set back.
    assert (settled, synchronous(writer)) == ([(1,)], (2,))


def test_checkpoint_waits_for_what_is_not_synced(open_writer):
    writer = open_writer(Environment())
    settled = []
    writer.connection.settle = lambda: settled.append(True)
    assert commit(writer, 1).error is None
    writer.checkpointer.run_before_close()
    assert (settled, synchronous(writer)) == ([True], (2,))


def test_commits_sync_by_themselves_where_the_kernel_alone_cannot(open_writer):
    writer = open_writer(Environment(sync=None))
    assert commit(writer, 1).error is None
    assert not writer.connection.shares_sync
    assert synchronous(writer) == (2,)


def test_nothing_is_committed_after_a_failed_sync(open_writer):
    """An open lease must not commit: the next sync would find nothing wrong."""
    writer = open_writer(Environment())
    writer.leases.begin(float("inf"), may_share=True)
    writer.leases.run(sql("INSERT INTO state_meta VALUES ('k', 'v')"))
    unknown = writer.connection.shared_sync_failed(OSError(5, "Input/output error"))
    assert isinstance(unknown, OutcomeUnknown)
    assert isinstance(writer.leases.end(Request(SqlLease(lease=1))).error, ActorBroken)
    try:
        writer.connection.sync_wal()
    except ActorBroken:
        return
    raise AssertionError("it was synced again")
