"""The client's end of the protocol: what is sent again after a lost connection."""

import pytest
from support.protocol_actor import (
    MANY,
    FakeActor,
    PlainLedger,
    RealLedger,
    connect,
    ok,
    sent,
    submit,
    unpack,
)

from hermes_actor import errors
from hermes_actor.client.protocol import client_protocol, encode
from hermes_protocol import messages as wire
from hermes_protocol import operations as ops
from hermes_protocol.framing import (
    frame,
)


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


def test_refusal_is_answered_again(core, actor, link):
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
