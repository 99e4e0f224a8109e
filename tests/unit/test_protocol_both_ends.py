"""The client's end and the actor's end of the protocol, against each other, without sockets.

Bytes travel in pieces of any size and are lost with the connection; the writer is the real one.
"""

import tempfile
import types
from collections import deque
from pathlib import Path

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import hermes_protocol.messages as wire
from hermes_actor import errors
from hermes_actor.actor import replies
from hermes_actor.actor.mailbox import Mailbox
from hermes_actor.actor.metrics import Metrics
from hermes_actor.actor.replies import done, reject, welcome
from hermes_actor.actor.requests import RequestTracker
from hermes_actor.client.protocol import client_protocol, encode
from hermes_actor.engine.ownership import OwnerLock
from hermes_actor.engine.writer import Writer
from hermes_actor.paths import resolve_paths
from hermes_protocol import operations as ops
from hermes_protocol.framing import FrameError, decode_server, frame
from hermes_protocol.server import ServerProtocol, State

# --- an actor without input and output ---------------------------------------------------------


class Actor:
    """Mailbox and writer of one file, worked by hand."""

    def __init__(self, path):
        self.paths = resolve_paths(path)
        self.paths.db.parent.mkdir(parents=True, exist_ok=True)
        self.start()

    def start(self):
        self.lock = OwnerLock.acquire(self.paths)
        self.mailbox = Mailbox()
        self.writer = Writer(self.paths)
        self.writer.recover()

    def stop(self):
        self.writer.close()
        self.mailbox.selector.close()
        self.lock.release()

    def work(self):
        """Run what waits, like the writer's thread does."""
        jobs = [job for job in self.mailbox.take(0) if job.take()]
        while jobs:
            outcomes = self.writer.run_batch([job.request for job in jobs])
            for job, outcome in zip(jobs, outcomes, strict=False):
                job.on_done(outcome)
            jobs = jobs[len(outcomes) :]


class ActorEnd:
    """One connection of it."""

    def __init__(self, actor):
        self.actor = actor
        self.out = bytearray()
        self.protocol = ServerProtocol()
        self.requests = RequestTracker(
            actor.mailbox, Metrics(), types.SimpleNamespace(add=self.out.extend), deque()
        )

    def receive(self, data):
        self.protocol.feed(data)
        while (message := self.protocol.next_message()) is not None:
            if isinstance(message, wire.Hello):
                self.requests.client_id = message.client_id
                writer = self.actor.writer
                self.out += welcome(
                    "serving",
                    epoch=writer.epoch,
                    file_id=writer.connection.file_id,
                    commit_no=writer.commit_no,
                    ready=True,
                )
            elif isinstance(message, wire.Request):
                job = self.requests.admit(message, lambda: None)
                self.actor.mailbox.put(self.requests.client_id, job)
            elif isinstance(message, wire.StatusRequest):
                self.out += frame(wire.StatusReply(ask=message.ask, status="{}"))

    def drop(self):
        """A newer connection of the client has come."""
        for job in self.actor.mailbox.drop(self.requests.client_id):
            job.give_up(errors.Closed("superseded"))


SHARES = st.sampled_from([1.0, 1.0, 1.0, 0.97, 0.5, 0.1])
"""How much of what is on the way arrives."""


class BothEnds(RuleBasedStateMachine):
    """One client that writes numbered rows, over connections that break at any byte."""

    @initialize()
    def begin(self):
        self.folder = tempfile.TemporaryDirectory(prefix="hermes-actor-ends-")
        self.actor = Actor(Path(self.folder.name) / "state.db")
        self.client = client_protocol("model")
        self.sent, self.to_actor = 0, bytearray()
        self.replies = []
        self.end = None
        self.connect()

    @rule()
    def connect(self):
        """Connect, or connect again: what was on the way is lost."""
        if self.end is not None:
            self.end.drop()
        self.end = ActorEnd(self.actor)
        self.end.receive(self.client.hello())
        self.client.receive(bytes(self.end.out))
        self.end.out.clear()
        assert self.client.welcome is not None
        self.to_actor = bytearray(self.client.resend())

    @precondition(lambda self: self.client.has_room)
    @rule()
    def write(self):
        operation = ops.MetaSet(key="order", value=str(self.sent))
        if self.sent % 3 == 0:
            operation = ops.SessionCreate(id=f"s{self.sent}", source="cli", started_at=1.0)
        reply, data = self.client.request(encode(operation), 30.0)
        self.replies.append((self.sent, reply))
        self.sent += 1
        self.to_actor += data

    @rule(share=SHARES)
    def travel_there(self, share):
        count = round(share * len(self.to_actor))
        self.end.receive(bytes(self.to_actor[:count]))
        del self.to_actor[:count]

    @rule()
    def work(self):
        self.actor.work()

    @rule(share=SHARES)
    def travel_back(self, share):
        count = round(share * len(self.end.out))
        self.client.receive(bytes(self.end.out[:count]))
        del self.end.out[:count]

    @rule()
    def another_owner(self):
        """The actor ends, and another one opens the file."""
        self.actor.stop()
        self.actor.start()
        self.end = None
        self.connect()

    @invariant()
    def answers_come_once_and_in_order(self):
        if not hasattr(self, "client"):
            return
        numbers = [reply.commit_no for _, reply in self.replies if reply.done]
        assert all(reply.error is None for _, reply in self.replies)
        assert numbers == sorted(set(numbers))

    def teardown(self):
        if not hasattr(self, "client"):
            return
        self.connect()
        while any(not reply.done for _, reply in self.replies):
            self.travel_there(1)
            self.actor.work()
            self.travel_back(1)
        applied = self.actor.writer.commit_no
        assert applied == self.sent == len({reply.commit_no for _, reply in self.replies})
        self.actor.stop()
        self.folder.cleanup()


