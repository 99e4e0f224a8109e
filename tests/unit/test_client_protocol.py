"""The client's end of the protocol, against a small actor made of the real frames."""

import hashlib
import itertools
import sqlite3

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from hermes_actor import errors, limits
from hermes_actor.client.protocol import client_protocol, encode, error_from, stages
from hermes_actor.engine.kinds import SESSIONS
from hermes_actor.engine.meta_table import create_meta_tables, get_internal
from hermes_actor.engine.receipts import Receipts, Ticket
from hermes_protocol import messages as wire
from hermes_protocol import operations as ops
from hermes_protocol.framing import (
    FrameBuffer,
    FrameError,
    decode_client,
    decode_operation,
    frame,
)

pack = msgspec.msgpack.encode
unpack = msgspec.msgpack.decode

MANY = 2 * limits.RECEIPTS_SWEEP_EVERY_COMMITS
"""Changes after which the next sweep is due for certain."""


# --- the other end ---------------------------------------------------------------------------


class PlainLedger:
    """Receipts by the rules of ``protocol/README.md``, § 6. A restart forgets all but them."""

    def __init__(self):
        self.receipts = {}
        self.swept = 0
        self.restart()

    def restart(self):
        self.highest, self.swept_at, self.pruned, self.refusals = {}, {}, {}, {}

    def find(self, ticket):
        """The answer that a request has had; ``None`` if it is to be applied."""
        client, seq = ticket.client, ticket.seq
        if client not in self.highest:
            known = [s for c, s in self.receipts if c == client]
            self.highest[client], self.swept_at[client] = max(known, default=0), self.swept
        if seq > self.highest[client]:
            never = self.highest[client] or ticket.after >= self.swept_at[client]
            return None if never else unknown(seq)
        if (client, seq) in self.receipts:
            commit_no, digest, result = self.receipts[client, seq]
            if digest != ticket.digest:
                return wire.Failed(seq=seq, code="key-reused", message="another one")
            return wire.Ok(seq=seq, commit_no=commit_no, result=msgspec.Raw(result))
        if (client, seq) in self.refusals:
            return self.refusals[client, seq]
        if seq > self.pruned.get(client, 0) and ticket.after >= self.swept:
            return wire.Failed(seq=seq, code="request", message="refused before")
        return unknown(seq)

    def record(self, ticket, commit_no, result):
        self.receipts[ticket.client, ticket.seq] = commit_no, ticket.digest, result
        self.highest[ticket.client] = ticket.seq
        # At once, where the real one waits for 64 of them: the stricter the better.
        self.pruned[ticket.client] = ticket.acked_through
        for client, seq in list(self.receipts):
            if client == ticket.client and seq <= min(ticket.acked_through, ticket.seq - 1):
                del self.receipts[client, seq]

    def refuse(self, ticket, failed):
        self.refusals[ticket.client, ticket.seq] = failed

    def sweep(self, through):
        self.swept = through
        self.receipts = {k: r for k, r in self.receipts.items() if r[0] > through}

    def close(self):
        pass


def unknown(seq):
    return wire.Failed(seq=seq, code="unknown", message="swept", executed="unknown")


class RealLedger:
    """The receipts of the product, on tables in memory, pruned as soon as may be."""

    def __init__(self):
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(limits, "RECEIPTS_PRUNED_AT_ONCE", 1)
        self.conn = sqlite3.connect(":memory:", isolation_level=None)
        create_meta_tables(self.conn, SESSIONS)
        self.restart()

    def restart(self):
        self.real = Receipts(get_internal(self.conn, "swept_through"))

    def find(self, ticket):
        outcome = self.real.find(self.conn, ticket)
        if outcome is None:
            return None
        if outcome.error is None:
            return wire.Ok(seq=ticket.seq, commit_no=outcome.commit_no, result=outcome.result)
        code, executed = outcome.error.code, outcome.error.executed
        return wire.Failed(seq=ticket.seq, code=code, message="", executed=executed)

    def record(self, ticket, commit_no, result):
        self.real.record(self.conn, ticket, commit_no, result)
        self.real.committed([ticket])

    def refuse(self, ticket, failed):
        self.real.refused(ticket, error_from(failed))

    def sweep(self, through):
        kept = limits.RECEIPTS_KEPT_COMMITS
        self.real.swept(self.real.sweep(self.conn, through + kept))
        assert get_internal(self.conn, "swept_through") == through

    def close(self):
        self.conn.close()
        self.patch.undo()


class Link:
    """One connection: bytes on their way, and what the actor's end remembers of it."""

    def __init__(self):
        self.to_actor = b""
        self.to_client = b""
        self.buffer = FrameBuffer(limits.FRAME_MAX_BYTES)
        self.client = None
        self.queue = []
        self.answers = []
        self.lease = None
        self.floor = 0
        self.open = True

    def pass_to_client(self, core, amount=None):
        data, self.to_client = cut(self.to_client, amount)
        return core.receive(data)


def cut(data, amount):
    amount = len(data) if amount is None else amount
    return data[:amount], data[amount:]


