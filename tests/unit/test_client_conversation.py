"""The client's end of the protocol: any conversation, cut and restarted anywhere."""

import itertools

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from support.protocol_actor import (
    MANY,
    FakeActor,
    PlainLedger,
    RealLedger,
    connect,
    open_lease,
    unpack,
)

from hermes_actor.client.protocol import client_protocol, encode
from hermes_protocol import messages as wire
from hermes_protocol import operations as ops
from hermes_protocol.framing import (
    frame,
)

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
    # Not before the expected failure above is repaired.
    may_sweep = True


patiently = settings(deadline=None, stateful_step_count=40)

TestConversation = Conversation.TestCase
TestConversation.settings = patiently
TestConversationWithTheReceiptsOfTheProduct = ConversationWithTheReceiptsOfTheProduct.TestCase
TestConversationWithTheReceiptsOfTheProduct.settings = patiently
