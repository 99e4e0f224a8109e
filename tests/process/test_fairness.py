"""A bulk importer with a full window does not starve a client that writes a line now and then.

Nothing here measures time. The order of all changes (``commit_no``) tells who waited for whom.
"""

import json
import selectors
from contextlib import ExitStack, closing, suppress
from itertools import count, pairwise

import pytest
from support.actors import wait_for
from support.files import write_lock
from support.wire import Wire, append, frame, request

from hermes_actor import SessionDB

BATCH = 64
WINDOW = 64
LONE_WRITES = 25


@pytest.fixture
def db(path):
    with closing(SessionDB(path, mode="actor")) as db:
        db.create_session("lone", "cli")
        db.create_session("bulk", "cli")
        yield db


class Importer:
    """Keeps its window full, as far as it may, without ever blocking."""

    def __init__(self, wire, size):
        self.wire, self.acknowledged = wire, 0
        self._operation = append("bulk", "x" * size)
        self._numbers = count(1)
        self._sent = 0
        self._rest = b""
        wire.sock.setblocking(False)

    def listen(self):
        with suppress(BlockingIOError):
            self.wire.feed(self.wire.sock.recv(1 << 16))
        while (answer := self.wire.take()) is not None:
            assert answer["t"] == "ok", answer
            self.acknowledged += 1

    def talk(self):
        while self._rest or self._sent - self.acknowledged < WINDOW:
            if not self._rest:
                self._rest = frame(request(next(self._numbers), self._operation))
                self._sent += 1
            try:
                self._rest = self._rest[self.wire.sock.send(self._rest) :]
            except BlockingIOError:
                return


@pytest.mark.parametrize(
    ("importers", "size", "bound"),
    [(1, 100_000, 2 * BATCH), (4, 1_000, 4 * WINDOW + 2 * BATCH)],
    ids=["one with large rows", "four at once"],
)
def test_lone_writer_is_not_starved(path, db, importers, size, bound):
    """One thread drives all, so no importer is ever further ahead than its window."""
    with ExitStack() as stack:
        lone = stack.enter_context(closing(Wire(path)))
        lone.sock.setblocking(False)
        selector = stack.enter_context(selectors.DefaultSelector())
        selector.register(lone.sock, selectors.EVENT_READ)
        bulk = []
        for _ in range(importers):
            bulk.append(Importer(stack.enter_context(closing(Wire(path))), size))
            selector.register(bulk[-1].wire.sock, selectors.EVENT_READ | selectors.EVENT_WRITE)
            bulk[-1].talk()
        lone.send(request(1, append("lone", "1")))
        numbers = []
        while len(numbers) < LONE_WRITES:
            selector.select()
            for importer in bulk:
                importer.listen()
            # Whatever the importers have just heard of came no earlier than this.
            with suppress(BlockingIOError):
                lone.feed(lone.sock.recv(1 << 16))
            if (answer := lone.take()) is not None:
                assert answer["t"] == "ok", answer
                numbers.append(answer["commit_no"])
                lone.send(request(len(numbers) + 1, append("lone", "next")))
            for importer in bulk:
                importer.talk()
            # A client that is starved does not get so far.
            assert sum(importer.acknowledged for importer in bulk) < LONE_WRITES * bound
        between = [later - earlier - 1 for earlier, later in pairwise(numbers)]
        assert max(between) <= bound
        # The importers have really been at work all the time.
        assert sum(importer.acknowledged for importer in bulk) > LONE_WRITES


@pytest.mark.parametrize("importers", [1, 8])
def test_lone_line_overtakes_those_who_have_many(path, db, importers):
    """Every client has a lane. The one that comes last, behind full lanes, is in the next batch."""
    with ExitStack() as stack:
        bulk = [stack.enter_context(closing(Wire(path))) for _ in range(importers)]
        lone = stack.enter_context(closing(Wire(path)))
        with write_lock(path):
            # While a program outside has the lock, all of them queue.
            for wire in bulk:
                wire.send(*[request(n, append("bulk", "x")) for n in range(1, WINDOW + 1)])
            wait_for(lambda: admitted(db) == importers * WINDOW)
            begun = importers * WINDOW - db._port.statistics()["queue"]["count"]
            lone.send(request(1, append("lone", "last")))
            wait_for(lambda: admitted(db) == importers * WINDOW + 1)
        # Two sessions were first; then those whose batch had begun; then one of each in turn.
        place = lone.answer(1)["commit_no"] - 2
        assert begun <= BATCH
        assert place <= begun + importers + 1
        for wire in bulk:
            assert [wire.receive()["t"] for _ in range(WINDOW)] == ["ok"] * WINDOW


def admitted(db):
    """How many requests by hand the actor has read."""
    found = db._port.statistics()["connections"]
    return sum(c["requests"] for c in found if c["name"] == "by hand")


def test_burst_of_questions_does_not_hold_up_a_writer(path, db):
    """What another client writes meanwhile is done before the last of them is answered."""
    burst = 1500
    with closing(Wire(path)) as curious, closing(Wire(path)) as writer:
        curious.send(frame({"t": "status", "ask": -1}) * burst)
        first = json.loads(curious.receive()["status"])
        writer.send(request(1, append("lone", "meanwhile")))
        for _ in range(burst - 1):
            last = json.loads(curious.receive()["status"])
        assert writer.answer(1)["commit_no"] == first["commit_no"] + 1
        assert last["commit_no"] == first["commit_no"] + 1
