"""Runs of statements that are sent again: applied once, and never refused for having no receipt."""

import msgspec
import pytest

from hermes_actor.engine.jobs import Request
from hermes_actor.engine.receipts import Ticket
from hermes_actor.engine.writer import Writer
from hermes_actor.paths import resolve_paths
from hermes_protocol.operations import SqlLease, SqlReply, SqlRun, SqlStep


@pytest.fixture
def writer(tmp_path):
    writer = Writer(resolve_paths(tmp_path / "plain.db"), kind="plain")
    answer(writer, 1, "CREATE TABLE t (a)")
    yield writer
    writer.close()


def request(seq, operation):
    ticket = Ticket(b"c" * 16, seq, b"", after=0, acked_through=0, floor=0)
    return Request(operation, float("inf"), ticket)


def answer(writer, seq, sql):
    (outcome,) = writer.run_batch([request(seq, SqlRun(steps=[SqlStep(sql=sql)]))])
    assert outcome.error is None
    return msgspec.msgpack.decode(outcome.result, type=SqlReply)


def test_a_run_that_has_changed_something_is_answered_from_its_receipt(writer):
    first = answer(writer, 2, "INSERT INTO t VALUES (1)")
    assert answer(writer, 2, "INSERT INTO t VALUES (1)") == first
    assert answer(writer, 3, "SELECT count(*) FROM t").results[0].rows == [[1]]


def test_a_run_that_has_changed_nothing_is_applied_again_behind_later_ones(writer):
    assert answer(writer, 2, "UPDATE t SET a = 9").results[0].rowcount == 0
    answer(writer, 3, "INSERT INTO t VALUES (1)")
    assert answer(writer, 2, "UPDATE t SET a = 9").results[0].rowcount == 1
    # It has a receipt now, and the later one is still known.
    assert answer(writer, 2, "UPDATE t SET a = 9").results[0].rowcount == 1
    answer(writer, 3, "INSERT INTO t VALUES (1)")
    assert answer(writer, 4, "SELECT a FROM t").results[0].rows == [[9]]


def test_the_commit_of_a_lease_that_is_lost_says_so_behind_later_requests(writer):
    answer(writer, 3, "INSERT INTO t VALUES (1)")
    (outcome,) = writer.run_batch([request(2, SqlLease(lease=2))])
    assert (outcome.error.code, outcome.error.executed) == ("lease-lost", "no")
