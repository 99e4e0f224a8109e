"""The client for event loops, against an actor that does what the test says."""

import gc
import socket
import weakref
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import msgspec
import pytest

from hermes_actor import __version__, limits
from hermes_actor.client.aio import actor_client, connection
from hermes_actor.client.aio.actor_client import AsyncActorClient
from hermes_actor.errors import Closed, DeadlineExceeded, OutcomeUnknown, TitleInUse
from hermes_actor.paths import resolve_paths
from hermes_protocol import messages as wire
from hermes_protocol import operations as ops
from hermes_protocol.framing import FrameBuffer, decode_client, decode_operation, frame

pytestmark = pytest.mark.anyio

SECONDS = 20
"""How long a test waits for what must come. No test measures time."""


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


class Script:
    """The actor's socket of one place."""

    def __init__(self, paths):
        paths.folder.mkdir(mode=0o700)
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sock.bind(str(paths.sock))
        self._sock.listen()
        self._sock.setblocking(False)
        self._peers = []

    async def accept(self):
        """The next connection, with nothing read from it."""
        with anyio.fail_after(SECONDS):
            await anyio.wait_readable(self._sock)
        self._peers.append(Peer(self._sock.accept()[0]))
        return self._peers[-1]

    async def welcome(self, **fields):
        """The next connection, introduced."""
        peer = await self.accept()
        peer.hello = await peer.take()
        assert isinstance(peer.hello, wire.Hello)
        peer.welcome(**fields)
        return peer

    def close(self):
        for sock in (self._sock, *(peer.sock for peer in self._peers)):
            if sock.fileno() >= 0:
                anyio.notify_closing(sock)
                sock.close()


class Peer:
    """The actor's end of one connection."""

    def __init__(self, sock):
        self.sock = sock
        self.sock.setblocking(False)
        self._buffer = FrameBuffer(limits.FRAME_MAX_BYTES)

    def welcome(self, *, commit_no=0, window=64, ready=True):
        self.say(
            wire.Welcome(
                protocol=1, phase="serving", epoch=1, file_id=b"file", durability="fsync",
                limits=wire.Limits(window=window), schema_version=11, build=__version__, pid=1,
                commit_no=commit_no, ready=ready,
            )
        )  # fmt: skip

    async def take(self):
        """The next message; ``None`` at the end of the stream."""
        while (body := self._buffer.next_body()) is None:
            with anyio.fail_after(SECONDS):
                await anyio.wait_readable(self.sock)
            if not (data := self.sock.recv(65536)):
                return None
            self._buffer.feed(data)
        return decode_client(body)

    async def request(self):
        """Number and key of the next request."""
        message = await self.take()
        return message.seq, decode_operation(message.operation).key

    async def nothing(self):
        """Nothing comes."""
        await settle()
        with pytest.raises(BlockingIOError):
            self.sock.recv(1, socket.MSG_PEEK)

    def say(self, *messages):
        self.sock.sendall(b"".join(map(frame, messages)))

    def ok(self, seq, result=None):
        self.say(
            wire.Ok(seq=seq, commit_no=seq, result=msgspec.Raw(msgspec.msgpack.encode(result)))
        )

    def close(self):
        self.sock.close()


@pytest.fixture
def paths(tmp_path):
    return resolve_paths(tmp_path / "state.db")


@pytest.fixture
async def script(paths):
    script = Script(paths)
    yield script
    script.close()


@pytest.fixture
async def channel(paths, script):
    channel = AsyncActorClient(paths)
    yield channel
    await channel.aclose()


def change(key="k", value=None):
    return ops.MetaSet(key=key, value=value)


class Call:
    """One submit in a task of its own, which can be cancelled."""

    def __init__(self, channel, operation, timeout):
        self.work = lambda: channel.submit(operation, timeout)
        self.scope = anyio.CancelScope()
        self.error = None
        self.ended = anyio.Event()

    async def run(self):
        with self.scope:
            try:
                self.result = await self.work()
            except Exception as error:
                self.error = error
        self.ended.set()

    async def cancel(self):
        self.scope.cancel()
        await self.ended.wait()


