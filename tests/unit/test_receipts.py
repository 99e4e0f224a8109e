"""Receipts of a real writer: what memory knows of them is never ahead of the file."""

import sqlite3

import pytest
from msgspec import Raw
from support.direct_writer import put_in_agents

from hermes_actor import limits
from hermes_actor.engine.jobs import Request
from hermes_actor.engine.meta_table import get_internal
from hermes_actor.engine.ownership import OwnerLock
from hermes_actor.engine.receipts import NO_FLOOR, Ticket
from hermes_actor.engine.writer import Writer
from hermes_actor.errors import Unsupported
from hermes_actor.paths import resolve_paths
from hermes_protocol.features import KINDS
from hermes_protocol.operations import MetaSet, SqlStatement


@pytest.fixture(params=KINDS)
def writer(request, tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "RECEIPTS_KEPT_COMMITS", 10)
    monkeypatch.setattr(limits, "RECEIPTS_SWEEP_EVERY_COMMITS", 5)
    paths = resolve_paths(tmp_path / "state.db")
    lock = OwnerLock.acquire(paths)
    writer = Writer(paths, kind=request.param)
    writer.recover()
    yield writer
    writer.close()
    lock.release()


def numbered(writer, number):
    """A change that a file of this kind takes."""
    if writer.kind.name == "plain":
        return SqlStatement(sql=f"PRAGMA user_version = {number}")
    if writer.kind.name == "agents":
        return put_in_agents("k", f"{number}")
    return MetaSet(key="k", value=f"{number}")


def put(writer, client, seq, after=0):
    ticket = Ticket(client, seq, b"d", after, 0, NO_FLOOR)
    request = Request(numbered(writer, seq), ticket=ticket)
    (outcome,) = writer.run_batch([request])
    return outcome


def test_sweep_that_fails_has_swept_nothing(writer, monkeypatch):
    first = put(writer, b"quiet", 1)
    for seq in range(1, 30):
        put(writer, b"busy", seq)

    def commit(*_):
        raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as patch:
        patch.setattr(writer.connection, "commit", commit)
        writer.maintenance.sweep()
    assert (
        writer.receipts.swept_through == get_internal(writer.connection.conn, "swept_through") == 0
    )
    again = put(writer, b"quiet", 1)
    assert (again.error, again.commit_no, again.replayed) == (None, first.commit_no, True)
    # One that never wrote, and knows nothing newer, is not taken for one that was swept.
    assert put(writer, b"new", 1).error is None
    writer.maintenance.sweep()
    assert (
        writer.receipts.swept_through == get_internal(writer.connection.conn, "swept_through") > 0
    )


def test_client_that_memory_has_forgotten_is_met_again(writer, monkeypatch):
    monkeypatch.setattr(limits, "CLIENTS_KNOWN", 3)
    first = [put(writer, bytes([n]), 1).commit_no for n in range(8)]
    again = [put(writer, bytes([n]), 1) for n in range(8)]
    assert [outcome.commit_no for outcome in again] == first
    assert all(outcome.replayed for outcome in again)
    assert put(writer, bytes([0]), 2).error is None


def test_unreadable_request_of_a_client_that_is_not_known_does_not_disturb_its_batch(writer):
    unreadable = Request(Raw(b"\xc0"), ticket=Ticket(b"other", 1, b"d", 0, 0, NO_FLOOR))
    readable = Request(numbered(writer, 1), ticket=Ticket(b"client", 1, b"d", 0, 0, NO_FLOOR))
    # Behind the other: one that comes first is answered alone, before a transaction begins.
    outcomes = writer.run_batch([readable, unreadable])
    assert [type(outcome.error) for outcome in outcomes] == [type(None), Unsupported]
    assert put(writer, b"client", 2).error is None
