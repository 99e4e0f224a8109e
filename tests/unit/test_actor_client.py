"""The blocking client against an actor that stops reading, answering or serving.

Every call ends by its deadline, and what it tells is true: a change of which a byte has left is
never called "not executed", and one that was given up is not sent later.
"""

import contextlib
import os
import socket
import threading

import pytest
from support.actors import wait_for
from support.scripted_actor import PID, AnsweringActor

from hermes_actor.client import actor_client, connect
from hermes_actor.client.actor_client import ActorClient
from hermes_actor.client.control import ask_status
from hermes_actor.client.exchange import actor_timeout
from hermes_actor.errors import Closed, DeadlineExceeded, OutcomeUnknown, SpawnFailed
from hermes_actor.paths import resolve_paths
from hermes_actor.session_db import SessionDB
from hermes_protocol import messages as wire
from hermes_protocol import operations as ops
from hermes_protocol.framing import decode_operation

SECONDS = 30.0
SHORT = 0.3

LARGE = 900_000
"""One frame, and more than a socket holds."""


@pytest.fixture
def paths(tmp_path):
    return resolve_paths(tmp_path / "state.db")


@pytest.fixture
def actor(paths):
    actor = AnsweringActor(paths)
    yield actor
    actor.close()


@pytest.fixture
def channel(paths):
    channel = ActorClient(paths)
    yield channel
    channel.close()


@pytest.fixture
def no_start(monkeypatch):
    """No actor can be started."""

    def fail(*_arguments, **_options):
        raise SpawnFailed("it cannot come up")

    monkeypatch.setattr(connect, "start_actor", fail)


def change(key, size=0):
    return ops.MetaSet(key=key, value="x" * size)


class Call:
    """One call in a thread of its own."""

    def __init__(self, channel, key, size=0, timeout=SHORT):
        self.error = None
        self._thread = threading.Thread(
            target=self._run, args=(channel, change(key, size), timeout), daemon=True
        )
        self._thread.start()

    def _run(self, channel, operation, timeout):
        try:
            channel.submit(operation, timeout)
        except Exception as error:
            self.error = error

    def join(self):
        self._thread.join(SECONDS)
        assert not self._thread.is_alive(), "the call does not return"
        return self.error


@contextlib.contextmanager
def not_reading(actor):
    actor.reads.clear()
    try:
        yield
    finally:
        actor.reads.set()


def requests(actor):
    return [decode_operation(m.operation) for m in actor.heard if isinstance(m, wire.Request)]


def keys(actor):
    return [operation.key for operation in requests(actor)]


def is_taken(turn):
    taken = not turn.take(0)
    turn.leave()
    return taken


# --- what is true ----------------------------------------------------------------------------


def test_of_several_each_learns_what_is_true_of_it(paths, no_start):
    """The connection is lost while the third waits for room, and cannot be replaced."""
    actor = AnsweringActor(paths, window=3)
    channel = ActorClient(paths)
    channel.connect(SECONDS)
    actor.answers.clear()
    answers = []
    sender = threading.Thread(
        target=lambda: answers.extend(channel.send([change(k) for k in "abcd"], SECONDS))
    )
    sender.start()
    wait_for(lambda: keys(actor) == ["a", "b"])
    actor.close()
    sender.join(SECONDS)
    assert not sender.is_alive()
    outcomes = []
    for answer in answers:
        with pytest.raises(Exception) as caught:  # noqa: PT011 - its kind is looked at below
            answer.result()
        outcomes.append((type(caught.value), caught.value.executed))
    assert outcomes == [(OutcomeUnknown, "unknown")] * 2 + [(SpawnFailed, "no")] * 2

    successor = AnsweringActor(paths)
    channel.submit(change("after"), SECONDS)
    assert keys(successor) == ["after"]  # what was given up is not sent later
    channel.close()
    successor.close()


def test_of_several_all_not_sent_is_one_error(paths, no_start):
    channel = ActorClient(paths)
    with pytest.raises(SpawnFailed) as caught:
        channel.send([change("a"), change("b")], SECONDS)
    assert caught.value.executed == "no"


