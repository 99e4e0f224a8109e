"""Bytes that no client of ours would send (R4): at most the connection that sent them ends.

One actor meets everything in this file. Before and after each test another client writes through
the product's own client and finds the same actor.
"""

import os
import random
import threading
from contextlib import ExitStack, closing, suppress

import msgspec
import pytest
from support.actors import actor_pid, contents, descriptors, end_actors, wait_for
from support.wire import Wire, append, create, frame, hello, request, select

from hermes_actor import SessionDB

LARGEST = 2 * 1024 * 1024


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("hostile") / "state.db"
    yield path
    end_actors(path)


@pytest.fixture(scope="module")
def neighbour(path):
    with closing(SessionDB(path, mode="actor")) as db:
        db.create_session("neighbour", "cli")
        db.create_session("s", "cli")
        yield db


@pytest.fixture(autouse=True)
def unharmed(path, neighbour):
    """Whatever a test does, the neighbour's writes go on, in the same actor, and nothing stays."""
    pid = neighbour._port.statistics()["pid"]
    first = neighbour.append_message("neighbour", "user", "before")
    yield
    assert neighbour.append_message("neighbour", "user", "after") > first
    assert neighbour._port.statistics()["pid"] == pid == actor_pid(path)
    wait_for(lambda: len(neighbour._port.statistics()["connections"]) == 1)
    # Every byte of the budget has been given back.
    wait_for(lambda: neighbour._port.statistics()["queue"]["bytes"] == 0, timeout=60)


def body(message):
    return msgspec.msgpack.encode(message)


def framed(data):
    return len(data).to_bytes(4, "big") + data


NESTED = b"\x91" * 100_000 + b"\xc0"
REQUEST = request(1, append("s", "never"))
WITHOUT_OPERATION = {"t": "request", "seq": 1, "after": 0}

BAD_FIRST = {
    "other magic": frame(hello(os.urandom(16), magic="hermes-peer")),
    "no magic": frame({"t": "hello", "magic": None}),
    "short client id": frame(hello(b"x")),
    "no client id": frame(hello(b"")),
    "a request": frame(REQUEST),
    "a good-bye": frame({"t": "bye"}),
    "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "TLS": bytes.fromhex("16030100c8010000c40303"),
}

BAD_LATER = {
    "zero length": framed(b""),
    "one over the limit": (LARGEST + 1).to_bytes(4, "big"),
    "largest length": b"\xff" * 4,
    "not MessagePack": framed(b"\xc1"),
    "half a map": framed(body(REQUEST)[:-1]),
    "two maps": framed(body(REQUEST) + body(REQUEST)),
    "a list": frame([1, 2, 3]),
    "nil": frame(None),
    "an empty map": frame({}),
    "keys that are numbers": frame({1: 2}),
    "a tag that is a number": frame({**REQUEST, "t": 7}),
    "an unknown tag": frame({**REQUEST, "t": "levitate"}),
    "a tag of the other side": frame({"t": "ok", "seq": 1, "commit_no": 1}),
    "a second Hello": frame(hello(os.urandom(16))),
    "deep nesting": framed(NESTED),
    "deep nesting in a field": framed(body({**REQUEST, "x": 0})[:-1] + NESTED),
    "deep nesting in the operation": framed(
        body({**WITHOUT_OPERATION, "operation": 0})[:-1] + NESTED
    ),
    "no operation": frame(WITHOUT_OPERATION),
    "seq 0": frame({**REQUEST, "seq": 0}),
    "seq below 0": frame({**REQUEST, "seq": -5}),
    "seq over 63 bits": frame({**REQUEST, "seq": 2**64 - 1}),
    "seq as text": frame({**REQUEST, "seq": "1"}),
    "seq as float": frame({**REQUEST, "seq": 1.5}),
    "timeout as text": frame({**REQUEST, "patience": "long"}),
    "bad UTF-8": framed(body(REQUEST).replace(b"request", b"reque\xff\xfe")),
    "a length of a string that is a lie": framed(b"\x81\xa1t\xdb\xff\xff\xff\xff"),
    "a length of a map that is a lie": framed(b"\xdf\xff\xff\xff\xff"),
}


