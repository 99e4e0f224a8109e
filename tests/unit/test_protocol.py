"""The wire: frames, what may be in them, golden frames, and the text that describes them."""

import contextlib
import importlib.util
import itertools
import json
import re
import tracemalloc
import typing
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hermes_actor import errors, limits
from hermes_actor.system import sockets
from hermes_protocol import agents
from hermes_protocol import messages as wire
from hermes_protocol import operations as ops
from hermes_protocol.framing import (
    HEADER_BYTES,
    FrameBuffer,
    FrameError,
    OperationError,
    decode_client,
    decode_operation,
    decode_server,
    frame,
)

ALL_OPERATIONS = (*ops.OPERATIONS, *agents.AGENT_OPERATIONS)
PROTOCOL = Path(__file__).parents[2] / "protocol"
FOLDER = PROTOCOL / "vectors/v1"
README = (PROTOCOL / "README.md").read_text("utf-8")
INDEX = json.loads((FOLDER / "index.json").read_text())["vectors"]
GOOD = [pytest.param(one, id=one["name"]) for one in INDEX if "error" not in one]
LIMIT = wire.Limits().frame_bytes

pack = msgspec.msgpack.encode
unpack = msgspec.msgpack.decode

# A busy machine is no reason to fail.
patiently = settings(deadline=None)