class FakeActor:
    """Keeps the rules of receipts, leases and superseding. ``file`` is what survives it.

    The result of an operation tells which one it was. A ``meta.set`` with value ``False`` is
    refused.
    """

    def __init__(self, ledger=None, limits=None):
        self.ledger = ledger or PlainLedger()
        self.limits = limits or wire.Limits()
        self.file = []
        self.commit_no = 0
        self.links = {}
        self.parts = {}

    def restart(self):
        self.ledger.restart()
        for link in self.links.values():
            link.open = False
        self.links = {}

    # Bytes.

    def read(self, link, amount=None):
        """Read from a connection. Frames become work; a Hello is answered at once."""
        data, link.to_actor = cut(link.to_actor, amount)
        if not link.open:
            return
        link.buffer.feed(data)
        while (body := link.buffer.next_body()) is not None:
            self._take(link, decode_client(body))

    def _take(self, link, message):
        if isinstance(message, wire.Hello):
            older = self.links.get(message.client_id)
            if older is not None:  # its unread bytes and its queue are dropped
                older.open, older.queue, older.lease = False, [], None
            self.links[message.client_id], link.client = link, message.client_id
            link.floor = self.commit_no
            link.to_client += frame(self._welcome())
        elif isinstance(message, wire.LeaseCommit) and link.lease == message.lease:
            link.lease = None
            self._apply(link, message, ("lease", message.lease))
        elif isinstance(message, wire.LeaseRollback):
            link.lease = None
            link.answers.append(frame(wire.Done(ask=message.ask)))
        else:
            link.queue.append(message)

    def _welcome(self):
        return wire.Welcome(
            protocol=1, phase="serving", epoch=1, file_id=b"file", limits=self.limits,
            durability="fsync", schema_version=11, build="0", pid=1, commit_no=self.commit_no,
        )  # fmt: skip

    # Work.

    def work(self, link, amount=None):
        """Do queued work, as long as no lease is open."""
        done = 0
        while link.open and link.queue and link.lease is None and done != amount:
            done += 1
            message = link.queue.pop(0)
            if isinstance(message, wire.LeaseOpen):
                link.lease = message.lease
                link.answers.append(frame(wire.Done(ask=message.ask)))
            elif isinstance(message, wire.LeaseCommit):
                self._apply(link, message, None)
            elif isinstance(message, wire.Request):
                self._apply(link, message, decode_operation(message.operation))
            else:
                link.answers.append(frame(wire.Done(ask=message.ask)))
        return done

    def _apply(self, link, message, effect):
        raw = getattr(message, "operation", b"lease %d" % getattr(message, "lease", 0))
        digest = hashlib.blake2b(raw, digest_size=8).digest()
        ticket = Ticket(
            link.client, message.seq, digest, message.after, message.acked_through, link.floor
        )
        answer = self.ledger.find(ticket)
        if answer is None:
            answer = self._do(ticket, effect)
        link.answers.append(frame(answer))

    def _do(self, ticket, effect):
        code = None
        if effect is None:
            code = "deadline"
        elif isinstance(effect, ops.MetaSet) and effect.value is False:
            code = "constraint"
        if code is not None:
            failed = wire.Failed(seq=ticket.seq, code=code, message=f"no: {code}", words="no")
            self.ledger.refuse(ticket, failed)
            return failed
        self.commit_no += 1
        self.file.append((ticket.client, ticket.seq, effect))
        result = pack(self._result(ticket, effect))
        self.ledger.record(ticket, self.commit_no, result)
        return wire.Ok(seq=ticket.seq, commit_no=self.commit_no, result=msgspec.Raw(result))

    def _result(self, ticket, effect):
        if isinstance(effect, ops.StagePart):
            self.parts[ticket.client, effect.key, effect.part] = effect.data
            return None
        if isinstance(effect, ops.Staged):
            parts = [self.parts.pop((ticket.client, effect.key, n)) for n in range(effect.parts)]
            return f"staged {decode_operation(b''.join(parts)).key}"
        return f"lease {ticket.seq}" if isinstance(effect, tuple) else f"set {effect.key}"

    def answer(self, link, which=0):
        link.to_client += link.answers.pop(which)

    def serve(self, link):
        """Read, work and answer until nothing is left."""
        self.read(link)
        self.work(link)
        while link.answers:
            self.answer(link)

    def keys(self):
        return [effect.key for _, _, effect in self.file]


def connect(core, actor):
    """A new connection of *core*, on which everything unanswered is on its way again."""
    link = Link()
    link.to_actor += core.hello()
    actor.read(link)
    link.pass_to_client(core)
    assert core.welcome is not None
    link.to_actor += core.resend()
    return link


@pytest.fixture
def core():
    return client_protocol("test")


@pytest.fixture
def actor():
    return FakeActor()


@pytest.fixture
def link(core, actor):
    return connect(core, actor)


def submit(core, link=None, key="k", value=None, timeout=30.0):
    operation = encode(ops.MetaSet(key=key, value=value))
    reply, data = core.request(operation, timeout)
    if link is not None:
        link.to_actor += data
    return reply