async def settle():
    """Let every task do what can be done; bytes that were sent are read.

    Many turns of the loop rather than some time: both ends live in it.
    """
    for _ in range(12):
        await anyio.sleep(0.002)


@asynccontextmanager
async def calls(channel):
    """Starts calls; at the end all of them must come to theirs."""
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:

            async def start(key="k", timeout=30.0, value=None):
                call = Call(channel, change(key, value), timeout)
                tasks.start_soon(call.run)
                await settle()
                return call

            yield start


# --- answers ---------------------------------------------------------------------------------


async def test_answers_in_any_order_reach_their_tasks(channel, script):
    async with calls(channel) as start:
        first = await start("a")
        peer = await script.welcome()
        second, third = await start("b"), await start("c")
        assert [await peer.request() for _ in range(3)] == [(1, "a"), (2, "b"), (3, "c")]
        for seq in (3, 1, 2):
            peer.ok(seq)
    assert [call.error for call in (first, second, third)] == [None, None, None]


async def test_refusal_is_the_typed_error(channel, script):
    async with calls(channel) as start:
        call = await start()
        peer = await script.welcome()
        await peer.take()
        peer.say(wire.Failed(seq=1, code="title-in-use", message="taken"))
    assert isinstance(call.error, TitleInUse)


async def test_result_is_decoded_as_the_operation_says(channel, script):
    operation = ops.SessionContinue(old="a", new="b", now=1.0)
    async with anyio.create_task_group() as tasks:

        async def submit():
            assert (await channel.submit(operation, 30)).id == "b"

        tasks.start_soon(submit)
        peer = await script.welcome()
        await peer.take()
        peer.ok(1, ops.Continued(id="b", title=None))


async def test_answers_to_come_can_be_awaited_in_any_order_and_twice(channel, script):
    async with anyio.create_task_group() as tasks:

        async def send():
            answers = await channel.send([change("a"), change("b")], 30)
            assert not any(answer.done() for answer in answers)
            tasks.start_soon(answers[1].wait)
            tasks.start_soon(answers[1].wait)
            assert await answers[0].wait() is None

        tasks.start_soon(send)
        peer = await script.welcome()
        assert [await peer.request() for _ in range(2)] == [(1, "a"), (2, "b")]
        await settle()
        peer.ok(2)
        await settle()
        peer.ok(1)


async def test_operation_that_cannot_be_encoded_stops_none_half_way(channel, script):
    with pytest.raises(TypeError):
        await channel.send([change("a"), change("b", object())], 30)
    async with calls(channel) as start:
        await start("c")
        peer = await script.welcome()
        assert await peer.request() == (1, "c")
        peer.ok(1)


# --- who reads -------------------------------------------------------------------------------


@pytest.mark.parametrize("cancelled", [[0], [1], [2], [0, 1], [1, 0], [0, 2], [2, 1]])
async def test_task_that_reads_may_be_cancelled(channel, script, cancelled):
    async with calls(channel) as start:
        started = [await start("a")]
        peer = await script.welcome()
        started += [await start("b"), await start("c")]
        assert [await peer.request() for _ in range(3)] == [(1, "a"), (2, "b"), (3, "c")]
        for which in cancelled:
            await started[which].cancel()
        for seq in (1, 2, 3):
            peer.ok(seq)
    for which, call in enumerate(started):
        assert call.error is None
        assert hasattr(call, "result") == (which not in cancelled)


async def test_all_at_once_may_be_cancelled_but_one(channel, script):
    """Also those that are on their way to take over."""
    async with calls(channel) as start:
        started = [await start("0")]
        peer = await script.welcome()
        started += [await start(str(n)) for n in range(1, 10)]
        for call in started[:7] + started[8:]:
            call.scope.cancel()
        peer.ok(8)
    assert [hasattr(call, "result") for call in started] == [n == 7 for n in range(10)]


async def test_reader_that_is_done_calls_the_next(channel, script):
    async with calls(channel) as start:
        await start("a")
        peer = await script.welcome()
        await start("b")
        await start("c")
        for seq in (1, 2, 3):
            peer.ok(seq)
            await settle()


