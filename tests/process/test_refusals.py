"""What is refused leaves nothing behind: no memory, no parts in the file, no way around (G8)."""

import time
from contextlib import closing
from itertools import count

import msgspec
import pytest
from support.actor_process import served
from support.actors import peak_memory, wait_for
from support.fake_builds import serving
from support.files import query, write_lock
from support.wire import Wire, append, create, keep_writer_busy, request, status

from hermes_actor import SessionDB, limits
from hermes_actor.errors import BadValue, ConstraintFailed, Unsupported, ValueTooLarge

MEGABYTE = 1_000_000


def parts(path):
    return query(path, "SELECT COUNT(*) FROM hermes_actor_stage")[0][0]


@pytest.fixture
def actor(path):
    with served(path) as actor:
        yield actor


@pytest.fixture
def db(path, actor):
    with closing(SessionDB(path)) as db:
        db.create_session("s", "cli")
        yield db


# --- memory ---------------------------------------------------------------------------------------


def test_refused_requests_leave_no_memory_behind(path, actor, db):
    """A hundred megabytes in requests that fail, of a client that never succeeds meanwhile."""

    def refuse(times):
        for _ in range(times):
            # A count that SQLite cannot hold: the error is raised while the values are in hand.
            with pytest.raises(BadValue):
                db.append_message("s", "user", "x" * 200_000, token_count=2**63)

    refuse(20)
    before = peak_memory(actor.pid)
    refuse(500)
    assert peak_memory(actor.pid) < before + 20 * MEGABYTE


def test_long_reasons_are_not_kept_whole(path, actor, db):
    """Sessions that do not exist, each with a name of its own that the error quotes."""
    before = peak_memory(actor.pid)
    for number in range(200):
        with pytest.raises(ConstraintFailed):
            db.append_message(f"{number} " + "x" * 500_000, "user", "x")
    assert peak_memory(actor.pid) < before + 30 * MEGABYTE


def test_number_of_refusals_and_clients_in_memory_is_bounded(path):
    few = "from hermes_actor import limits\nlimits.REFUSALS_KEPT = limits.CLIENTS_KNOWN = 10\n"
    with served(path, few):
        with Wire(path) as wire:
            answers = [wire.do(seq, append("nowhere", "x")) for seq in range(1, 31)]
            assert wire.do(31, create("s"))["t"] == "ok"
            # The latest are known with their reasons; all were not executed.
            assert wire.do(30, append("nowhere", "x")) == answers[29]
            first = wire.do(1, append("nowhere", "x"))
            assert (first["code"], first.get("executed", "no")) == ("request", "no")
            client = wire.client_id
        for _ in range(30):
            with Wire(path) as wire:
                assert wire.do(1, append("s", "x"))["t"] == "ok"
        with Wire(path, client) as wire:
            assert wire.do(31, create("s"))["t"] == "ok"
            assert wire.do(32, append("s", "last"))["t"] == "ok"
    assert query(path, "SELECT COUNT(*) FROM messages") == [(31,)]


def test_refusal_does_not_answer_for_a_request_that_was_applied_later(path):
    """It was refused, sent again, and applied; then its receipt was swept."""
    soon = (
        "from hermes_actor import limits\n"
        "limits.RECEIPTS_KEPT_COMMITS, limits.RECEIPTS_SWEEP_EVERY_COMMITS = 10, 5\n"
    )
    early = append("late", "x")
    with served(path, soon), Wire(path) as other:
        with Wire(path) as wire:
            assert wire.do(1, early)["code"] == "constraint"
        other.do(1, create("late"))
        with Wire(path, wire.client_id) as wire:
            assert wire.do(1, early)["t"] == "ok"
        for seq in range(2, 60):
            other.do(seq, {"op": "meta.set", "key": "k", "value": seq})
        sql = "SELECT COUNT(*) FROM hermes_actor_receipts WHERE client = ?"
        wait_for(lambda: query(path, sql, wire.client_id) == [(0,)])
        with Wire(path, wire.client_id) as wire:
            again = wire.do(1, early)
        assert (again["code"], again["executed"]) == ("unknown", "unknown")


def text(word):
    return bytes([0xA0 | len(word)]) + word.encode()


def removal(count):
    """A ``sessions.remove`` of so many ids, each of three bytes on the wire and some sixty as a
    value."""
    ids = (
        b"\xdd" + count.to_bytes(4, "big") + b"".join(text(f"{n % 90 + 10}") for n in range(count))
    )
    return msgspec.Raw(b"\x82" + text("op") + text("sessions.remove") + text("ids") + ids)


def test_requests_that_wait_are_decoded_one_at_a_time(path, actor):
    operation = removal(100_000)
    with Wire(path) as wire:
        wire.do(1, create("s"))
        before = peak_memory(actor.pid)
        with write_lock(path):
            # As many as the share of a client allows, so that they are taken together.
            wire.send(*(request(seq, operation, timeout=60.0) for seq in range(2, 10)))
            wait_for(lambda: status(path).queue.bytes > 7 * MEGABYTE)
        assert [wire.answer(seq)["t"] for seq in range(2, 10)] == ["ok"] * 8
    assert peak_memory(actor.pid) < before + 25 * MEGABYTE