def sent(data):
    """The messages in some bytes of a client."""
    buffer, found = FrameBuffer(1 << 30), []
    buffer.feed(data)
    while (body := buffer.next_body()) is not None:
        found.append(decode_client(body))
    assert len(buffer) == 0
    return found


def ok(seq, commit_no=1, result=None):
    return frame(wire.Ok(seq=seq, commit_no=commit_no, result=msgspec.Raw(pack(result))))


# --- opening ---------------------------------------------------------------------------------


def test_hello_introduces_the_client(core):
    (hello,) = sent(core.hello())
    assert hello.magic == "hermes-actor"
    assert hello.oldest <= wire.PROTOCOL <= hello.newest
    assert hello.client_id == core.client_id
    assert len(core.client_id) == 16
    assert hello.name == "test"
    assert hello.pid > 0
    assert hello.build


def test_every_client_has_an_id_of_its_own_and_keeps_it(core):
    assert core.client_id != client_protocol("").client_id
    assert sent(core.hello()) == sent(core.hello())


def test_welcome_is_kept_until_the_next_hello(core, actor):
    connect(core, actor)
    assert core.welcome.protocol == 1
    core.hello()
    assert core.welcome is None


def test_reject_for_the_protocol_names_both_ranges(core):
    core.hello()
    reject = wire.Reject(code="protocol", message="no common protocol", oldest=2, newest=4)
    with pytest.raises(errors.IncompatibleProtocol, match=r"speaks 1,.* 2 to 4"):
        core.receive(frame(reject))


@pytest.mark.parametrize("code", ["damaged", "not-a-database", "read-only", "disk-full", "io"])
def test_reject_is_the_typed_error_of_its_code(core, code):
    core.hello()
    with pytest.raises(errors.by_code[code], match="cannot be served") as caught:
        core.receive(frame(wire.Reject(code=code, message="cannot be served")))
    assert type(caught.value) is errors.by_code[code]
    assert caught.value.executed == "no"


def test_reject_with_an_unknown_code_is_the_base_of_all_errors(core):
    core.hello()
    with pytest.raises(errors.HermesActorError) as caught:
        core.receive(frame(wire.Reject(code="of-the-future", message="no")))
    assert type(caught.value) is errors.HermesActorError


def test_rejected_client_loses_nothing(core, actor, link):
    reply = submit(core, link)
    core.hello()
    with pytest.raises(errors.Damaged):
        core.receive(frame(wire.Reject(code="damaged", message="no")))
    again = connect(core, actor)
    actor.serve(again)
    again.pass_to_client(core)
    assert unpack(reply.result) == "set k"


# --- numbers ---------------------------------------------------------------------------------


def test_requests_are_numbered_from_one_without_gaps(core, actor, link):
    replies = [submit(core, link, f"k{n}") for n in range(5)]
    assert [reply.number for reply in replies] == [1, 2, 3, 4, 5]
    assert [request.seq for request in sent(link.to_actor)] == [1, 2, 3, 4, 5]
    link = connect(core, actor)
    assert submit(core, link).number == 6


def test_request_carries_the_operation_and_the_timeout(core, link):
    operation = ops.MetaSet(key="北京", value=7)
    _, data = core.request(encode(operation), 2.5)
    (request,) = sent(data)
    assert decode_operation(request.operation) == operation
    assert request.timeout == 2.5


def test_after_is_what_was_known_at_the_first_sending(core, actor):
    actor.commit_no = 41
    link = connect(core, actor)
    first = submit(core, link, "first")
    actor.serve(link)
    link.pass_to_client(core)
    assert first.commit_no == 42
    second = submit(core, link, "second")
    actor.commit_no = 1000
    link = connect(core, actor)
    submit(core, link, "third")
    again, third = sent(link.to_actor)
    assert (again.seq, again.after) == (second.number, 42)
    assert third.after == 1000


def test_after_never_falls(core, link):
    for _ in range(3):
        submit(core, link)
    core.receive(ok(2, commit_no=50))
    core.receive(ok(1, commit_no=49))
    core.receive(ok(3, commit_no=0))  # upkeep has no place in the order
    link.to_actor = b""
    submit(core, link)
    (request,) = sent(link.to_actor)
    assert request.after == 50


def test_acked_through_is_contiguous(core, link):
    def acked_through():
        _, data = core.request(pack(ops.TopicsMigrate()), 1.0)
        (request,) = sent(data)
        return request.acked_through

    for _ in range(5):
        submit(core, link)
    assert acked_through() == 0
    core.receive(ok(3))
    core.receive(ok(2))
    assert acked_through() == 0
    core.receive(ok(1))
    assert acked_through() == 3
    core.receive(frame(wire.Failed(seq=5, code="constraint", message="no")))
    assert acked_through() == 3
    core.receive(ok(4))
    assert acked_through() == 5


def test_window_is_the_actors(core):
    assert core.has_room
    actor = FakeActor(limits=wire.Limits(window=3))
    link = connect(core, actor)
    first = submit(core, link)
    assert core.has_room
    submit(core, link)
    assert not core.has_room  # the last place is kept for the commit of a lease
    assert core.in_flight == 2
    core.receive(ok(first.number))
    assert core.has_room
    assert core.in_flight == 1


