"""Numbers that come twice, late, or on another connection: applied once or not at all (G2, G3)."""

import os
import signal
from contextlib import closing, suppress

import pytest
from support.actors import contents, own, stop_actor, wait_for
from support.files import query, write_lock
from support.wire import Wire, append, create, frame, hello, request, status

from hermes_actor import SessionDB


@pytest.fixture
def db(path):
    with closing(SessionDB(path, mode="actor")) as db:
        db.create_session("s", "cli")
        yield db


@pytest.fixture
def served(path, db):
    """A store with one session and an actor that stays."""
    return path


def crash(path, db):
    """``kill -9``; another client then has the next actor started."""
    stop_actor(path, signal.SIGKILL)
    db.set_meta("crashed", "yes")


def lines(count, start=1):
    return [append("s", str(n)) for n in range(start, start + count)]


# --- the same client on two connections ----------------------------------------------------------


def test_second_hello_of_a_client_ends_its_first_connection(served):
    with closing(Wire(served)) as old:
        assert old.do(1, append("s", "1"))["t"] == "ok"
        with closing(Wire(served, old.client_id)) as new:
            assert old.until_end() == []
            assert new.do(2, append("s", "2"))["t"] == "ok"
    assert contents(served, "s") == ["1", "2"]


def test_what_the_old_connection_has_queued_is_dropped_and_what_was_begun_is_finished(served):
    operations = lines(12)
    with closing(Wire(served)) as old, closing(Wire(served)) as other:
        with write_lock(served):
            # The writer begins the first one and cannot go on: a program outside has the lock.
            old.send(request(1, operations[0]))
            wait_for(lambda: (admitted(other), queued(other)) == (1, 0))
            old.send(*[request(n, operations[n - 1]) for n in range(2, 12)])
            # The last one is not even read to its end.
            old.send(frame(request(12, operations[11]))[:-3])
            wait_for(lambda: (admitted(other), queued(other)) == (11, 10))
            new = Wire(served, old.client_id, greet=False)
            new.send(hello(new.client_id))
            assert old.until_end() == []
            wait_for(lambda: queued(other) == 0)
            assert contents(served, "s") == []
        with closing(new):
            assert new.receive()["t"] == "welcome"
            # Exactly the first one was begun.
            assert contents(served, "s") == ["1"]
            new.send(*[request(n, operations[n - 1]) for n in range(1, 13)])
            answers = [new.receive() for _ in range(12)]
    assert [a["seq"] for a in answers] == list(range(1, 13))
    numbers = [a["commit_no"] for a in answers]
    assert numbers == list(range(numbers[0], numbers[0] + 12))
    assert contents(served, "s") == [str(n) for n in range(1, 13)]


def admitted(wire):
    """How many requests by hand the actor has read."""
    found = wire.status().connections
    return sum(c.requests for c in found if c.name == "by hand")


def queued(wire):
    return wire.status().queue.count


def test_stale_original_is_never_executed_after_its_resend_was_acknowledged_and_pruned(served, db):
    """The rest of an old frame arrives when even the receipt of its resend is gone."""
    original = frame(request(1, append("s", "once")))
    with closing(Wire(served)) as old:
        old.send(original[:-1])
        with closing(Wire(served, old.client_id)) as new:
            new.send(original)
            assert new.answer(1)["t"] == "ok"
            prune(served, new)
            with suppress(BrokenPipeError):
                old.send(original[-1:])
            assert old.until_end() == []
            # And once more, whole, on the connection that is good.
            new.send(original)
            again = new.answer(1)
            assert (again["t"], again["code"]) == ("failed", "unknown")
            assert again["executed"] == "unknown"
    assert contents(served, "s") == ["once"]
    # The next owner knows only what is in the file.
    crash(served, db)
    with closing(Wire(served, old.client_id)) as new:
        new.send(original)
        assert new.answer(1)["t"] == "failed"
    assert contents(served, "s") == ["once"]


def prune(path, wire):
    """Acknowledge so many answers that the receipts of the first ones go."""
    for seq in range(2, 140):
        answer = wire.do(
            seq, {"op": "meta.set", "key": "k", "value": str(seq)}, acked_through=seq - 1
        )
        assert answer["t"] == "ok"
    sql = "SELECT MIN(seq) FROM hermes_actor_receipts WHERE client = ?"
    ((lowest,),) = query(path, sql, wire.client_id)
    assert lowest > 1


# --- the same number again -----------------------------------------------------------------------


@pytest.mark.parametrize("between", ["nothing", "a new connection", "kill -9"])
def test_resend_is_answered_from_its_receipt(served, db, between):
    operations = [append("s", "a"), create("t"), create("t"), append("s", "b")]
    with closing(Wire(served)) as wire:
        first = [wire.do(seq, op) for seq, op in enumerate(operations, 1)]
        assert [a["t"] for a in first] == ["ok"] * 4
        assert [a["result"] for a in first] == [1, True, False, 2]
        if between == "nothing":
            again = [wire.do(seq, op) for seq, op in enumerate(operations, 1)]
    if between != "nothing":
        if between == "kill -9":
            crash(served, db)
        with closing(Wire(served, wire.client_id)) as wire:
            again = [wire.do(seq, op) for seq, op in enumerate(operations, 1)]
            # It goes on where it was.
            assert wire.do(5, append("s", "c"))["result"] == 3
    assert again == first
    assert contents(served, "s")[:2] == ["a", "b"]
    assert len(contents(served, "s")) <= 3