async def test_half_an_answer_survives_its_reader(channel, script):
    async with calls(channel) as start:
        first = await start("a")
        peer = await script.welcome()
        second = await start("b")
        data = frame(wire.Ok(seq=1, commit_no=1)) + frame(wire.Ok(seq=2, commit_no=2))
        peer.sock.sendall(data[:7])
        await settle()
        await first.cancel()
        peer.sock.sendall(data[7:])
    assert second.error is None


async def test_answer_that_arrives_with_the_cancellation_is_not_lost_for_others(channel, script):
    async with calls(channel) as start:
        first = await start("a")
        peer = await script.welcome()
        second = await start("b")
        peer.ok(2)
        first.scope.cancel()
    assert second.error is None


async def test_what_was_read_is_passed_on_by_a_task_that_is_cancelled_meanwhile(
    channel, script, monkeypatch
):
    async with calls(channel) as start:
        first = await start("a")
        peer = await script.welcome()
        second = await start("b")
        assert [await peer.request() for _ in range(2)] == [(1, "a"), (2, "b")]

        async def wait_readable(sock):
            await anyio.wait_readable(sock)
            first.scope.cancel()

        # The task that reads next; the first does when it has seen its own half.
        monkeypatch.setattr(connection, "anyio", Patched(anyio, wait_readable=wait_readable))
        peer.sock.sendall(b"\x00")
        await settle()
        peer.sock.sendall(frame(wire.Ok(seq=2, commit_no=2))[1:])
        await first.ended.wait()
    assert not hasattr(first, "result")
    assert second.error is None


class Patched:
    """A module with some names exchanged."""

    def __init__(self, module, **names):
        self._module = module
        vars(self).update(names)

    def __getattr__(self, name):
        return getattr(self._module, name)


# --- cancelling ------------------------------------------------------------------------------


async def test_call_that_is_cancelled_before_welcome_has_done_nothing(channel, script):
    async with calls(channel) as start:
        first = await start("a")
        peer = await script.accept()
        await first.cancel()
        assert await peer.take() is not None
        assert await peer.take() is None
        await start("b")
        peer = await script.welcome()
        assert await peer.request() == (1, "b")
        peer.ok(1)


async def test_call_of_which_no_byte_has_left_is_taken_back(channel, script):
    big = "x" * 1_000_000  # more than the kernel takes, less than is staged
    async with calls(channel) as start:
        await start("a", value=big)
        peer = await script.welcome()
        second, third = await start("b"), await start("c")
        await second.cancel()
        assert [await peer.request() for _ in range(2)] == [(1, "a"), (3, "c")]
        await peer.nothing()
        peer.ok(1)
        peer.ok(3)
    assert third.error is None


async def test_half_a_request_is_finished_after_its_caller_was_cancelled(channel, script):
    async with calls(channel) as start:
        first = await start("a", value="x" * 1_000_000)
        peer = await script.welcome()
        await settle()
        await first.cancel()
        await start("b")
        assert [await peer.request() for _ in range(2)] == [(1, "a"), (2, "b")]
        peer.ok(1)
        peer.ok(2)


async def test_task_that_writes_for_others_leaves_when_its_answer_is_there(channel, script):
    async with calls(channel) as start:
        await start("a")
        peer = await script.welcome()
        second = await start("b")
        assert [await peer.request() for _ in range(2)] == [(1, "a"), (2, "b")]
        third = await start("c", value="x" * 1_000_000)
        # The first reads, the third writes. Now the second writes, and its answer comes.
        await third.cancel()
        peer.ok(2)
        await second.ended.wait()
        assert await start("d")
        assert [await peer.request() for _ in range(2)] == [(3, "c"), (4, "d")]
        for seq in (1, 3, 4):
            peer.ok(seq)