def test_window_before_any_welcome_is_the_default(core):
    for _ in range(limits.WINDOW_REQUESTS - 1):
        assert core.has_room
        submit(core)
    assert not core.has_room


# --- answers ---------------------------------------------------------------------------------


def test_answers_in_any_order_reach_their_callers(core, actor, link):
    replies = [submit(core, link, f"k{n}") for n in range(4)]
    actor.read(link)
    actor.work(link)
    for which in (2, 0, 1, 0):
        actor.answer(link, which)
    finished = link.pass_to_client(core)
    assert finished == [replies[n] for n in (2, 0, 3, 1)]
    assert [unpack(reply.result) for reply in replies] == [f"set k{n}" for n in range(4)]
    assert [reply.commit_no for reply in replies] == [1, 2, 3, 4]
    assert all(reply.done and reply.error is None for reply in replies)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_answers_in_pieces_of_any_size(core, actor, link, size):
    replies = [submit(core, link, f"k{n}") for n in range(3)]
    actor.serve(link)
    finished = []
    while link.to_client:
        finished += link.pass_to_client(core, size)
    assert finished == replies


def test_answer_without_result_is_nil(core, link):
    reply = submit(core, link)
    core.receive(frame(wire.Ok(seq=1, commit_no=1)))
    assert unpack(reply.result) is None


def test_answer_that_nobody_waits_for_is_ignored(core, link):
    reply = submit(core, link)
    assert core.receive(ok(7)) == []
    assert core.receive(frame(wire.Failed(seq=9, code="io", message="no"))) == []
    assert not reply.done
    assert core.receive(ok(1)) == [reply]
    assert core.receive(ok(1)) == []


@pytest.mark.parametrize("code", sorted(errors.by_code))
def test_failure_is_the_typed_error_of_its_code(core, link, code):
    reply = submit(core, link)
    failed = wire.Failed(
        seq=1, code=code, message="no: because", words="because", executed="unknown"
    )  # fmt: skip
    assert core.receive(frame(failed)) == [reply]
    assert type(reply.error) is errors.by_code[code]
    assert str(reply.error) == "no: because"
    assert reply.error.sqlite_message == "because"
    assert reply.error.executed == "unknown"
    assert reply.result is None


@pytest.mark.parametrize("executed", ["no", "yes", "unknown"])
def test_executed_is_what_the_actor_says(core, link, executed):
    reply = submit(core, link)
    core.receive(frame(wire.Failed(seq=1, code="unknown", message="no", executed=executed)))
    assert reply.error.executed == executed


def test_failure_without_words_has_its_message_as_words(core, link):
    reply = submit(core, link)
    core.receive(frame(wire.Failed(seq=1, code="sql", message="near x")))
    assert reply.error.sqlite_message == "near x"


def test_failure_with_an_unknown_code_keeps_what_it_says(core, link):
    reply = submit(core, link)
    core.receive(frame(wire.Failed(seq=1, code="of-the-future", message="no", executed="yes")))
    assert type(reply.error) is errors.HermesActorError
    assert (str(reply.error), reply.error.executed) == ("no", "yes")


def test_failed_request_is_not_sent_again(core, actor, link):
    reply = submit(core, link, value=False)
    actor.serve(link)
    link.pass_to_client(core)
    assert isinstance(reply.error, errors.ConstraintFailed)
    assert core.resend() == b""


# --- resending -------------------------------------------------------------------------------


def test_everything_unanswered_is_sent_again_in_order_with_identical_bytes(core, actor, link):
    requests = [core.request(encode(ops.MetaSet(key=f"k{n}")), 30.0) for n in range(5)]
    core.receive(ok(2) + ok(4))
    again = connect(core, actor)
    assert again.to_actor == b"".join(requests[n][1] for n in (0, 2, 4))
    once_more = connect(core, actor)
    assert once_more.to_actor == again.to_actor


def test_nothing_unanswered_means_nothing_to_send(core, actor):
    assert connect(core, actor).to_actor == b""


@pytest.mark.parametrize("lost", ["before-read", "before-work", "before-answer"])
@pytest.mark.parametrize("restart", [False, True])
def test_lost_connection_costs_nothing(core, actor, link, lost, restart):
    replies = [submit(core, link, f"k{n}") for n in range(3)]
    if lost != "before-read":
        actor.read(link)
    if lost == "before-answer":
        actor.work(link)
    if restart:
        actor.restart()
    again = connect(core, actor)
    actor.serve(again)
    again.pass_to_client(core)
    assert actor.keys() == ["k0", "k1", "k2"]
    assert [unpack(reply.result) for reply in replies] == ["set k0", "set k1", "set k2"]


def test_refusal_is_told_again(core, actor, link):
    bad, good = submit(core, link, "bad", value=False), submit(core, link, "good")
    actor.read(link)
    actor.work(link)
    again = connect(core, actor)
    actor.serve(again)
    again.pass_to_client(core)
    assert isinstance(bad.error, errors.ConstraintFailed)
    assert unpack(good.result) == "set good"