@pytest.mark.parametrize("data", BAD_FIRST.values(), ids=BAD_FIRST)
def test_bad_first_frame_ends_the_connection_without_an_answer(path, data):
    with closing(Wire(path, greet=False)) as wire:
        wire.send(data)
        assert wire.until_end() == []
    assert contents(path, "s") == []


@pytest.mark.parametrize("data", BAD_LATER.values(), ids=BAD_LATER)
def test_bad_frame_ends_the_connection_without_an_answer(path, data):
    with closing(Wire(path)) as wire:
        wire.send(data)
        assert wire.until_end() == []
    assert contents(path, "s") == []


def test_bad_frame_ends_an_open_lease_too(path, neighbour):
    insert = select("INSERT INTO state_meta VALUES ('lease', 'x')")
    with closing(Wire(path)) as wire:
        wire.send({"t": "lease.open", "ask": -1, "lease": 1})
        assert wire.answer(-1)["t"] == "done"
        wire.send({"t": "lease.run", "ask": -2, "lease": 1, "statement": insert})
        assert wire.answer(-2)["t"] == "done"
        wire.send(b"\0\0\0\1\xc1")
        assert wire.until_end() == []
    neighbour.append_message("neighbour", "user", "after the lease")
    assert neighbour.get_meta("lease") is None


@pytest.mark.parametrize("statement", [create("no statement"), {"op": "unknown"}, 7])
def test_what_is_no_statement_is_refused_and_its_lease_goes_on(path, statement):
    insert = select("INSERT INTO state_meta VALUES (hex(randomblob(8)), 'x') RETURNING 1")
    with closing(Wire(path)) as wire:
        wire.send({"t": "lease.open", "ask": -1, "lease": 1})
        wire.send({"t": "lease.run", "ask": -2, "lease": 1, "statement": statement})
        wire.send({"t": "lease.run", "ask": -3, "lease": 1, "statement": insert})
        wire.send({"t": "lease.commit", "seq": 1, "lease": 1})
        assert wire.answer(-2)["code"] == "unsupported"
        assert wire.answer(-3)["result"]["rows"] == [[1]]
        assert wire.answer(1)["t"] == "ok"


def test_large_frames_of_those_who_are_cut_off_use_up_no_budget(path):
    """Or else the next one would wait for its Welcome for ever."""
    large = frame(request(1, append("s", "x" * (LARGEST - 200))))
    bad = frame(request(-1, append("s", "x" * (LARGEST - 200))))
    for _ in range(20):
        with closing(Wire(path, greet=False)) as wire:
            wire.send(large)
            assert wire.until_end() == []
        with closing(Wire(path)) as wire:
            wire.send(bad)
            assert wire.until_end() == []