@pytest.mark.parametrize("restart", [False, True])
def test_other_operation_under_a_known_number_is_refused(served, db, restart):
    with closing(Wire(served)) as wire:
        first = wire.do(1, append("s", "mine"))
    if restart:
        crash(served, db)
    with closing(Wire(served, wire.client_id)) as wire:
        other = wire.do(1, append("s", "another"))
        assert (other["t"], other["code"]) == ("failed", "key-reused")
        assert other.get("executed", "no") == "no"
        assert wire.do(1, append("s", "mine")) == first
        assert wire.do(2, append("s", "next"))["t"] == "ok"
    assert contents(served, "s") == ["mine", "next"]


def test_refusal_is_answered_again_and_not_tried_again(served, db):
    missing = append("nobody", "x")
    with closing(Wire(served)) as wire:
        first = wire.do(1, missing)
        assert (first["t"], first["code"]) == ("failed", "constraint")
        assert wire.do(2, append("s", "y"))["t"] == "ok"
        # Now it would succeed.
        assert wire.do(3, create("nobody"))["t"] == "ok"
        assert wire.do(1, missing) == first
    crash(served, db)
    with closing(Wire(served, wire.client_id)) as wire:
        last = wire.do(1, missing)
        assert (last["t"], last.get("executed", "no")) == ("failed", "no")
    assert contents(served, "nobody") == []


def test_other_client_with_the_same_numbers_is_another_one(served):
    with closing(Wire(served)) as one, closing(Wire(served)) as two:
        assert one.do(1, append("s", "one"))["t"] == "ok"
        assert two.do(1, append("s", "two"))["t"] == "ok"
        assert one.do(1, append("s", "one"))["result"] == 1
        assert two.do(1, append("s", "two"))["result"] == 2
    assert contents(served, "s") == ["one", "two"]


def test_bye_forgets_a_client_and_its_number_may_begin_again(served):
    with closing(Wire(served)) as wire:
        assert wire.do(1, append("s", "a"))["t"] == "ok"
        wire.send({"t": "bye"})
        assert wire.until_end() == []
    sql = "SELECT COUNT(*) FROM hermes_actor_receipts WHERE client = ?"
    wait_for(lambda: query(served, sql, wire.client_id) == [(0,)])


# --- order ---------------------------------------------------------------------------------------


def test_order_of_each_client_is_kept_in_one_stream_of_many(served):
    """Three clients send full windows at once; the order of each is the order of its rows."""
    count = 200
    wires = [Wire(served) for _ in range(3)]
    try:
        for name, _ in enumerate(wires):
            assert wires[0].do(name + 1, create(f"c{name}"))["t"] == "ok"
        first = {id(w): 4 if w is wires[0] else 1 for w in wires}
        for start in range(0, count, 50):
            for name, wire in enumerate(wires):
                wire.send(
                    *[
                        request(first[id(wire)] + n, append(f"c{name}", str(n)))
                        for n in range(start, start + 50)
                    ]
                )
        answers = [[wire.receive() for _ in range(count)] for wire in wires]
    finally:
        for wire in wires:
            wire.close()
    for name, (wire, told) in enumerate(zip(wires, answers, strict=True)):
        assert {a["t"] for a in told} == {"ok"}
        by_seq = sorted(told, key=lambda a: a["seq"])
        assert by_seq[0]["seq"] == first[id(wire)]
        for key in ("commit_no", "result"):
            values = [a[key] for a in by_seq]
            assert values == sorted(values)
        assert contents(served, f"c{name}") == [str(n) for n in range(count)]
    # Without gaps, and each number once.
    numbers = sorted(a["commit_no"] for told in answers for a in told)
    assert numbers == list(range(numbers[0], numbers[0] + 3 * count))
    assert numbers[-1] == own(served, "commit_no") == status(served).commit_no


def test_order_is_kept_across_connections_that_break(served):
    """A client that is thrown off again and again, and always sends the rest again."""
    client, count, answered = os.urandom(16), 120, {}
    operations = lines(count)
    for cut in range(10, count + 1, 10):
        with closing(Wire(served, client)) as wire:
            waiting = [n for n in range(1, cut + 1) if n not in answered]
            wire.send(*[request(n, operations[n - 1]) for n in waiting])
            # It hears only the first few answers before its connection breaks.
            for _ in waiting[: -4 if cut < count else None]:
                answer = wire.receive()
                assert answer["t"] == "ok"
                answered[answer["seq"]] = answer["result"]
    assert [answered[n] for n in range(1, count + 1)] == list(range(1, count + 1))
    assert contents(served, "s") == [str(n) for n in range(1, count + 1)]