def test_stale_original_of_a_superseded_connection_is_not_executed(core, actor, link):
    submit(core, link)
    again = connect(core, actor)
    actor.serve(again)
    actor.serve(link)  # the old bytes are still there
    assert actor.keys() == ["k"]
    assert link.to_client == b""


def test_part_of_a_frame_of_the_old_connection_is_forgotten(core, actor, link):
    reply = submit(core, link)
    actor.serve(link)
    link.pass_to_client(core, 5)
    again = connect(core, actor)
    actor.serve(again)
    again.pass_to_client(core)
    assert unpack(reply.result) == "set k"


def test_request_first_sent_after_the_sweep_is_applied_by_a_new_actor(core, actor):
    actor.commit_no = MANY
    actor.ledger.sweep(MANY)
    link = connect(core, actor)
    reply = submit(core, link)
    actor.restart()
    link = connect(core, actor)
    actor.serve(link)
    link.pass_to_client(core)
    assert unpack(reply.result) == "set k"


def test_request_whose_receipt_may_have_been_swept_is_unknown(core, actor, link):
    reply = submit(core, link)
    actor.read(link)
    actor.work(link)
    actor.commit_no = MANY
    actor.ledger.sweep(MANY)
    actor.restart()
    link = connect(core, actor)
    later = submit(core, link, "later")
    actor.serve(link)
    link.pass_to_client(core)
    assert isinstance(reply.error, errors.OutcomeUnknown)
    assert reply.error.executed == "unknown"
    assert unpack(later.result) == "set later"
    assert actor.keys() == ["k", "later"]


@pytest.mark.parametrize(
    "ledger",
    [
        PlainLedger,
        pytest.param(
            RealLedger,
        ),
    ],
)
def test_swept_receipt_of_a_client_that_was_away_is_unknown(core, ledger):
    actor = FakeActor(ledger())
    link = connect(core, actor)
    reply = submit(core, link)
    actor.read(link)
    actor.work(link)  # and the answer is lost
    actor.commit_no = MANY
    actor.ledger.sweep(MANY)
    link = connect(core, actor)  # the same actor, which remembers the number
    actor.serve(link)
    actor.ledger.close()
    link.pass_to_client(core)
    assert actor.keys() == ["k"]
    assert reply.error.executed == "unknown"


def test_number_used_twice_is_noticed(core, actor, link):
    submit(core, link, "one")
    actor.serve(link)
    other = client_protocol("")
    other.client_id = core.client_id
    again = connect(other, actor)
    reply = submit(other, again, "two")
    actor.serve(again)
    again.pass_to_client(other)
    assert isinstance(reply.error, errors.KeyReused)
    assert actor.keys() == ["one"]


def test_go_away_is_noted_and_changes_nothing_else(core, actor, link):
    first, second = submit(core, link, "one"), submit(core, link, "two")
    assert not core.going_away
    assert core.receive(frame(wire.GoAway(last_seq=1, reason="SIGTERM"))) == []
    assert core.going_away
    core.receive(ok(1))  # what was admitted may still be answered
    assert first.done
    third = submit(core, key="three")
    assert third.number == 3
    again = connect(core, actor)
    assert not core.going_away
    assert [request.seq for request in sent(again.to_actor)] == [2, 3]
    actor.serve(again)
    again.pass_to_client(core)
    assert second.done
    assert third.done


# --- giving up -------------------------------------------------------------------------------


def test_request_that_was_given_up_is_neither_sent_again_nor_answered(core, actor, link):
    reply, other = submit(core, link, "one"), submit(core, link, "two")
    core.abandon(reply)
    assert core.in_flight == 1
    assert core.receive(ok(1)) == []
    assert not reply.done
    again = connect(core, actor)
    assert [request.seq for request in sent(again.to_actor)] == [other.number]


def test_request_that_was_given_up_counts_as_answered(core, link):
    reply, other = submit(core, link), submit(core, link)
    core.receive(ok(other.number))
    core.abandon(reply)
    core.abandon(reply)
    link.to_actor = b""
    submit(core, link)
    (request,) = sent(link.to_actor)
    assert request.acked_through == 2


def test_ask_that_was_given_up_is_not_answered(core, link):
    reply, _ = core.ask(lambda ask: wire.StatusRequest(ask=ask))
    core.abandon(reply)
    assert core.receive(frame(wire.StatusReply(ask=reply.number, status="{}"))) == []
    assert not reply.done


# --- asks ------------------------------------------------------------------------------------


def test_asks_count_down_and_leave_the_sequence_alone(core, link):
    replies = [core.ask(lambda ask: wire.StatusRequest(ask=ask)) for _ in range(3)]
    assert [reply.number for reply, _ in replies] == [-1, -2, -3]
    assert [sent(data)[0].ask for _, data in replies] == [-1, -2, -3]
    assert submit(core, link).number == 1
    assert core.in_flight == 1