def test_window_that_stays_full(paths):
    actor = AnsweringActor(paths, window=2)
    channel = ActorClient(paths)
    channel.connect(SECONDS)
    actor.answers.clear()
    first, *others = channel.send([change("a"), change("b"), change("c")], SHORT)
    for other in others:
        with pytest.raises(DeadlineExceeded) as caught:
            other.result()
        assert caught.value.executed == "no"
    with pytest.raises(OutcomeUnknown):
        first.result()
    actor.answers.set()
    channel.submit(change("after"), SECONDS)
    assert keys(actor) == ["a", "after"]
    channel.close()
    actor.close()


def test_interrupted_pipeline_says_that_the_outcome_is_unknown(tmp_path, monkeypatch):
    db = SessionDB(tmp_path / "state.db", mode="embedded")

    def interrupted(*_arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(db._port, "send", interrupted)
        pipeline = db.pipeline()
        answer = pipeline.set_meta("a", "b")
        with pytest.raises(KeyboardInterrupt):
            pipeline.flush()
    assert answer.done()
    with pytest.raises(OutcomeUnknown):
        answer.result()
    pipeline.flush()
    assert db.get_meta("a") is None
    db.close()


# --- an actor that does not read -------------------------------------------------------------


def test_half_a_frame_ends_the_connection_and_is_never_finished(actor, channel):
    channel.connect(SECONDS)
    with not_reading(actor):
        large = Call(channel, "large", LARGE)
        wait_for(lambda: channel._connection.exchange.frames)
        behind = Call(channel, "behind")
        assert isinstance(large.join(), OutcomeUnknown)  # some bytes have left
        error = behind.join()
        assert isinstance(error, DeadlineExceeded)
        assert error.executed == "no"
    channel.submit(change("after"), SECONDS)
    assert actor.applied == ["after"]


def test_what_never_left_is_not_sent_later(actor, channel):
    channel.connect(SECONDS)
    with not_reading(actor):
        large = Call(channel, "large", LARGE, timeout=SECONDS)
        wait_for(lambda: channel._connection.exchange.frames)
        error = Call(channel, "behind").join()
        assert isinstance(error, DeadlineExceeded)
        assert error.executed == "no"
    assert large.join() is None
    assert actor.applied == ["large"]


def test_change_in_parts_whose_last_part_never_left_was_not_made(actor, channel):
    channel.connect(SECONDS)
    with not_reading(actor):
        error = Call(channel, "parts", 5_000_000).join()
        assert isinstance(error, DeadlineExceeded)
        assert error.executed == "no"
    channel.submit(change("after"), SECONDS)
    assert actor.applied == ["after"]


def test_several_that_the_kernel_does_not_take(actor, channel):
    channel.connect(SECONDS)
    with not_reading(actor):
        answers = channel.send([change(f"k{n}", LARGE) for n in range(3)], SHORT)
        executed = []
        for answer in answers:
            with pytest.raises((DeadlineExceeded, OutcomeUnknown)) as caught:
                answer.result()
            executed.append(caught.value.executed)
    assert executed == ["unknown", "no", "no"]
    channel.submit(change("after"), SECONDS)
    assert actor.applied == ["after"]


def test_calls_of_other_threads_go_on_when_one_waits_for_the_kernel(actor, channel):
    channel.connect(SECONDS)
    with not_reading(actor):
        calls = [Call(channel, f"k{n}", LARGE, timeout=SECONDS) for n in range(4)]
        wait_for(lambda: channel._connection.protocol.in_flight == 4)
    assert [call.join() for call in calls] == [None] * 4
    assert sorted(actor.applied) == [f"k{n}" for n in range(4)]


# --- an actor that does not answer -----------------------------------------------------------


def test_silent_actor_is_named(actor, channel, paths):
    channel.connect(SECONDS)
    actor.answers.clear()
    with pytest.raises(OutcomeUnknown) as caught:
        channel.submit(change("a"), SHORT)
    text = str(caught.value)
    for part in (str(paths.db), f"pid {PID}", " s: ", "hermes-actor doctor", "stop --force"):
        assert part in text
    actor.answers.set()
    channel.submit(change("b"), SECONDS)
    assert actor.applied == ["a", "b"]  # in order, each once


def test_actor_is_given_less_than_the_whole_time(actor, channel):
    """So its refusal arrives in time, and the call need not wait longer than its timeout."""
    channel.submit(change("a"), 4.0)
    (request,) = [m for m in actor.heard if isinstance(m, wire.Request)]
    assert request.timeout <= 3.0
    assert actor_timeout(30.0) == 29.0
    assert actor_timeout(0.4) == pytest.approx(0.3)
    assert actor_timeout(-1.0) == 0.0


def test_ask_that_is_not_answered_changes_nothing(actor, channel):
    channel.connect(SECONDS)
    actor.answers.clear()
    with pytest.raises(DeadlineExceeded) as caught:
        channel.catch_up(1, SHORT)
    assert caught.value.executed == "no"


def test_full_backlog(paths):
    actor = AnsweringActor(paths, backlog=0)
    waiting = []
    with not_reading(actor):
        with contextlib.suppress(BlockingIOError):
            while True:
                waiting.append(connect.connect_once(paths))
        channel = ActorClient(paths)
        with pytest.raises(DeadlineExceeded) as caught:
            channel.connect(SHORT)
        assert caught.value.executed == "no"
        with pytest.raises(DeadlineExceeded):
            ask_status(paths, SHORT)
    channel.submit(change("a"), SECONDS)
    channel.close()
    for sock in waiting:
        sock.close()
    actor.close()


def test_thread_that_connects_holds_up_no_other(paths):
    """Each call ends by its own deadline, also while another thread waits for Welcome."""
    actor = AnsweringActor(paths)
    channel = ActorClient(paths)
    with not_reading(actor):
        patient = Call(channel, "patient", timeout=SECONDS)
        wait_for(lambda: is_taken(channel._connection._connecting))
        error = Call(channel, "hasty").join()
        assert isinstance(error, DeadlineExceeded)
        assert error.executed == "no"
        channel.close()  # waits for no other thread
    assert patient.join() is None
    assert actor.applied == ["patient"]
    actor.close()


# --- the end ---------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [0, 1])
def test_closing_leaves_calls_that_are_under_way(actor, channel, cut):
    channel.connect(SECONDS)
    with not_reading(actor):
        actor.cut = cut
        call = Call(channel, "a", timeout=SECONDS)
        wait_for(lambda: channel._connection.protocol.in_flight)
        channel.close()
        with pytest.raises(Closed):
            channel.submit(change("b"), SECONDS)
    assert call.join() is None
    assert actor.applied == ["a"]
    assert channel._connection.exchange.sock is None
    wait_for(lambda: isinstance(actor.heard[-1], wire.Bye))


def test_fork_handler_knows_channels_that_end_later(actor, paths):
    channel = actor_client.acquire(paths, SECONDS)
    with not_reading(actor):
        call = Call(channel, "a", timeout=SECONDS)
        wait_for(lambda: channel._connection.protocol.in_flight)
        channel.release()
        child = os.fork()
        if not child:
            os._exit(int(channel._connection.exchange.sock is not None))
        assert os.waitpid(child, 0)[1] == 0
    assert call.join() is None


def test_lost_connection_is_noticed_by_threads_that_wait_for_it(actor, channel):
    channel.connect(SECONDS)
    with not_reading(actor):
        calls = [Call(channel, f"k{n}", timeout=SECONDS) for n in range(4)]
        wait_for(lambda: channel._connection.protocol.in_flight == 4)
        channel._connection.exchange.sock.shutdown(socket.SHUT_RDWR)
    assert [call.join() for call in calls] == [None] * 4
    assert sorted(actor.applied) == [f"k{n}" for n in range(4)]