BothEnds.TestCase.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)
TestBothEnds = BothEnds.TestCase


# --- the actor's half alone ----------------------------------------------------------------------

HELLO = wire.Hello(client_id=b"c" * 16)
REQUEST = wire.Request(seq=1, operation=msgspec.Raw(msgspec.msgpack.encode({"op": "x"})))


def server(*messages):
    one = ServerProtocol()
    for message in messages:
        one.feed(frame(message))
        assert one.next_message() == message
    return one


def refuses(one, message):
    one.feed(frame(message))
    with pytest.raises(FrameError):
        one.next_message()


def test_nothing_comes_before_hello():
    refuses(ServerProtocol(), REQUEST)
    refuses(ServerProtocol(), wire.Bye())
    refuses(ServerProtocol(), wire.Hello(client_id=b"c" * 16, magic="other"))
    refuses(ServerProtocol(), wire.Hello(client_id=b"short"))


def test_hello_comes_once():
    refuses(server(HELLO), HELLO)


def test_nothing_comes_after_bye():
    one = server(HELLO, wire.Bye())
    assert one.state is State.CLOSED
    refuses(one, REQUEST)


def test_follower_only_asks():
    one = server(HELLO, wire.Subscribe(after=1), wire.StatusRequest(ask=-1))
    assert one.state is State.SUBSCRIBED
    refuses(one, REQUEST)
    server(HELLO, wire.Subscribe(), wire.Bye())


def test_length_is_known_before_the_body():
    one = server(HELLO)
    data = frame(REQUEST)
    one.feed(data[:4])
    assert one.needed() == len(data) - 4
    assert one.next_message() is None
    one.feed(data[4:])
    assert one.next_message() == REQUEST


def test_length_over_the_limit_is_refused_before_the_body():
    one = ServerProtocol(frame_max_bytes=100)
    one.feed((101).to_bytes(4, "big"))
    with pytest.raises(FrameError):
        one.needed()


# --- the frames that open ------------------------------------------------------------------------


def test_client_waits_while_the_file_is_opened():
    client = client_protocol("test")
    client.hello()
    client.receive(welcome("migrating 40%", ready=False))
    assert client.welcome is None
    assert client.phase == "migrating 40%"
    client.receive(welcome("serving", epoch=3, commit_no=7, ready=True))
    assert client.welcome.epoch == 3


def test_status_is_answered_while_the_file_is_opened():
    client = client_protocol("test")
    client.hello()
    reply, _ = client.ask(lambda ask: wire.StatusRequest(ask=ask))
    client.receive(welcome("opening", ready=False))
    client.receive(frame(wire.StatusReply(ask=reply.number, status="{}")))
    assert reply.done
    assert client.welcome is None


def test_file_that_cannot_be_opened_is_a_typed_error():
    client = client_protocol("test")
    client.hello()
    told = errors.NotADatabase("file is not a database: x", sqlite_message="file is not a database")
    with pytest.raises(errors.NotADatabase) as caught:
        client.receive(reject(told))
    assert caught.value.sqlite_message == "file is not a database"


def test_done_carries_a_result():
    client = client_protocol("test")
    reply, _ = client.ask(lambda ask: wire.CatchUp(ask=ask, through=1))
    client.receive(done(reply.number, 7))
    assert msgspec.msgpack.decode(reply.result) == 7


def test_answer_that_cannot_be_framed_says_that_it_was_executed(monkeypatch):
    """One of 4 GiB, or a value without an encoding; the writer must not die of it (G16)."""
    really = replies.frame

    def frame(message):
        if isinstance(message, wire.Ok):
            raise OverflowError("int too big to convert")
        return really(message)

    monkeypatch.setattr(replies, "frame", frame)
    too_large = decode_server(replies.ok(7, 3, None)[4:])
    assert (too_large.seq, too_large.executed) == (7, "yes")
    no_encoding = decode_server(replies.done(-7, object())[4:])
    assert (no_encoding.seq, no_encoding.executed) == (-7, "yes")


def test_text_that_utf_8_cannot_carry_is_escaped():
    """Errors quote paths, and a path is bytes."""
    error = errors.Busy("locked: /home/\udcff", sqlite_message="locked \udcff")
    told = decode_server(replies.failed(1, error)[4:])
    assert told.message == r"locked: /home/\udcff"
    assert told.words == r"locked \udcff"
    assert r"\udcff" in decode_server(replies.reject(error)[4:]).message
    assert r"\udcff" in decode_server(replies.welcome("\udcff", ready=False)[4:]).phase