def test_asks_are_answered_by_done_failed_and_status(core, link):
    done, _ = core.ask(lambda ask: wire.CatchUp(ask=ask, through=5))
    failed, _ = core.ask(lambda ask: wire.CatchUp(ask=ask, through=9, timeout=0.5))
    status, _ = core.ask(lambda ask: wire.StatusRequest(ask=ask))
    answers = (
        frame(wire.StatusReply(ask=-3, status='{"pid": 1}'))
        + frame(wire.Failed(seq=-2, code="index-behind", message="1 of 9"))
        + frame(wire.Done(ask=-1, result=msgspec.Raw(pack("yes"))))
    )
    assert core.receive(answers) == [status, failed, done]
    assert unpack(done.result) == "yes"
    assert isinstance(failed.error, errors.IndexBehind)
    assert status.result == b'{"pid": 1}'


def test_answers_to_nobodys_asks_are_ignored(core, link):
    assert core.receive(frame(wire.Done(ask=-4))) == []
    assert core.receive(frame(wire.StatusReply(ask=-4, status=""))) == []
    assert core.receive(frame(wire.Failed(seq=-4, code="io", message=""))) == []


def test_asks_end_with_their_connection(core, actor, link):
    reply, data = core.ask(lambda ask: wire.CatchUp(ask=ask, through=5))
    link.to_actor += data
    again = connect(core, actor)
    assert again.to_actor == b""
    assert reply.done
    assert isinstance(reply.error, ConnectionResetError)
    assert core.receive(frame(wire.Done(ask=reply.number))) == []
    assert core.ask(lambda ask: wire.StatusRequest(ask=ask))[0].number == -2


# --- bad bytes -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x00\x00\x01\xc1",
        b"\x00\x00\x00\x00",
        b"\xff\xff\xff\xff",
        frame(wire.Hello()),
        ok(0),
        ok(-1),
        frame(wire.Changed(commit_no=1, op="meta.set")),
        frame(wire.Gap(after=1, through=2)),
    ],
    ids=["no-message", "empty", "endless", "hello", "zero", "negative", "changed", "gap"],
)
def test_what_an_actor_does_not_say_is_a_frame_error(core, link, data):
    with pytest.raises(FrameError):
        core.receive(data)


def test_answers_before_bad_bytes_count(core, link):
    reply = submit(core, link)
    with pytest.raises(FrameError):
        core.receive(ok(1) + b"\x00\x00\x00\x01\xc1")
    assert reply.done
    assert core.resend() == b""


# --- leases ----------------------------------------------------------------------------------


def open_lease(core, link):
    number = core.reserve()
    granted, data = core.ask(lambda ask: wire.LeaseOpen(ask=ask, lease=number))
    link.to_actor += data
    return number, granted


def commit_lease(core, link, number):
    reply, data = core.commit_lease(number)
    link.to_actor += data
    return reply


def test_commit_of_a_lease_has_the_number_from_before_it(core, actor, link):
    assert submit(core, link).number == 1
    number, granted = open_lease(core, link)
    behind = submit(core, link, "behind")
    assert (number, behind.number) == (2, 3)
    actor.serve(link)
    link.pass_to_client(core)
    assert granted.done
    assert not behind.done
    committed = commit_lease(core, link, number)
    (message,) = sent(link.to_actor)
    assert (message.seq, message.lease) == (2, 2)
    assert (message.after, message.acked_through) == (1, 1)
    actor.serve(link)
    link.pass_to_client(core)
    assert unpack(committed.result) == "lease 2"
    assert unpack(behind.result) == "set behind"
    assert [seq for _, seq, _ in actor.file] == [1, 2, 3]


def test_commit_of_a_lease_is_sent_again_in_its_place(core, actor, link):
    number, _ = open_lease(core, link)
    submit(core, link)
    core.commit_lease(number)
    again = connect(core, actor)
    assert [message.seq for message in sent(again.to_actor)] == [1, 2]


def test_commit_of_a_lease_whose_answer_was_lost_is_answered_by_its_receipt(core, actor, link):
    number, _ = open_lease(core, link)
    actor.serve(link)
    committed = commit_lease(core, link, number)
    actor.read(link)
    assert len(actor.file) == 1
    actor.restart()
    again = connect(core, actor)
    actor.serve(again)
    again.pass_to_client(core)
    assert unpack(committed.result) == "lease 1"
    assert len(actor.file) == 1


def test_commit_of_a_lease_that_is_over_fails_and_did_nothing(core, actor, link):
    number, _ = open_lease(core, link)
    actor.serve(link)
    committed = commit_lease(core, link, number)
    again = connect(core, actor)  # which ends the lease of the old connection
    actor.serve(again)
    again.pass_to_client(core)
    assert isinstance(committed.error, errors.DeadlineExceeded)
    assert committed.error.executed == "no"
    assert actor.file == []


def test_number_of_a_lease_without_commit_counts_as_answered(core, actor, link):
    number, _ = open_lease(core, link)
    behind = submit(core, link)
    rolled_back, data = core.ask(lambda ask: wire.LeaseRollback(ask=ask, lease=number))
    actor.serve(link)
    link.to_actor += data
    core.unreserve(number)
    actor.serve(link)
    link.pass_to_client(core)
    assert rolled_back.done
    assert behind.done
    assert core.resend() == b""
    submit(core, link)
    (request,) = sent(link.to_actor)
    assert (request.seq, request.acked_through) == (3, 2)


