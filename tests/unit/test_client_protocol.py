"""The client's end of the protocol: numbers, answers, asks and bad bytes."""

import msgspec
import pytest
from support.protocol_actor import (
    FakeActor,
    connect,
    ok,
    pack,
    sent,
    submit,
    unpack,
)

from hermes_actor import errors, limits
from hermes_actor.client.protocol import client_protocol, encode
from hermes_protocol import messages as wire
from hermes_protocol import operations as ops
from hermes_protocol.framing import (
    FrameError,
    decode_operation,
    frame,
)

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


def test_answer_that_no_caller_waits_for_is_ignored(core, link):
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
