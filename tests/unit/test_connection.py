"""One connection between the event loop and a writer that is played by the test."""

import socket

import msgspec
import trio
import trio.testing

import hermes_protocol.messages as wire
from hermes_actor.actor.byte_limiter import ByteLimiter
from hermes_actor.actor.connection import Connection
from hermes_actor.actor.gate import Gate
from hermes_actor.actor.interfaces import Resources
from hermes_actor.actor.mailbox import Mailbox
from hermes_actor.actor.metrics import Metrics
from hermes_actor.actor.outbox import Backlog, Unflushed
from hermes_actor.errors import DeadlineExceeded
from hermes_protocol import operations as ops
from hermes_protocol.framing import frame

OPERATION = msgspec.Raw(msgspec.msgpack.encode(ops.MetaSet(key="a", value="b")))

HELLO = frame(
    wire.Hello(
        magic=wire.MAGIC, oldest=1, newest=1, client_id=b"c" * 16, name="n", pid=1, build="0"
    )
)
STATUS = frame(wire.StatusRequest(ask=-1))


def request(seq):
    return frame(wire.Request(seq=seq, operation=OPERATION))


class Actor:
    """What a connection needs of its actor. What other threads have for the event loop waits in
    *posted*; the mailbox is looked into, and the writer moved, by the test."""

    def __init__(self):
        self.posted = []
        self.mailbox = Mailbox()
        self.limiter = ByteLimiter(1 << 20, self.posted.append)
        resources = Resources(
            run_in_loop=self.posted.append,
            mailbox=self.mailbox,
            limiter=self.limiter,
            gate=Gate(),
            backlog=Backlog(),
            unflushed=Unflushed(),
            metrics=Metrics(),
            drain_seconds=0.0,
        )
        ours, self.client = socket.socketpair()
        ours.setblocking(False)
        self.mailbox.take(0)  # the writer is there
        self.connection = Connection(ours, resources, controls=self, lifecycle=self)

    async def welcome(self, *_):
        return True

    def remove(self, _connection):
        pass

    def status_json(self):
        return "{}"

    @property
    def admitted(self):
        return self.connection.requests.admitted

    @property
    def queued(self):
        return self.mailbox.statistics().jobs

    async def hear(self):
        """The event loop reads all that it may read."""
        self.mailbox.selector.wait(0)  # the writer is not away, however slow this machine is
        await trio.testing.wait_all_tasks_blocked(0.01)

    def writer_reads(self):
        ready = self.mailbox.selector.wait(0)
        if ready:
            self.mailbox._add_what_was_read(ready)

    def hear_threads(self):
        """The event loop hears what other threads have for it; none has run yet."""
        for function in self.posted:
            function()
        self.posted.clear()

    def close(self):
        self.client.close()
        self.mailbox.selector.close()


def with_actor(test):
    async def main():
        actor = Actor()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(actor.connection.run)
                await test(actor)
                nursery.cancel_scope.cancel()
        finally:
            actor.close()

    return lambda: trio.run(main)


@with_actor
async def test_connection_that_writes_is_read_by_the_writer(actor):
    actor.client.send(HELLO + request(1))
    await actor.hear()
    actor.client.send(request(2))
    await actor.hear()
    assert actor.admitted == 1
    actor.writer_reads()
    assert actor.admitted == 2


@with_actor
async def test_nothing_is_admitted_after_a_newer_connection_has_come(actor):
    """What came before was dropped: what comes after it would take its place in the order."""
    actor.client.send(HELLO + request(1))
    await actor.hear()
    actor.client.send(request(2) + STATUS + request(3))
    actor.writer_reads()
    assert actor.queued == 2
    actor.hear_threads()
    await actor.connection.supersede()
    await actor.hear()
    assert (actor.queued, actor.admitted) == (0, 2)


@with_actor
async def test_nothing_is_admitted_after_the_client_was_sent_away(actor):
    actor.client.send(HELLO + request(1))
    await actor.hear()
    actor.client.send(STATUS + request(2))
    actor.writer_reads()
    actor.hear_threads()
    actor.connection.go_away("the end")
    await actor.hear()
    assert (actor.queued, actor.admitted) == (1, 1)


@with_actor
async def test_holder_of_a_lease_is_read_by_the_writer(actor):
    """Its steps and what it sends behind them; while the writer waits for a step it reads."""
    actor.client.send(HELLO + frame(wire.LeaseOpen(ask=-1, lease=1)))
    await actor.hear()
    (lease,) = actor.mailbox.take(0)
    statement = msgspec.Raw(msgspec.msgpack.encode(ops.SqlStatement(sql="SELECT 1")))
    actor.client.send(frame(wire.LeaseRun(ask=-2, lease=1, statement=statement)) + request(2))
    await actor.hear()
    assert (lease.steps.empty(), actor.admitted) == (True, 0)
    step = actor.mailbox.take_step(lease.steps, 60.0)
    assert step.statement == statement
    assert actor.admitted == 1


@with_actor
async def test_connection_whose_lease_expired_is_read_by_the_writer(actor):
    actor.client.send(HELLO + frame(wire.LeaseOpen(ask=-1, lease=1, timeout=0.0)) + request(1))
    await actor.hear()
    for job in actor.mailbox.take_expired(float("inf")):
        job.give_up(DeadlineExceeded("late"))
    actor.client.send(request(2))
    await actor.hear()
    assert actor.admitted == 1
    actor.writer_reads()
    assert actor.admitted == 2


@with_actor
async def test_everything_but_a_request_keeps_its_credit_until_it_is_answered(actor):
    """However long the path of a piece of maintenance, or the statement of a lease, is."""
    long = "x" * 20_000
    statement = msgspec.Raw(msgspec.msgpack.encode(ops.SqlStatement(sql=long)))
    actor.client.send(
        HELLO
        + frame(wire.LeaseOpen(ask=-1, lease=1))
        + frame(wire.LeaseRun(ask=-2, lease=1, statement=statement))
        + frame(wire.Maintain(ask=-3, task="restore", path=long))
    )
    await actor.hear()
    assert actor.limiter.used > 3 * 2 * len(long)
    for job in actor.mailbox.take(0):
        job.give_up(DeadlineExceeded("late"))
    assert actor.limiter.used == 0