# --- staged parts ----------------------------------------------------------------------------

MIB = 1024 * 1024


def large(size, key="big"):
    """An operation whose bytes are exactly *size*."""
    rest = size - len(pack(ops.MetaSet(key=key, value="x" * 2**17)))
    operation = ops.MetaSet(key=key, value="x" * (2**17 + rest))
    assert len(pack(operation)) == size
    return operation


def test_operation_up_to_a_mebibyte_travels_whole(core, link):
    operation = large(MIB)
    _, data = core.request(encode(operation), 30.0)
    assert len(data) < limits.FRAME_MAX_BYTES
    assert decode_operation(sent(data)[0].operation) == operation


@pytest.mark.parametrize("size", [MIB + 1, MIB + MIB // 2, 3 * MIB, 3 * MIB + 1])
def test_larger_operation_travels_in_parts(core, actor, link, size):
    operation = large(size)
    assert encode(operation) is None
    steps = stages(core, operation)
    assert len(steps) == -(-size // limits.STAGE_PART_BYTES) + 1
    replies = []
    for step in steps:
        reply, data = core.request(step, 30.0)
        assert len(data) < limits.FRAME_MAX_BYTES
        replies.append(reply)
        link.to_actor += data
    actor.serve(link)
    link.pass_to_client(core)
    assert [reply.number for reply in replies] == list(range(1, len(steps) + 1))
    assert all(unpack(reply.result) is None for reply in replies[:-1])
    assert unpack(replies[-1].result) == "staged big"
    parts = [decode_operation(step) for step in steps[:-1]]
    assert b"".join(part.data for part in parts) == pack(operation)
    assert [part.part for part in parts] == list(range(len(parts)))
    assert decode_operation(steps[-1]) == ops.Staged(key=parts[0].key, parts=len(parts))


def test_parts_survive_a_lost_connection(core, actor, link):
    replies = []
    for step in stages(core, large(2 * MIB)):
        reply, data = core.request(step, 30.0)
        replies.append(reply)
        link.to_actor += data
    actor.read(link)
    actor.work(link, 2)
    actor.restart()
    again = connect(core, actor)
    actor.serve(again)
    again.pass_to_client(core)
    assert unpack(replies[-1].result) == "staged big"
    assert [seq for _, seq, _ in actor.file] == [1, 2, 3, 4, 5]


def test_each_staged_operation_has_a_key_of_its_own(core):
    first, second = stages(core, large(2 * MIB, "a")), stages(core, large(2 * MIB, "b"))
    keys = {decode_operation(step).key for step in first}
    others = {decode_operation(step).key for step in second}
    assert len(keys) == len(others) == 1
    assert keys != others


# --- anything can happen ---------------------------------------------------------------------


amounts = st.none() | st.integers(1, 200)
"""Bytes that get through: all, or some."""


class Conversation(RuleBasedStateMachine):
    """Random requests, leases, answers, losses and restarts.

    Whatever happens, every operation is executed exactly once, in order, and its result reaches
    its caller; unless it is refused, given up, or swept away.
    """

    new_ledger = PlainLedger
    may_sweep = True

    @initialize(with_sweeps=st.booleans())
    def begin(self, with_sweeps):
        self.core = client_protocol("machine")
        self.actor = FakeActor(self.new_ledger(), wire.Limits(window=8))
        self.names = itertools.count(1)
        self.expected = {}  # seq → (reply, key, whether it is refused)
        self.given_up = set()
        self.bytes = {}
        self.lease = None  # (number, the ask that opens it)
        self.leases = {}  # seq → reply of the commit
        self.with_sweeps, self.swept = with_sweeps and self.may_sweep, False
        self.link = connect(self.core, self.actor)

    # The callers.

    @precondition(lambda self: self.link is not None and self.core.has_room)
    @rule(refused=st.lists(st.sampled_from([False, False, True]), min_size=1, max_size=3))
    def submit(self, refused):
        for one in refused:
            key = f"k{next(self.names)}"
            operation = encode(ops.MetaSet(key=key, value=False if one else None))
            reply, data = self.core.request(operation, 30.0)
            assert reply.number not in self.bytes
            self.expected[reply.number] = (reply, key, one)
            self.bytes[reply.number] = data
            self.link.to_actor += data

    @precondition(lambda self: self.open_numbers())
    @rule(data=st.data())
    def give_up(self, data):
        number = data.draw(st.sampled_from(self.open_numbers()))
        self.core.abandon(self.reply_of(number))
        self.given_up.add(number)

    @precondition(lambda self: self.link is not None and self.lease is None)
    @rule()
    def open_lease(self):
        self.lease = open_lease(self.core, self.link)

    @precondition(lambda self: self.lease is not None and self.lease[1].done)
    @rule()
    def commit_lease(self):
        number, _ = self.lease
        self.lease = None
        reply, data = self.core.commit_lease(number)
        self.leases[number], self.bytes[number] = reply, data
        if self.link is not None:
            self.link.to_actor += data

    @precondition(lambda self: self.lease is not None)
    @rule()
    def roll_lease_back(self):
        number, _ = self.lease
        self.lease = None
        if self.link is not None:
            _, data = self.core.ask(lambda ask: wire.LeaseRollback(ask=ask, lease=number))
            self.link.to_actor += data
        self.core.unreserve(number)

    # The wire and the actor.

    @precondition(lambda self: self.link is not None)
    @rule(amount=amounts, jobs=st.none() | st.integers(0, 4))
    def actor_reads_and_works(self, amount, jobs):
        self.actor.read(self.link, amount)
        self.actor.work(self.link, jobs)

    @precondition(lambda self: self.link is not None and self.link.answers)
    @rule(data=st.data(), amount=amounts)
    def some_answers_arrive(self, data, amount):
        for _ in range(data.draw(st.integers(1, len(self.link.answers)))):
            which = data.draw(st.integers(0, len(self.link.answers) - 1))
            self.actor.answer(self.link, which)
        self.client_reads(amount)

    @precondition(lambda self: self.link is not None)
    @rule()
    def all_answers_arrive(self):
        self.actor.serve(self.link)
        self.client_reads(None)

    def client_reads(self, amount):
        for reply in self.link.pass_to_client(self.core, amount):
            assert reply.done
            assert reply.number not in self.given_up

    @precondition(lambda self: self.link is not None and self.link.lease is not None)
    @rule()
    def lease_expires(self):
        self.link.lease = None

    @precondition(lambda self: self.link is not None)
    @rule(
        how=st.sampled_from(["broken", "broken", "killed", "sent away"]),
        amount=amounts,
        again=st.booleans(),
    )
    def connection_ends(self, how, amount, again):
        link, self.link = self.link, None
        if how == "killed":
            self.actor.restart()
        elif how == "sent away":
            link.to_client += frame(wire.GoAway(last_seq=0, reason="drain"))
            link.pass_to_client(self.core)
            link.open = False
        # The actor may go on with what has already arrived.
        self.actor.read(link, amount)
        self.actor.work(link)
        if again:
            self.client_connects()
            # Old bytes are worth nothing now.
            self.actor.read(link)
            assert self.actor.work(link) == 0

    @precondition(lambda self: self.link is None)
    @rule()
    def client_connects(self):
        self.link = connect(self.core, self.actor)
        unanswered = [self.bytes[number] for number in self.open_numbers()]
        assert self.link.to_actor == b"".join(unanswered)

    @precondition(lambda self: self.with_sweeps)
    @rule(distance=st.integers(0, 3))
    def others_write_and_receipts_are_swept(self, distance):
        self.actor.commit_no += MANY
        self.actor.ledger.sweep(self.actor.commit_no - distance)
        self.swept = True

    # What must be true.

    def reply_of(self, number):
        return self.leases[number] if number in self.leases else self.expected[number][0]

    def open_numbers(self):
        return sorted(
            number
            for number in self.bytes
            if number not in self.given_up and not self.reply_of(number).done
        )

    @invariant()
    def executed_at_most_once_and_in_order(self):
        numbers = [seq for _, seq, _ in self.actor.file]
        assert numbers == sorted(set(numbers))

    @invariant()
    def client_counts_what_is_open(self):
        assert self.core.in_flight == len(self.open_numbers())

    @invariant()
    def every_answer_is_true_and_reached_its_caller(self):
        applied = {seq: effect for _, seq, effect in self.actor.file}
        for seq, (reply, key, refused) in self.expected.items():
            if reply.done and reply.error is None:
                assert unpack(reply.result) == f"set {key}"
                assert applied[seq].key == key
            elif reply.done and reply.error.executed == "no":
                assert refused
                assert seq not in applied
            elif reply.done:
                assert self.swept
        for seq, reply in self.leases.items():
            if reply.done and reply.error is None:
                assert applied[seq] == ("lease", seq)
            elif reply.done and reply.error.executed == "no":
                assert seq not in applied

    def teardown(self):
        if not hasattr(self, "core"):
            return
        try:
            self.check_the_end()
        finally:
            self.actor.ledger.close()

    def check_the_end(self):
        """With a new actor and a good connection everything comes to its end."""
        self.actor.restart()
        link = connect(self.core, self.actor)
        self.actor.serve(link)
        link.pass_to_client(self.core)
        assert self.open_numbers() == []
        applied = [seq for _, seq, _ in self.actor.file]
        for seq, (reply, _, refused) in self.expected.items():
            if seq not in self.given_up and not refused and not self.swept:
                assert reply.error is None
                assert applied.count(seq) == 1
        self.every_answer_is_true_and_reached_its_caller()
        self.executed_at_most_once_and_in_order()


class ConversationWithTheReceiptsOfTheProduct(Conversation):
    new_ledger = RealLedger
    # Not before the expected failure above is mended.
    may_sweep = True


patiently = settings(deadline=None, stateful_step_count=40)

TestConversation = Conversation.TestCase
TestConversation.settings = patiently
TestConversationWithTheReceiptsOfTheProduct = ConversationWithTheReceiptsOfTheProduct.TestCase
TestConversationWithTheReceiptsOfTheProduct.settings = patiently