async def test_reader_and_writer_that_leave_at_once_are_both_followed(channel, script):
    async with calls(channel) as start:
        reader = await start("a")
        peer = await script.welcome()
        await start("b")
        last = await start("c")
        assert [await peer.request() for _ in range(3)] == [(1, "a"), (2, "b"), (3, "c")]
        writer = await start("d", value="x" * 1_000_000)
        reader.scope.cancel()
        writer.scope.cancel()
        peer.ok(3)
        await last.ended.wait()
        assert await peer.request() == (4, "d")
        for seq in (1, 2, 4):
            peer.ok(seq)


async def test_call_that_was_sent_is_sent_again_although_no_task_waits(channel, script):
    async with calls(channel) as start:
        first = await start("a")
        peer = await script.welcome()
        second = await start("b")
        await first.cancel()
        peer.close()
        peer = await script.welcome()
        assert [await peer.request() for _ in range(2)] == [(1, "a"), (2, "b")]
        peer.ok(1)
        peer.ok(2)
    assert second.error is None


async def test_call_that_no_task_waits_for_is_not_sent_again_after_its_timeout(channel, script):
    async with calls(channel) as start:
        first = await start("a", timeout=0.3)
        peer = await script.welcome()
        await peer.take()
        await first.cancel()
        await anyio.sleep(0.8)
        peer.close()
        await start("b")
        peer = await script.welcome()
        assert await peer.request() == (2, "b")
        peer.ok(2)


async def test_sending_that_is_cancelled_takes_back_what_has_not_left(channel, script):
    async with calls(channel) as start:
        await start("a")
        peer = await script.welcome(window=3)
        await peer.take()
        with anyio.move_on_after(0.05):
            await channel.send([change("b"), change("c"), change("d")], 30)
            raise AssertionError("there was room")
        peer.ok(1)
        # The second was sent, the others never will be.
        assert await peer.request() == (2, "b")
        await peer.nothing()


# --- lost connections ------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["closed", "sent away", "bad bytes"])
async def test_everything_unanswered_is_sent_again_in_order(channel, script, end):
    async with calls(channel) as start:
        started = [await start("a")]
        peer = await script.welcome()
        started += [await start("b"), await start("c")]
        peer.ok(2)
        if end == "sent away":
            peer.say(wire.GoAway(last_seq=3, reason="drain"))
        if end == "bad bytes":
            peer.sock.sendall(b"\x00\x00\x00\x01\xc1")
        else:
            peer.close()
        peer = await script.welcome()
        assert [await peer.request() for _ in range(2)] == [(1, "a"), (3, "c")]
        peer.ok(1)
        peer.ok(3)
    assert [call.error for call in started] == [None, None, None]


async def test_same_client_comes_back(channel, script):
    async with calls(channel) as start:
        await start("a")
        first = await script.welcome()
        first.close()
        second = await script.welcome()
        assert second.hello.client_id == first.hello.client_id
        second.ok(1)


async def test_welcome_that_is_not_ready_is_waited_out(channel, script):
    async with calls(channel) as start:
        await start("a")
        peer = await script.accept()
        await peer.take()
        peer.welcome(ready=False)
        await peer.nothing()
        peer.welcome()
        assert await peer.request() == (1, "a")
        peer.ok(1)


async def test_connection_that_ends_before_welcome_is_tried_again(channel, script):
    async with calls(channel) as start:
        await start("a")
        for _ in range(3):
            (await script.accept()).close()
        peer = await script.welcome()
        assert await peer.request() == (1, "a")
        peer.ok(1)


async def test_one_task_connects_for_all_and_may_be_cancelled(channel, script):
    async with calls(channel) as start:
        first = await start("a")
        second, third = await start("b"), await start("c")
        await script.accept()
        await first.cancel()
        peer = await script.welcome()
        assert [(await peer.request())[1] for _ in range(2)] == ["b", "c"]
        peer.ok(1)
        peer.ok(2)
    assert (second.error, third.error) == (None, None)


# --- the window ------------------------------------------------------------------------------