def test_half_a_frame_is_not_executed(path):
    whole = frame(request(1, append("s", "half")))
    for cut in (1, 3, 4, 5, len(whole) // 2, len(whole) - 1):
        with closing(Wire(path)) as wire:
            wire.send(whole[:cut])
    with closing(Wire(path, greet=False)) as wire:
        wire.send(frame(hello(wire.client_id))[:20])
    assert contents(path, "s") == []


def test_frame_that_arrives_byte_by_byte_is_whole(path):
    with closing(Wire(path)) as wire:
        for byte in frame(request(1, {"op": "meta.set", "key": "slow", "value": "v"})):
            wire.send(bytes([byte]))
        assert wire.answer(1)["t"] == "ok"


def test_largest_frame_is_taken(path, neighbour):
    with closing(Wire(path)) as wire:
        small = request(1, {"op": "meta.set", "key": "large", "value": "x" * 70_000})
        size = LARGEST - len(body(small)) + 70_000
        whole = frame(request(1, {"op": "meta.set", "key": "large", "value": "x" * size}))
        assert len(whole) == 4 + LARGEST
        wire.send(whole)
        assert wire.answer(1)["t"] == "ok"
    assert len(neighbour.get_meta("large")) == size


def test_frame_one_byte_larger_is_not_even_read(path, neighbour):
    with closing(Wire(path)) as wire:
        small = request(1, {"op": "meta.set", "key": "too large", "value": "x" * 70_000})
        size = LARGEST - len(body(small)) + 70_000 + 1
        whole = frame(request(1, {"op": "meta.set", "key": "too large", "value": "x" * size}))
        with suppress(BrokenPipeError, ConnectionResetError):
            wire.send(whole)
        assert wire.until_end() == []
    assert neighbour.get_meta("too large") is None


def test_bytes_after_bye_are_not_executed(path):
    with closing(Wire(path)) as wire:
        wire.send({"t": "bye"}, request(1, append("s", "after bye")))
        assert wire.until_end() == []
    assert contents(path, "s") == []


def test_no_common_version_is_said(path):
    with closing(Wire(path, greet=False)) as wire:
        wire.send(hello(wire.client_id, oldest=2, newest=9))
        (reject,) = wire.until_end()
    assert (reject["t"], reject["code"]) == ("reject", "protocol")


# --- what is strange but allowed ---------------------------------------------------------------

UNREADABLE = {
    "unknown operation": {"op": "session.levitate", "id": "s"},
    "operation without a tag": {"id": "s"},
    "operation without a required field": {"op": "meta.set", "value": "v"},
    "operation with a wrong type": {"op": "session.end", "id": "s", "ended_at": "now"},
    "operation that is no map": 7,
    "operation that is nil": None,
    "operation with a list for a value": {"op": "meta.set", "key": "k", "value": [1]},
}


@pytest.mark.parametrize("operation", UNREADABLE.values(), ids=UNREADABLE)
def test_operation_that_cannot_be_read_is_answered_and_survived(path, operation):
    with closing(Wire(path)) as wire:
        answer = wire.do(1, operation)
        assert (answer["t"], answer["code"]) == ("failed", "unsupported")
        assert answer.get("executed", "no") == "no"
        assert wire.do(2, {"op": "meta.set", "key": "next", "value": "2"})["t"] == "ok"


def test_unknown_fields_are_skipped_everywhere(path, neighbour):
    future = {"deep": [[{}], {"t": "drain"}], "b": b"\0" * 1000, "f": 1.5}
    operation = {"op": "meta.set", "value": "kept", "future": future, "key": "unknown fields"}
    with closing(Wire(path, greet=False)) as wire:
        wire.send({**hello(wire.client_id), "future": future})
        assert wire.receive()["t"] == "welcome"
        wire.send({"future": future, **request(1, operation), "later": None})
        assert wire.answer(1)["t"] == "ok"
    assert neighbour.get_meta("unknown fields") == "kept"


def test_id_that_no_message_can_have_ends_one_connection(path, neighbour):
    """The writer would meet it in every wait for the index, its own and those of others."""
    with closing(Wire(path)) as wire:
        wire.send({"t": "catch-up", "ask": -1, "through": 2**63, "patience": 60.0})
        wire.until_end()
    with closing(Wire(path)) as wire:
        wire.send({"t": "catch-up", "ask": -1, "through": 2**63 - 1, "patience": 60.0})
        assert wire.answer(-1)["t"] == "done"
    neighbour.append_message("neighbour", "user", "walrus")
    assert len(neighbour.search_messages("walrus")) == 1


def test_numbers_may_leap_and_do_not_fall_back(path):
    with closing(Wire(path)) as wire:
        assert wire.do(2**63 - 2, {"op": "meta.set", "key": "leap", "value": "1"})["t"] == "ok"
        late = wire.do(5, append("s", "late"), after=wire.welcome["commit_no"])
        assert (late["t"], late.get("executed", "no")) == ("failed", "no")
    assert contents(path, "s") == []


# --- chance --------------------------------------------------------------------------------------


def strange_frames(seed):
    """Noise, noise in a frame, and good frames with some bytes changed or cut."""
    chance = random.Random(seed)
    good = [
        frame(request(1, append("chance", "x" * 50))),
        frame(request(1, create("chance"), after=3, acked_through=9, timeout=0.5)),
        frame({"t": "catch-up", "ask": -1, "through": 5}),
        frame({"t": "lease.open", "ask": -1, "lease": 7}),
        frame({"t": "lease.commit", "seq": 7, "lease": 7}),
        frame({"t": "status", "ask": -1}),
    ]
    while True:
        kind = chance.randrange(4)
        if kind == 0:
            yield chance.randbytes(chance.randrange(1, 200))
        elif kind == 1:
            yield framed(chance.randbytes(chance.randrange(200)))
        else:
            data = bytearray(chance.choice(good))
            for _ in range(chance.randrange(1, 4)):
                place = chance.randrange(4 if kind == 2 else 0, len(data))
                data[place] = chance.randrange(256)
            yield bytes(data)


def test_three_hundred_strange_frames(path, neighbour):
    frames = strange_frames(seed=20)
    for number in range(300):
        with closing(Wire(path)) as wire:
            wire.send(next(frames))
        if number % 30 == 0:
            neighbour.append_message("neighbour", "user", f"after {number}")
    wait_for(lambda: len(neighbour._port.statistics()["connections"]) == 1)
    assert contents(path, "s") == []


# --- those who do not go on ----------------------------------------------------------------------


def test_clients_that_stop_in_the_middle_are_cut_off_and_hold_up_no_other(path, neighbour):
    before = len(descriptors(actor_pid(path)))
    with ExitStack() as stack:
        silent = [stack.enter_context(closing(Wire(path, greet=False))) for _ in range(100)]
        slow = stack.enter_context(closing(Wire(path)))
        slow.send((1_000_000).to_bytes(4, "big"))
        greeting = stack.enter_context(closing(Wire(path, greet=False)))
        greeting.send(frame(hello(greeting.client_id))[:10])
        written = 0
        ended = threading.Event()

        def wait_for_their_end():
            for wire in (*silent, slow, greeting):
                assert wire.until_end() == []
            ended.set()

        waiting = threading.Thread(target=wait_for_their_end)
        waiting.start()
        while not ended.is_set():
            neighbour.append_message("neighbour", "user", "meanwhile")
            written += 1
        waiting.join()
    assert written > 100
    wait_for(lambda: len(descriptors(actor_pid(path))) <= before)


def test_one_who_asks_and_never_listens_is_cut_off_and_finds_its_answers_later(path, neighbour):
    """Its answers pile up to a bound; what was committed has receipts."""
    operation = select("SELECT hex(zeroblob(500000))")
    with closing(Wire(path)) as deaf:
        sent = 0
        with suppress(BrokenPipeError, ConnectionResetError):
            for seq in range(1, 2001):
                deaf.send(request(seq, operation, after=deaf.welcome["commit_no"]))
                sent = seq
                neighbour.append_message("neighbour", "user", "meanwhile")
        deaf.until_end()
    assert 4 < sent < 2000
    before = neighbour._port.statistics()
    with closing(Wire(path, deaf.client_id)) as again:
        for seq in (1, 2):
            answer = again.do(seq, operation, after=deaf.welcome["commit_no"])
            assert answer["t"] == "ok"
            assert len(answer["result"]["rows"][0][0]) == 1_000_000
        again.send({"t": "bye"})
        again.until_end()
    after = neighbour._port.statistics()
    assert after["receipts_replayed"] == before["receipts_replayed"] + 2
    assert after["commit_no"] == before["commit_no"]


def test_one_who_sends_more_than_its_window_is_not_punished(path, neighbour):
    """Its further requests stay in the socket until answers have left."""
    with closing(Wire(path)) as wire:
        count = 1000
        data = b"".join(
            frame(request(seq, {"op": "meta.set", "key": "window", "value": str(seq)}))
            for seq in range(1, count + 1)
        )
        sending = threading.Thread(target=wire.send, args=(data,))
        sending.start()
        answers = [wire.receive() for _ in range(count)]
        sending.join()
    assert [a["seq"] for a in answers] == list(range(1, count + 1))
    assert {a["t"] for a in answers} == {"ok"}
    assert neighbour.get_meta("window") == str(count)


def test_one_who_vanishes_with_a_full_window_is_forgotten(path):
    with closing(Wire(path)) as wire:
        wire.send(*[request(seq, create(f"vanished {seq}")) for seq in range(1, 65)])