def test_list_that_is_too_long_is_refused_before_it_is_decoded(path, actor):
    """Two million empty rows are two megabytes on the wire, and 130 as values."""
    rows = b"\xdd" + (2_000_000).to_bytes(4, "big") + b"\x90" * 2_000_000
    copy = (
        b"\x83" + text("op") + text("rows.copy") + text("table") + text("x") + text("rows") + rows
    )
    with Wire(path) as wire:
        before = peak_memory(actor.pid)
        for seq, operation in enumerate([msgspec.Raw(copy), removal(600_000)], 1):
            assert wire.do(seq, operation)["code"] == "unsupported"
    assert peak_memory(actor.pid) < before + 20 * MEGABYTE


def test_what_cannot_be_read_fails_alone_in_a_batch(path, actor):
    with Wire(path) as wire, Wire(path) as other:
        with write_lock(path):
            keep_writer_busy(path, other)
            wire.send(request(1, create("s")))
            wire.send(request(2, {"op": "unknown"}), request(3, {"op": "upkeep.vacuum"}))
            wire.send(request(4, append("s", "x")), request(5, append("nowhere", "x")))
            wait_for(lambda: status(path).queue.count == 5)
        answers = [wire.answer(seq) for seq in range(1, 6)]
    assert [a["t"] for a in answers] == ["ok", "failed", "ok", "ok", "failed"]
    assert [answers[1]["code"], answers[4]["code"]] == ["unsupported", "constraint"]


# --- operations in parts --------------------------------------------------------------------------


def test_parts_of_a_refused_operation_go_with_it(path, db):
    for _ in range(3):
        with pytest.raises(ConstraintFailed):
            db.append_message("nowhere", "tool", "x" * 3 * MEGABYTE)
        assert parts(path) == 0
    db.append_message("s", "tool", "y" * 3 * MEGABYTE)
    assert parts(path) == 0
    assert query(path, "SELECT LENGTH(content) FROM messages") == [(3 * MEGABYTE,)]


def part(key, number, size):
    return {"op": "stage.part", "key": key, "part": number, "data": b"x" * size}


def test_parts_that_cannot_be_put_together_go(path, actor):
    with Wire(path) as wire:
        for number in range(3):
            assert wire.do(number + 1, part(1, number, 1000))["t"] == "ok"
        assert wire.do(4, part(2, 0, 1000))["t"] == "ok"
        missing = wire.do(5, {"op": "stage.apply", "key": 1, "parts": 4})
        assert (missing["code"], missing.get("executed", "no")) == ("bad-value", "no")
        # Others of the same client stay.
        assert query(path, "SELECT DISTINCT key FROM hermes_actor_stage") == [(2,)]


SMALL_STAGE = """
from hermes_actor import limits
limits.STAGED_MAX_BYTES = 3_000_000
"""


def test_operation_in_parts_is_bounded(path):
    """The limit of the actor holds for a client that does not know it."""
    with served(path, SMALL_STAGE) as actor, Wire(path) as wire:
        before = peak_memory(actor.pid)
        answers = [wire.do(n + 1, part(1, n, 500_000)) for n in range(40)]
        assert [a["t"] for a in answers[:6]] == ["ok"] * 6
        assert answers[6]["code"] == "too-big"
        assert parts(path) <= 6
        assert peak_memory(actor.pid) < before + 20 * MEGABYTE


def test_client_refuses_an_operation_that_no_actor_takes(path, db, monkeypatch):
    monkeypatch.setattr(limits, "STAGED_MAX_BYTES", 3_000_000)
    pipeline = db.pipeline()
    pipeline.__enter__()
    pipeline.append_message("s", "tool", "small")
    pipeline.append_message("s", "tool", "x" * 3_100_000)
    with pytest.raises(ValueTooLarge) as caught:
        pipeline.__exit__(None, None, None)
    assert caught.value.executed == "no"
    assert query(path, "SELECT COUNT(*) FROM messages") == [(0,)]
    db.append_message("s", "tool", "still here")


SOON = """
from hermes_actor import limits
limits.STAGE_KEPT_SECONDS = 1.0
"""


def test_parts_of_a_client_that_adds_no_more_go(path):
    with served(path, SOON), Wire(path) as busy:
        with Wire(path) as gone:
            gone.do(1, part(1, 0, 1000))
        assert busy.do(1, part(1, 0, 1000))["t"] == "ok"
        numbers = count(1)

        def only_busy_is_left():
            number = next(numbers)
            assert busy.do(number + 1, part(1, number, 1))["t"] == "ok"
            time.sleep(0.05)
            return query(path, "SELECT DISTINCT client FROM hermes_actor_stage") == [
                (busy.client_id,)
            ]

        wait_for(only_busy_is_left)
        last = next(numbers)
        found = query(path, "SELECT COUNT(*) FROM hermes_actor_stage")
        assert found == [(last,)]
        wait_for(lambda: parts(path) == 0)


# --- no way around a setting ----------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1_200_000], ids=["small", "in parts"])
def test_sql_that_is_switched_off_is_refused_however_it_comes(path, size):
    with serving(path, "--no-private-sql"), closing(SessionDB(path)) as db:
        db.set_meta("k", "v")
        with pytest.raises(Unsupported):
            db._conn.execute(f"DELETE FROM state_meta /* {'x' * size} */")
        with pytest.raises(Unsupported):
            db._execute_write(lambda conn: conn.execute("DELETE FROM state_meta"))
        assert db.get_meta("k") == "v"
        assert parts(path) == 0