async def test_window_is_kept_and_served_in_the_order_of_coming(channel, script):
    async with calls(channel) as start:
        await start("0")
        peer = await script.welcome(window=4)
        for n in range(1, 12):
            await start(str(n))
        taken = [await peer.request() for _ in range(3)]
        for seq in range(1, 13):
            await peer.nothing()  # three are open
            peer.ok(seq)
            if seq < 10:
                taken.append(await peer.request())
    assert taken == [(n + 1, str(n)) for n in range(12)]


async def test_two_free_places_are_two_requests(channel, script):
    async with calls(channel) as start:
        await start("0")
        peer = await script.welcome(window=3)
        for n in range(1, 4):
            await start(str(n))
        assert [await peer.request() for _ in range(2)] == [(1, "0"), (2, "1")]
        peer.say(wire.Ok(seq=1, commit_no=1), wire.Ok(seq=2, commit_no=2))
        assert [await peer.request() for _ in range(2)] == [(3, "2"), (4, "3")]
        peer.say(wire.Ok(seq=3, commit_no=3), wire.Ok(seq=4, commit_no=4))


async def test_task_that_comes_back_at_once_does_not_push_in(channel, script):
    async with calls(channel) as start, anyio.create_task_group() as tasks:

        async def twice():
            await channel.submit(change("first"), 30)
            await channel.submit(change("again"), 30)

        tasks.start_soon(twice)
        peer = await script.welcome(window=2)
        assert await peer.request() == (1, "first")
        await start("b")
        await start("c")
        for seq, key in enumerate(["b", "c", "again"], 2):
            peer.ok(seq - 1)
            assert await peer.request() == (seq, key)
        peer.ok(4)


async def test_waiting_for_room_survives_a_lost_connection(channel, script):
    async with calls(channel) as start:
        await start("a")
        peer = await script.welcome(window=2)
        await start("b")
        await start("c")
        assert await peer.request() == (1, "a")
        peer.close()
        peer = await script.welcome(window=2)
        for n, key in enumerate("abc", 1):
            assert await peer.request() == (n, key)
            await peer.nothing()
            peer.ok(n)


async def test_room_that_only_cancelled_calls_hold_comes_free(channel, script):
    async with calls(channel) as start:
        first = await start("a")
        peer = await script.welcome(window=2)
        await start("b")
        await first.cancel()
        assert await peer.request() == (1, "a")
        peer.ok(1)
        assert await peer.request() == (2, "b")
        peer.ok(2)


async def test_large_operation_travels_in_parts_within_the_window(channel, script):
    content = "x" * 5_000_000
    async with anyio.create_task_group() as tasks:

        async def submit():
            assert await channel.submit(change("big", content), 30) is None

        tasks.start_soon(submit)
        peer = await script.welcome(window=4)
        parts, seq = [], 0
        while not isinstance(step := decode_operation((await peer.take()).operation), ops.Staged):
            parts.append(step.data)
            seq += 1
            peer.ok(seq)
        peer.ok(seq + 1)
    assert step.parts == len(parts) > 4
    assert decode_operation(b"".join(parts)) == change("big", content)


# --- timeout --------------------------------------------------------------------------------


async def test_without_welcome_nothing_was_done(channel, script):
    with pytest.raises(DeadlineExceeded) as caught:
        await channel.submit(change(), 0.1)
    assert caught.value.executed == "no"


async def test_without_an_answer_the_outcome_is_unknown(channel, script):
    async with calls(channel) as start:
        call = await start(timeout=0.2)
        peer = await script.welcome()
    assert isinstance(call.error, OutcomeUnknown)
    peer.close()
    async with calls(channel) as start:
        await start("b")
        peer = await script.welcome()
        assert await peer.request() == (2, "b")  # the first was given up
        peer.ok(2)


async def test_without_room_nothing_was_done(channel, script):
    async with calls(channel) as start:
        await start("a")
        peer = await script.welcome(window=2)
        call = await start("b", timeout=0.1)
        await peer.take()
        await anyio.sleep(0.2)
        assert isinstance(call.error, DeadlineExceeded)
        await peer.nothing()
        peer.ok(1)


