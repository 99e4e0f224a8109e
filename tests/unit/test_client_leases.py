"""The client's end of the protocol: commits of leases, and operations in parts."""

import pytest
from support.protocol_actor import (
    commit_lease,
    connect,
    open_lease,
    pack,
    sent,
    submit,
    unpack,
)

from hermes_actor import errors, limits
from hermes_actor.client.protocol import encode, stages
from hermes_protocol import messages as wire
from hermes_protocol import operations as ops
from hermes_protocol.framing import (
    decode_operation,
)

# --- leases ----------------------------------------------------------------------------------


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