def load_generator():
    spec = importlib.util.spec_from_file_location("generate", PROTOCOL / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


generate = load_generator()


def golden(entry):
    return (FOLDER / entry["file"]).read_bytes()


def named(name):
    (entry,) = [one for one in INDEX if one["name"] == name]
    return entry


def decoder(entry):
    return generate.DECODE[entry["sent_by"]]


def body_of(data):
    """The one body of a frame."""
    buffer = FrameBuffer(LIMIT)
    buffer.feed(data)
    body = buffer.next_body()
    assert body is not None
    assert len(buffer) == 0
    return body


def decoded(entry):
    return decoder(entry)(body_of(golden(entry)))


def framed(body):
    return len(body).to_bytes(HEADER_BYTES, "big") + body


def drain(buffer):
    bodies = []
    while (body := buffer.next_body()) is not None:
        bodies.append(body)
    return bodies


# --- golden frames ---------------------------------------------------------------------------


def test_generated_files_are_current():
    stale = [
        path
        for path, content in generate.generated().items()
        if not (PROTOCOL / path).exists() or (PROTOCOL / path).read_bytes() != content
    ]
    assert stale == [], "run: python protocol/generate.py"


def test_index_lists_the_files_of_the_folder():
    files = [entry["file"] for entry in INDEX]
    assert len(files) == len(set(files))
    assert {*files, "index.json"} == {file.name for file in FOLDER.iterdir()}


def test_check_mode_finds_nothing_to_do():
    assert generate.main(["--check"]) is None


def test_golden_frame_is_not_written_over(monkeypatch):
    other = generate.Vector("bye", "client", frame(wire.Drain(ask=-1)))
    monkeypatch.setitem(generate.VECTORS, "bye", other)
    before = (FOLDER / "bye.bin").read_bytes()
    assert "golden frames never change: vectors/v1/bye.bin" in generate.main([])
    assert (FOLDER / "bye.bin").read_bytes() == before


@pytest.mark.parametrize("entry", GOOD)
def test_golden_frame_has_its_value(entry):
    message = decoded(entry)
    assert type(message).__name__ == entry["message"]
    found = generate.plain(message)
    if isinstance(message, wire.Request):
        operation = decode_operation(message.operation)
        assert type(operation).__name__ == entry["operation"]
        found["operation"] = generate.plain(operation)
    if isinstance(message, wire.LeaseRun):
        found["statement"] = generate.plain(decode_operation(message.statement))
    assert found == entry["value"]


@pytest.mark.parametrize("entry", GOOD)
def test_golden_frame_is_made_again(entry):
    message = decoded(entry)
    same = named(entry.get("same_as", entry["name"]))
    if isinstance(message, wire.Request):
        operation = decode_operation(message.operation)
        message = msgspec.structs.replace(message, operation=msgspec.Raw(pack(operation)))
    assert frame(message) == golden(same)


@pytest.mark.parametrize("entry", [p for p in GOOD if "same_as" in p.values[0]])
def test_newer_sender_says_the_same_in_other_bytes(entry):
    same = named(entry["same_as"])
    assert golden(entry) != golden(same)
    assert entry["value"] == same["value"]


@pytest.mark.parametrize(
    "entry", [pytest.param(e, id=e["name"]) for e in INDEX if e.get("error") == "frame"]
)
def test_bad_frame_is_refused(entry):
    with pytest.raises(FrameError):
        decode_client(body_of(golden(entry)))


@pytest.mark.parametrize(
    "entry", [pytest.param(e, id=e["name"]) for e in INDEX if e.get("error") == "operation"]
)
def test_bad_operation_is_not_the_fault_of_its_frame(entry):
    message = decoded(entry)
    assert isinstance(message, wire.Request)
    with pytest.raises(OperationError):
        decode_operation(message.operation)


@pytest.mark.parametrize(
    ("union", "sender"), [(wire.ClientMessage, "client"), (wire.ServerMessage, "actor")]
)
def test_every_message_has_a_vector(union, sender):
    shown = {e["message"] for e in INDEX if e["sent_by"] == sender and "message" in e}
    assert shown == {kind.__name__ for kind in typing.get_args(union)}


def test_every_operation_has_a_vector():
    shown = {entry["operation"] for entry in INDEX if "operation" in entry}
    assert shown == {kind.__name__ for kind in ALL_OPERATIONS}


@pytest.mark.parametrize("kind", ALL_OPERATIONS, ids=lambda kind: kind.__name__)
def test_every_field_of_an_operation_is_in_some_vector(kind):
    sent = set()
    for entry in INDEX:
        if entry.get("operation") == kind.__name__:
            sent |= set(unpack(decoded(entry).operation))
    assert sent - {"future"} == {"op", *kind.__struct_fields__}


@pytest.mark.parametrize(
    "kind",
    [*typing.get_args(wire.ClientMessage), *typing.get_args(wire.ServerMessage)],
    ids=lambda kind: kind.__name__,
)
def test_every_field_of_a_message_is_in_some_vector_and_so_is_its_absence(kind):
    bodies = [unpack(body_of(golden(e))) for e in INDEX if e.get("message") == kind.__name__]
    for field in msgspec.structs.fields(kind):
        assert any(field.encode_name in body for body in bodies), field.name
        if not field.required and kind is not wire.Hello:
            assert any(field.encode_name not in body for body in bodies), field.name


def test_edge_cases_are_among_the_vectors():
    everything = b"".join(golden(entry) for entry in INDEX)
    assert "北京 🦭 \x00 \U0010ffff".encode() in everything
    assert pack({"b": b"\x00\xff"}) in everything
    assert pack({"b": b""}) in everything
    assert unpack(body_of((FOLDER / "changed.foreign.bin").read_bytes())) == {"t": "changed"}


# --- schema ----------------------------------------------------------------------------------


def test_schema_has_every_message_and_operation():
    schema = json.loads((PROTOCOL / "schema.json").read_text())
    groups = {
        "client": typing.get_args(wire.ClientMessage),
        "actor": typing.get_args(wire.ServerMessage),
        "operations": ALL_OPERATIONS,
    }
    for group, kinds in groups.items():
        named = [one["$ref"].rpartition("/")[2] for one in schema[group]["anyOf"]]
        assert named == [kind.__name__ for kind in kinds]
        for kind in kinds:
            config = kind.__struct_config__
            described = schema["$defs"][kind.__name__]
            assert described["properties"][config.tag_field] == {"enum": [config.tag]}
            assert set(described["properties"]) == {
                config.tag_field,
                *kind.__struct_encode_fields__,
            }
            required = [f.name for f in msgspec.structs.fields(kind) if f.required]
            assert described["required"] == [config.tag_field, *required]
    assert set(schema["results"]) == {kind.__struct_config__.tag for kind in ALL_OPERATIONS}


def test_schema_refers_only_to_what_it_defines():
    text = (PROTOCOL / "schema.json").read_text()
    defined = json.loads(text)["$defs"]
    assert set(re.findall(r"#/\$defs/(\w+)", text)) == set(defined)


# --- the text --------------------------------------------------------------------------------


def section(number):
    """The text below one numbered heading."""
    found = re.search(rf"^## {number}\. .*?\n(.*?)(?=^## |\Z)", README, re.MULTILINE | re.DOTALL)
    return found.group(1)


def rows(text):
    """Cells of the rows of all tables, headings and rules left out."""
    lines = [line.strip() for line in text.splitlines() if line.strip().startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [
        row
        for row, below in itertools.pairwise([*cells, [""]])
        if set("".join(row)) - set("-") and set("".join(below)) != {"-"}
    ]


def test_text_lists_exactly_the_codes_there_are():
    shown = {row[0].strip("`"): row[1] for row in rows(section(13))}
    assert shown == {code: kind.executed for code, kind in errors.by_code.items()}


def test_text_has_the_numbers_of_the_program():
    shown = [
        float(re.match(r"[\d.]+", row[1].replace(",", "")).group()) for row in rows(section(12))
    ]
    assert shown == [
        limits.WINDOW_REQUESTS,
        limits.FRAME_MAX_BYTES,
        2 * limits.STAGE_PART_BYTES,
        limits.STAGE_PART_BYTES,
        limits.CREDIT_TOTAL_BYTES,
        limits.CREDIT_TOTAL_BYTES / 4,
        limits.HELLO_SECONDS,
        limits.BODY_SECONDS,
        limits.OUTBOX_MAX_BYTES,
        limits.WRITE_STALL_SECONDS,
        limits.DEFAULT_TIMEOUT_SECONDS,
        limits.LEASE_TOTAL_SECONDS,
        limits.LEASE_IDLE_SECONDS,
        limits.RECEIPTS_KEPT_COMMITS,
        limits.RING_CHANGES,
        sockets._MAX_PATH_BYTES,
    ]
    assert limits.CREDIT_FACTOR == 3
    assert f"wait {limits.RECONNECT_FIRST_SECONDS * 1000:g} ms" in section(6)
    assert f"up to {limits.RECONNECT_MAX_SECONDS * 1000:g} ms" in section(6)


def test_limits_of_the_messages_are_those_of_the_actor():
    defaults = wire.Limits()
    assert defaults.window == limits.WINDOW_REQUESTS
    assert defaults.frame_bytes == limits.FRAME_MAX_BYTES


@pytest.mark.parametrize("kind", [wire.Hello, wire.Welcome], ids=lambda kind: kind.__name__)
def test_text_explains_every_field_of_the_opening(kind):
    first = " ".join(row[0] for row in rows(section(4)))
    for name in kind.__struct_fields__:
        assert f"`{name}`" in first


def test_rules_are_numbered_without_gaps():
    for number in range(1, 12):
        prose = section(number)
        listed = [int(n) for n in re.findall(r"^(\d+)\. ", prose, re.MULTILINE)]
        tabled = [int(row[0]) for row in rows(prose) if row[0].isdigit()]
        assert sorted([*listed, *tabled]) == list(range(1, len(listed) + len(tabled) + 1)), number


def test_text_refers_to_rules_and_files_that_exist():
    for place, rule in re.findall(r"\brules? (\d+)\.(\d+)", README):
        prose = section(place)
        tabled = any(row[0] == rule for row in rows(prose))
        assert tabled or re.search(rf"^{rule}\. ", prose, re.MULTILINE), f"{place}.{rule}"
    for place in re.findall(r"§ (\d+)", README):
        assert section(place)
    files = set(re.findall(r"`([\w.-]+\.bin)`", README))
    assert files
    assert [name for name in sorted(files) if not (FOLDER / name).exists()] == []


# --- cutting a stream into frames ------------------------------------------------------------

bodies = st.lists(st.binary(max_size=300), max_size=8)


@patiently
@given(bodies=bodies, cuts=st.lists(st.integers(0, 3000), max_size=20))
def test_any_split_gives_the_same_frames(bodies, cuts):
    stream = b"".join(map(framed, bodies))
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    buffer, found = FrameBuffer(LIMIT), []
    for begin, end in itertools.pairwise(places):
        buffer.feed(stream[begin:end])
        found += drain(buffer)
    assert found == bodies
    assert len(buffer) == 0


@patiently
@given(bodies=bodies, rest=st.binary(max_size=3))
def test_byte_by_byte_gives_the_same_frames(bodies, rest):
    buffer, found = FrameBuffer(LIMIT), []
    for byte in b"".join(map(framed, bodies)) + rest:
        buffer.feed(bytes([byte]))
        found += drain(buffer)
    assert found == bodies
    assert len(buffer) == len(rest)
    assert buffer.needed() is None


@pytest.mark.parametrize("entry", GOOD)
def test_no_part_of_a_frame_is_a_frame(entry):
    data = golden(entry)
    for length in {0, 1, HEADER_BYTES - 1, HEADER_BYTES, len(data) // 2, len(data) - 1}:
        buffer = FrameBuffer(LIMIT)
        buffer.feed(data[:length])
        assert buffer.next_body() is None
        assert buffer.needed() == (len(data) - HEADER_BYTES if length >= HEADER_BYTES else None)
        buffer.feed(data[length:])
        assert buffer.next_body() == data[HEADER_BYTES:]


@pytest.mark.parametrize("length", [0, 1, 65, 2**16])
def test_frame_of_exactly_the_limit_is_taken(length):
    buffer = FrameBuffer(length)
    buffer.feed(framed(b"\xc0" * length))
    assert buffer.next_body() == b"\xc0" * length


@patiently
@given(limit=st.integers(0, 2**31), over=st.integers(1, 2**31 - 1))
def test_length_over_the_limit_is_refused_by_its_header_alone(limit, over):
    buffer = FrameBuffer(limit)
    buffer.feed((limit + over).to_bytes(HEADER_BYTES, "big"))
    for _ in range(2):  # and stays refused
        with pytest.raises(FrameError, match=str(limit)):
            buffer.needed()
        with pytest.raises(FrameError):
            buffer.next_body()
    assert len(buffer) == HEADER_BYTES


def test_claimed_length_costs_no_memory():
    tracemalloc.start()
    try:
        buffer = FrameBuffer(2**32 - 1)
        buffer.feed(b"\xff\xff\xff\xff" + b"x" * 100)
        assert buffer.needed() == 2**32 - 1
        assert buffer.next_body() is None
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000


def test_frames_before_a_bad_one_are_given_out():
    buffer = FrameBuffer(10)
    buffer.feed(framed(b"one") + framed(b"two") + framed(b"x" * 11))
    assert buffer.next_body() == b"one"
    assert buffer.next_body() == b"two"
    with pytest.raises(FrameError):
        buffer.next_body()


# --- any bytes -------------------------------------------------------------------------------

MESSAGES = (*typing.get_args(wire.ClientMessage), *typing.get_args(wire.ServerMessage))
FRAMES = [golden(entry) for entry in INDEX]


def read_all(data):
    """What a peer makes of *data*: messages up to the first error. Nothing else may happen."""
    buffer = FrameBuffer(LIMIT)
    buffer.feed(data)
    found = []
    try:
        while (body := buffer.next_body()) is not None:
            for decode in (decode_client, decode_server):
                try:
                    found.append(decode(body))
                except FrameError:
                    found.append(None)
            look_inside(found[-2])
    except FrameError:
        found.append(None)
    return found


def look_inside(message):
    for raw in (getattr(message, "operation", None), getattr(message, "statement", None)):
        if raw is not None:
            with contextlib.suppress(OperationError):
                assert isinstance(decode_operation(raw), ops.Operation)


@patiently
@given(data=st.binary(max_size=500))
@example(data=b"\x00\x00\x00\x00")
@example(data=b"\x00\x00\x00\x01\xc1")
@example(data=b"\xff" * 64)
def test_garbage_is_an_error_or_frames(data):
    read_all(data)


@patiently
@given(body=st.binary(max_size=200))
@example(body=b"")
@example(body=b"\xdd\xff\xff\xff\xff")  # a list that claims four billion members
@example(body=b"\xdf\xff\xff\xff\xff")
@example(body=b"\x81\xa1t\xdb\xff\xff\xff\xff")
@example(body=b"\x82\xa1t\xa5hello\xa8features\xdd\xff\xff\xff\xff")
def test_garbage_in_a_frame_is_an_error_or_a_message(body):
    for message in read_all(framed(body)):
        assert message is None or isinstance(message, MESSAGES)


@patiently
@given(
    data=st.sampled_from(FRAMES),
    changes=st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), max_size=6),
)
def test_damaged_frame_is_an_error_or_a_message(data, changes):
    damaged = bytearray(data)
    for place, byte in changes:
        damaged[place % len(damaged)] = byte
    read_all(bytes(damaged))


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=20)
    | st.binary(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
tags = st.sampled_from([kind.__struct_config__.tag for kind in MESSAGES]) | anything
op_tags = st.sampled_from([kind.__struct_config__.tag for kind in ops.OPERATIONS]) | anything
fields = st.sampled_from(sorted({name for k in MESSAGES for name in k.__struct_fields__}))
op_fields = st.sampled_from(sorted({n for k in ops.OPERATIONS for n in k.__struct_fields__}))
some_operation = st.builds(
    lambda tag, rest: {**rest, "op": tag}, op_tags, st.dictionaries(op_fields, anything, max_size=8)
)


@patiently
@given(tag=tags, rest=st.dictionaries(fields, anything | some_operation, max_size=8))
def test_any_map_is_an_error_or_a_message(tag, rest):
    for message in read_all(framed(pack({"t": tag, **rest}))):
        assert message is None or isinstance(message, MESSAGES)


@patiently
@given(operation=some_operation | anything)
def test_any_operation_is_an_error_or_an_operation(operation):
    request = decode_client(pack({"t": "request", "seq": 1, "operation": operation}))
    look_inside(request)


DEEP = 200_000


@pytest.mark.parametrize(
    "body",
    [
        b"\x91" * DEEP + b"\xc0",
        b"\x81\xa1t" * DEEP + b"\xc0",
        b"\x82\xa1t\xa3bye\xa1x" + b"\x91" * DEEP + b"\xc0",
        b"\x82\xa1t\xa3bye\xa1x" + b"\x81\xa1x" * DEEP + b"\xc0",
        b"\x83\xa1t\xa7request\xa3seq\x01\xa9operation" + b"\x91" * DEEP + b"\xc0",
        b"\x83\xa1t\xa4done\xa3ask\xff\xa6result" + b"\x91" * DEEP + b"\xc0",
        b"\x91" * DEEP,
    ],
    ids=["list", "map", "unknown-list", "unknown-map", "operation", "result", "cut-off"],
)
def test_deep_nesting_is_a_frame_error(body):
    for decode in (decode_client, decode_server):
        with pytest.raises(FrameError):
            decode(body)


def test_deep_nesting_in_an_operation_is_an_operation_error():
    for body in (
        b"\x91" * DEEP + b"\xc0",
        b"\x82\xa2op\xaetopics.migrate\xa1x" + b"\x91" * DEEP + b"\xc0",
        b"\x82\xa2op\xadsql.statement\xaaparameters" + b"\x91" * DEEP + b"\xc0",
    ):
        with pytest.raises(OperationError):
            decode_operation(body)


# --- old and new -----------------------------------------------------------------------------


AGENT_ROWS = ("sessions", "sandboxes", "channels", "instructions")


def with_unknown(value, extra):
    """*value* with an unknown field in each map, except in those with keys of a caller."""
    if isinstance(value, list):
        return [with_unknown(one, extra) for one in value]
    if isinstance(value, dict):
        keys = ("named", "named_rows", "settings", "bookmark", "expect", "put", "times")
        keys += ("key", "set", "add", "agent", *AGENT_ROWS)
        if str(value.get("op", "")).startswith("agents."):
            keys += ("rows",)
        inside = {k: v if k in keys else with_unknown(v, extra) for k, v in value.items()}
        return {"a-new-field": extra, **inside}
    return value


@pytest.mark.parametrize("extra", [None, b"\x00", [1, {"x": [[]]}]], ids=["nil", "bin", "nested"])
@pytest.mark.parametrize("entry", GOOD)
def test_unknown_fields_are_skipped_at_every_depth(entry, extra):
    known = unpack(body_of(golden(entry)))
    kept = {key: known[key] for key in ("result",) if key in known}  # copied, not looked into
    body = pack({**with_unknown(known, extra), **kept})
    message = decoder(entry)(body)
    plain = decoded(entry)
    if isinstance(message, wire.Request):
        assert decode_operation(message.operation) == decode_operation(plain.operation)
        message = msgspec.structs.replace(message, operation=plain.operation)
    if isinstance(message, wire.LeaseRun):
        assert decode_operation(message.statement) == decode_operation(plain.statement)
        message = msgspec.structs.replace(message, statement=plain.statement)
    if isinstance(message, wire.LeaseOpen) and message.first != wire.NIL:
        assert decode_operation(message.first) == decode_operation(plain.first)
        message = msgspec.structs.replace(message, first=plain.first)
    if isinstance(message, wire.LeaseCommit) and message.last != wire.NIL:
        assert decode_operation(message.last) == decode_operation(plain.last)
        message = msgspec.structs.replace(message, last=plain.last)
    assert generate.plain(message) == generate.plain(plain)


@pytest.mark.parametrize("tag", ["levitate", "", "Hello", "?"])
def test_unknown_tag_of_a_message_is_a_frame_error(tag):
    for decode in (decode_client, decode_server):
        with pytest.raises(FrameError):
            decode(pack({"t": tag, "seq": 1, "ask": -1}))


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_each_end_knows_only_what_the_other_one_says(kind):
    (body, *_) = [body_of(golden(e)) for e in INDEX if e.get("message") == kind.__name__]
    other = decode_server if kind in typing.get_args(wire.ClientMessage) else decode_client
    with pytest.raises(FrameError):
        other(body)


@pytest.mark.parametrize("tag", ["session.levitate", "", "?", 7, None])
def test_unknown_operation_is_an_operation_error(tag):
    request = decode_client(pack({"t": "request", "seq": 3, "operation": {"op": tag, "id": "s"}}))
    assert request.seq == 3
    with pytest.raises(OperationError):
        decode_operation(request.operation)


def test_order_of_keys_has_no_meaning():
    request = {"patience": 1, "operation": {"key": "k", "op": "meta.set"}, "seq": 3, "t": "request"}
    message = decode_client(pack(request))
    assert (message.seq, message.timeout) == (3, 1.0)
    assert decode_operation(message.operation) == ops.MetaSet(key="k")


def test_hello_travels_in_full_and_everything_else_without_defaults():
    assert set(unpack(frame(wire.Hello())[HEADER_BYTES:])) == {"t", *wire.Hello.__struct_fields__}
    assert unpack(frame(wire.Subscribe())[HEADER_BYTES:]) == {"t": "subscribe"}
    assert pack(wire.Limits()) == pack({})


def test_absent_result_is_nil():
    assert unpack(decode_server(pack({"t": "ok", "seq": 1, "commit_no": 1})).result) is None
    assert unpack(decode_server(pack({"t": "done", "ask": -1})).result) is None


@patiently
@given(
    seq=st.integers(1, 2**63 - 1),
    after=st.integers(0, 2**63 - 1),
    key=st.text(),
    value=st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(),
    timeout=st.none() | st.floats(0, 1e6),
)
def test_request_survives_the_wire(seq, after, key, value, timeout):
    operation = pack(ops.MetaSet(key=key, value=value))
    sent = wire.Request(seq=seq, operation=msgspec.Raw(operation), after=after, timeout=timeout)
    received = decode_client(body_of(frame(sent)))
    assert received == sent
    assert bytes(received.operation) == operation
    assert decode_operation(received.operation) == ops.MetaSet(key=key, value=value)
