"""Exceptions of signal handlers at every instruction of the blocking client.

After each of them ordinary calls work, other threads have noticed nothing, and what callers were
answered agrees with what was applied.
"""

import threading
from itertools import count
from pathlib import Path

import pytest
from support.interrupts import Interrupt, every_instruction
from support.scripted_actor import AnsweringActor

import hermes_actor.client
from hermes_actor import pipeline
from hermes_actor.client.actor_client import ActorClient
from hermes_actor.errors import HermesActorError
from hermes_actor.paths import resolve_paths
from hermes_protocol import operations as ops

CLIENT = Path(hermes_actor.client.__file__).parent
PIPELINE = Path(pipeline.__file__)

SECONDS = 30.0

# A socket that an exception has left without a name is closed when it is collected.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


@pytest.fixture
def paths(tmp_path):
    return resolve_paths(tmp_path / "state.db")


@pytest.fixture
def actor(paths):
    actor = AnsweringActor(paths)
    yield actor
    actor.close()


@pytest.fixture
def channel(paths, actor):
    channel = ActorClient(paths)
    yield channel
    channel.submit(change("last"), SECONDS)
    assert channel._connection.protocol.is_idle, "a number is open that no caller waits for"
    assert not channel._connection.exchange.frames
    channel.close()


def change(key, size=0):
    return ops.MetaSet(key=key, value="x" * size)


class Teller:
    """What callers were answered for each change, to be compared with what was applied."""

    def __init__(self, actor, channel):
        self._actor, self._channel = actor, channel
        self._keys = (f"key {n}" for n in count())
        self.told = {}

    def key(self):
        key = next(self._keys)
        self.told[key] = "unknown"
        return key

    def submit(self, size=0):
        key = self.key()
        try:
            self._channel.submit(change(key, size), SECONDS)
            self.told[key] = "yes"
        except HermesActorError as error:
            self.told[key] = error.executed
            raise

    def check(self):
        applied = self._actor.applied
        assert len(applied) == len(set(applied)), "applied twice"
        for key, told in self.told.items():
            assert told != "yes" or key in applied, key
            assert told != "no" or key not in applied, key


class Others:
    """Threads that call all the time."""

    def __init__(self, channel, number=2):
        self._over = threading.Event()
        self.errors = []
        self.calls = 0

        def work(name):
            for n in count():
                if self._over.is_set():
                    return
                try:
                    channel.submit(change(f"{name} {n}"), SECONDS)
                except BaseException as error:
                    self.errors.append(error)
                    return
                self.calls += 1

        self._threads = [threading.Thread(target=work, args=(f"t{n}",)) for n in range(number)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc):
        self._over.set()
        for thread in self._threads:
            thread.join(SECONDS)
            assert not thread.is_alive(), "a thread hangs"
        assert self.errors == []


def go_through(actor, channel, call, check=lambda: None, step=1):
    """Interrupt *call* everywhere; its last run is whole."""
    teller = Teller(actor, channel)
    places = 0
    for where, outcome in every_instruction(lambda: call(teller), CLIENT, PIPELINE, step=step):
        if isinstance(outcome, BaseException) and not isinstance(outcome, Interrupt):
            raise AssertionError(f"interrupted at {where}: {outcome!r}") from outcome
        teller.submit()
        check()
        places += 1
    teller.check()
    assert places > 100


def test_a_call(actor, channel):
    channel.connect(SECONDS)
    go_through(actor, channel, Teller.submit)


def test_a_call_beside_other_threads(actor, channel):
    with Others(channel) as others:
        go_through(actor, channel, Teller.submit)
    assert others.calls


def test_a_call_that_connects(actor, channel):
    def call(teller):
        with channel._connection.lock:
            channel._connection._disconnect()
        teller.submit()

    go_through(actor, channel, call)


def test_a_call_whose_answer_is_lost(actor, channel):
    def call(teller):
        actor.cut = 1
        teller.submit()

    def uncut():
        actor.cut = 0

    go_through(actor, channel, call, uncut)


def test_a_call_that_connects_beside_other_threads(actor, channel):
    def call(teller):
        actor.cut = 3
        teller.submit()

    with Others(channel):
        go_through(actor, channel, call)


def test_a_call_in_parts(actor, channel):
    channel.connect(SECONDS)
    go_through(actor, channel, lambda teller: teller.submit(1_200_000), step=29)


def test_several_at_once(actor, channel):
    channel.connect(SECONDS)

    def call(teller):
        keys = [teller.key() for _ in range(3)]
        answers = channel.send([change(key) for key in keys], SECONDS)
        for key, answer in zip(keys, answers, strict=True):
            answer.result()
            teller.told[key] = "yes"

    go_through(actor, channel, call)


def test_an_ask(actor, channel):
    channel.connect(SECONDS)
    go_through(actor, channel, lambda _teller: channel.statistics())