async def test_room_of_a_call_that_was_given_up_comes_free(channel, script):
    async with calls(channel) as start:
        await start("reads")
        peer = await script.welcome(window=3)
        await start("a", timeout=0.3)
        await start("b")
        assert [await peer.request() for _ in range(3)] == [(1, "reads"), (2, "a"), (3, "b")]
        peer.ok(1)
        peer.ok(3)


async def test_of_several_each_learns_what_is_true_of_it(channel, script):
    answers = []
    async with anyio.create_task_group() as tasks:

        async def send():
            answers.extend(await channel.send([change("a"), change("b"), change("c")], 0.2))

        tasks.start_soon(send)
        peer = await script.welcome(window=2)
    sent, *others = answers
    for other in others:
        assert other.done()
        with pytest.raises(DeadlineExceeded) as caught:
            await other.wait()
        assert caught.value.executed == "no"
    with pytest.raises(OutcomeUnknown):
        await sent.wait()
    assert await peer.request() == (1, "a")
    await peer.nothing()


async def test_connection_that_cannot_be_made_again_leaves_it_unknown(channel, script, paths):
    async with calls(channel) as start:
        call = await start(timeout=1)
        peer = await script.welcome()
        await peer.take()
        peer.close()
    assert isinstance(call.error, OutcomeUnknown)


# --- asks ------------------------------------------------------------------------------------


async def test_asks_are_asked_again_on_a_new_connection(channel, script):
    async with anyio.create_task_group() as tasks:

        async def ask():
            assert await channel.statistics() == {"pid": 1}
            await channel.catch_up(7, 30)

        tasks.start_soon(ask)
        peer = await script.welcome()
        assert (await peer.take()).ask == -1
        peer.close()
        peer = await script.welcome()
        assert (await peer.take()).ask == -2
        peer.say(wire.StatusReply(ask=-2, status='{"pid": 1}'))
        assert (await peer.take()).through == 7
        peer.say(wire.Done(ask=-3))


# --- the end ---------------------------------------------------------------------------------


async def test_closing_says_bye_when_nothing_is_open(channel, script):
    async with calls(channel) as start:
        await start()
        peer = await script.welcome()
        await peer.take()
        peer.ok(1)
    await channel.aclose()
    await channel.aclose()
    assert isinstance(await peer.take(), wire.Bye)
    assert await peer.take() is None
    with pytest.raises(Closed):
        await channel.submit(change(), 30)


async def test_closing_ends_those_who_wait(channel, script):
    async with calls(channel) as start:
        sent = await start("a")
        peer = await script.welcome(window=2)
        waits = await start("b")
        await channel.aclose()
    assert isinstance(sent.error, OutcomeUnknown)
    assert isinstance(waits.error, Closed)
    await peer.take()
    assert await peer.take() is None  # no Bye: the answer may still matter


# --- sharing ---------------------------------------------------------------------------------


class User:
    pass


async def test_users_of_one_loop_share_a_channel_and_the_last_closes_it(paths, script):
    one, other = User(), User()
    channel = actor_client.acquire(paths, one)
    assert actor_client.acquire(paths, other) is channel
    assert actor_client.acquire(paths, one) is channel
    async with calls(channel) as start:
        await start()
        peer = await script.welcome()
        await peer.take()
        peer.ok(1)
    await actor_client.release(paths, one)
    await peer.nothing()
    await actor_client.release(paths, other)
    assert isinstance(await peer.take(), wire.Bye)
    assert actor_client.acquire(paths, one) is not channel
    await actor_client.release(paths, one)


def test_nothing_of_a_loop_that_has_ended_is_kept(paths, anyio_backend):
    """Not even if it was never closed, and not its socket."""
    kept = []

    async def use():
        script = Script(paths)
        user = User()
        channel = actor_client.acquire(paths, user)
        kept.append(weakref.ref(channel))
        kept.append(weakref.ref(anyio.lowlevel.current_token().native_token))
        async with calls(channel) as start:
            await start()
            peer = await script.welcome()
            await peer.take()
            await start("b")
            peer.ok(1)
            peer.ok(2)
        script.close()

    anyio.run(use, backend=anyio_backend)
    gc.collect()
    assert [ref() for ref in kept] == [None, None]
