"""Following the changes of a store: the follower without sockets, then both shells."""

import socket
import sqlite3
import threading
from contextlib import closing

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.processes import run_python

from hermes_actor import AsyncSessionDB, SessionDB, errors
from hermes_actor.client.protocol import subscription_protocol
from hermes_actor.client.subscription import ActorChangeStream, Subscription
from hermes_actor.embedded.subscription import EmbeddedChanges
from hermes_actor.engine.change_log import FOREIGN, ChangeLog
from hermes_actor.paths import resolve_paths
from hermes_protocol import messages as wire
from hermes_protocol.framing import FrameBuffer, FrameError, decode_client, frame
from hermes_protocol.messages import Changed, Gap

SECONDS = 20
"""How long a test waits for what must come. No test measures time."""


def changed(number):
    return Changed(commit_no=number, op="meta.set")


# --- the follower ----------------------------------------------------------------------------


def welcome(commit_no=0, **fields):
    fields = {"epoch": 1, "file_id": b"file", "ready": True, **fields}
    return wire.Welcome(
        protocol=1, phase="serving", limits=wire.Limits(), durability="fsync", schema_version=11,
        build="0", pid=1, commit_no=commit_no, **fields,
    )  # fmt: skip


def sent(data):
    buffer = FrameBuffer(1 << 20)
    buffer.feed(data)
    message = decode_client(buffer.next_body())
    assert len(buffer) == 0
    return message


def connect(follower, commit_no=0, **fields):
    """A new connection; the place that the follower asks for."""
    hello = sent(follower.hello())
    assert (hello.client_id, hello.name) == (follower.client_id, "test")
    assert follower.welcome is None
    follower.receive(frame(welcome(commit_no, **fields)))
    assert follower.welcome is not None
    return sent(follower.resend()).after


def hear(follower, *messages):
    follower.receive(b"".join(map(frame, messages)))


def taken(follower):
    return list(iter(follower.next_change, None))


@pytest.fixture
def follower():
    return subscription_protocol("test", None)


def test_begins_where_the_actor_is_when_it_is_met_first(follower):
    assert connect(follower, 41) == 41
    assert connect(follower, 50) == 41  # changes 42 to 50 are not to be missed


def test_begins_at_the_given_place():
    assert connect(subscription_protocol("test", after=7), 41) == 7
    assert connect(subscription_protocol("test", after=0), 41) == 0


def test_welcome_that_is_not_ready_says_nothing(follower):
    follower.hello()
    hear(follower, welcome(99, ready=False))
    assert follower.welcome is None
    hear(follower, welcome(5))
    assert sent(follower.resend()).after == 5


def test_changes_come_in_order_and_the_place_moves(follower):
    connect(follower)
    hear(follower, changed(1), changed(2), changed(3))
    assert follower.next_change() == changed(1)
    assert connect(follower, 3) == 3  # what has arrived is not asked for again
    assert taken(follower) == [changed(2), changed(3)]


def test_changes_that_are_known_are_not_delivered_twice(follower):
    connect(follower, 2)
    hear(follower, changed(1), changed(2), changed(3), changed(3), changed(4))
    assert taken(follower) == [changed(3), changed(4)]


@pytest.mark.parametrize("size", [1, 3, 7])
def test_pieces_of_any_size(follower, size):
    connect(follower)
    data = b"".join(frame(changed(n)) for n in range(1, 6))
    for start in range(0, len(data), size):
        follower.receive(data[start : start + size])
    assert taken(follower) == [changed(n) for n in range(1, 6)]


def test_half_a_frame_of_an_old_connection_is_forgotten(follower):
    connect(follower)
    follower.receive(frame(changed(1))[:5])
    assert connect(follower, 1) == 0
    hear(follower, changed(1))
    assert taken(follower) == [changed(1)]


def test_gap_moves_the_place_forwards_and_back(follower):
    connect(follower, 5)
    hear(follower, Gap(after=5, through=90), changed(91))
    assert connect(follower, 91) == 91
    hear(follower, Gap(after=91, through=12), changed(13))
    assert taken(follower) == [Gap(after=5, through=90), changed(91), Gap(after=91, through=12),
                               changed(13)]  # fmt: skip


def test_hole_is_delivered_as_a_gap(follower):
    connect(follower)
    hear(follower, changed(1), changed(4))
    assert taken(follower) == [changed(1), Gap(after=1, through=3), changed(4)]


def test_foreign_change_has_no_place(follower):
    connect(follower, 3)
    hear(follower, FOREIGN, changed(4), FOREIGN)
    assert taken(follower) == [FOREIGN, changed(4), FOREIGN]
    assert connect(follower, 4) == 4


@pytest.mark.parametrize("other", [{"file_id": b"other"}, {"epoch": 6}])
def test_another_file_is_a_gap_whatever_its_numbers_are(follower, other):
    connect(follower, 5, epoch=7)
    assert connect(follower, 90, **{"epoch": 8, **other}) == 90
    hear(follower, changed(91))
    assert taken(follower) == [Gap(after=5, through=90), changed(91)]


def test_next_owner_of_the_same_file_is_no_gap(follower):
    connect(follower, 5, epoch=7)
    assert connect(follower, 90, epoch=8) == 5
    assert taken(follower) == []


def test_go_away_says_nothing(follower):
    connect(follower)
    hear(follower, changed(1), wire.GoAway(last_seq=0, reason="drain"), changed(2))
    assert taken(follower) == [changed(1), changed(2)]


def test_reject_is_the_typed_error(follower):
    follower.hello()
    with pytest.raises(errors.Damaged):
        hear(follower, wire.Reject(code="damaged", message="no"))
    with pytest.raises(errors.IncompatibleProtocol, match="2 to 4"):
        hear(follower, wire.Reject(code="protocol", message="no", oldest=2, newest=4))


@pytest.mark.parametrize("data", [b"\x00\x00\x00\x01\xc1", frame(wire.Ok(seq=1, commit_no=1))])
def test_what_an_actor_does_not_say_is_a_frame_error(follower, data):
    connect(follower)
    with pytest.raises(FrameError):
        follower.receive(data)


def test_child_goes_on_from_the_same_place_as_another_client(follower):
    connect(follower, 5)
    hear(follower, changed(6), changed(7))
    child = follower.forked()
    assert child.client_id != follower.client_id
    assert taken(child) == taken(follower) == [changed(6), changed(7)]
    assert connect(child, 9) == 7


class History:
    """The ring of the product behind a wire that can be cut; a restart forgets the ring."""

    def __init__(self):
        self.commit_no, self.epoch, self.on_its_way = 0, 1, b""
        self.ring = ChangeLog(4)

    def commit(self):
        self.commit_no += 1
        self.ring.add([changed(self.commit_no)])

    def restart(self):
        self.epoch += 1
        self.ring = ChangeLog(4)
        self.ring.begin(self.commit_no)

    def connect(self, follower):
        self.on_its_way = b""
        after = connect(follower, self.commit_no, epoch=self.epoch)
        self.position, gap = self.ring.position_after(after)
        if gap is not None:
            self.on_its_way += frame(gap)

    def tell(self):
        items, self.position = self.ring.read(self.position, 2)
        self.on_its_way += b"".join(map(frame, items))

    def pass_on(self, follower, amount):
        data, self.on_its_way = self.on_its_way[:amount], self.on_its_way[amount:]
        follower.receive(data)


STEPS = st.sampled_from(["commit", "commit", "tell", "pass on", "connect", "restart", "foreign"])


@given(st.lists(st.tuples(STEPS, st.integers(1, 80))), st.booleans())
def test_every_change_is_delivered_once_or_in_a_gap_whatever_happens(steps, late):
    follower, history = subscription_protocol("test", after=0 if late else None), History()
    if late:
        history.commit()
    history.connect(follower)
    for step, amount in [*steps, ("connect", 0), *[("tell", 0)] * 9, ("pass on", 10_000)]:
        if step == "foreign":
            history.ring.add([FOREIGN])
        elif step == "pass on":
            history.pass_on(follower, amount)
        elif step == "connect":
            history.connect(follower)
        elif step == "restart":
            history.restart()
            history.connect(follower)
        else:
            getattr(history, step)()
    reached = 0
    for change in taken(follower):
        if isinstance(change, Gap):
            assert change.after == reached
            reached = change.through
        elif change.commit_no is not None:
            assert change.commit_no == reached + 1
            reached = change.commit_no
    assert reached == history.commit_no


# --- the ring of a writer in this process ----------------------------------------------------


class Stopped:
    """As much of a writer as its followers look at."""

    stopped = False

    def check_process(self):
        pass


def test_follower_that_falls_out_of_the_ring_sees_the_gap():
    ring = ChangeLog(3)
    changes = EmbeddedChanges(Stopped(), ring, None)
    ring.add([changed(n) for n in range(1, 6)])
    assert [changes.take() for _ in range(5)] == [
        Gap(after=0, through=2), changed(3), changed(4), changed(5), None,
    ]  # fmt: skip
    changes = EmbeddedChanges(Stopped(), ring, 1)
    assert [changes.take() for _ in range(2)] == [Gap(after=1, through=2), changed(3)]
    changes = EmbeddedChanges(Stopped(), ring, 99)
    assert [changes.take() for _ in range(2)] == [Gap(after=99, through=5), None]


def test_follower_that_is_forgotten_is_forgotten_by_the_ring():
    ring = ChangeLog()
    EmbeddedChanges(Stopped(), ring, None)
    assert ring._listeners == []


# --- blocking --------------------------------------------------------------------------------


def numbers(subscription, count):
    return [subscription.get(SECONDS).commit_no for _ in range(count)]


def test_every_change_of_every_client_is_delivered_in_order(open_store, db, tmp_path):
    with db.subscribe() as changes:
        other = open_store(tmp_path / "state.db")
        other.create_session("s", "cli")
        db.append_message("s", "user", "x")
        with other.pipeline() as p:
            p.set_session_title("s", "t")
            p.set_meta("k", "v")
        found = [next(changes) for _ in range(4)]
        assert changes.get(0) is None
    assert [(c.commit_no, c.op, c.session_id) for c in found] == [
        (1, "session.create", "s"),
        (2, "message.append", "s"),
        (3, "session.title", "s"),
        (4, "meta.set", None),
    ]


def test_begins_now_or_at_the_given_place(db):
    for n in range(3):
        db.set_meta("k", str(n))
    with db.subscribe() as now, db.subscribe(after=1) as before:
        db.set_meta("k", "4")
        assert numbers(now, 1) == [4]
        assert numbers(before, 3) == [2, 3, 4]


def test_number_that_is_yet_to_come_is_a_gap(db):
    with db.subscribe(after=77) as changes:
        db.set_meta("k", "v")
        assert changes.get(SECONDS) == Gap(after=77, through=0)
        assert numbers(changes, 1) == [1]


def test_refused_change_is_not_delivered(db):
    with db.subscribe() as changes:
        with pytest.raises(errors.ConstraintFailed):
            db.append_message("nobody", "user", "x")
        db.set_meta("k", "v")
        assert changes.get(SECONDS).op == "meta.set"


def test_program_outside_is_noticed(db):
    db.set_meta("k", "v")
    with db.subscribe() as changes:
        with closing(sqlite3.connect(db.db_path)) as conn, conn:
            conn.execute("UPDATE state_meta SET value = 'w'")
        assert changes.get(SECONDS) == Changed(commit_no=None, op="foreign")


def test_time_out(db):
    with db.subscribe() as changes:
        assert changes.get(0) is None
        assert changes.get(0.01) is None
        assert changes.get(-1) is None
        db.set_meta("k", "v")
        assert numbers(changes, 1) == [1]


def in_thread(function):
    """Run in a thread; the function that waits for its result."""
    results = []

    def run():
        try:
            results.append(function())
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def end():
        thread.join(SECONDS)
        assert not thread.is_alive()
        return results[0]

    return end


@pytest.mark.parametrize("late", [False, True])
def test_closing_ends_a_blocked_iteration(db, late):
    changes = db.subscribe()
    db.set_meta("k", "v")
    begun = threading.Event()
    end = in_thread(lambda: [begun.set() or c.commit_no for c in changes])
    if late:
        begun.wait(SECONDS)
    changes.close()
    changes.close()
    assert end() in ([], [1])
    assert list(changes) == []


def test_closing_ends_a_blocked_get(db):
    changes = db.subscribe()
    end = in_thread(lambda: changes.get(SECONDS))
    changes.close()
    assert isinstance(end(), errors.Closed)
    with pytest.raises(errors.Closed):
        changes.get(0)


def test_threads_take_turns(db):
    with db.subscribe() as changes:
        ends = [in_thread(lambda: numbers(changes, 25)) for _ in range(4)]
        with db.pipeline() as p:
            for n in range(100):
                p.set_meta("k", str(n))
        found = [end() for end in ends]
    assert sorted(n for part in found for n in part) == list(range(1, 101))
    assert all(part == sorted(part) for part in found)


def test_closed_store_cannot_be_followed(db):
    db.close()
    with pytest.raises(errors.Closed):
        db.subscribe()


def test_end_of_the_writer_in_this_process_ends_the_iteration(tmp_path):
    db = SessionDB(tmp_path / "state.db", mode="embedded")
    changes = db.subscribe()
    db.set_meta("k", "v")
    end = in_thread(lambda: [c.commit_no for c in changes])
    db.close()
    assert end() == [1]


def test_connection_of_its_own_outlives_the_store(tmp_path):
    db = SessionDB(tmp_path / "state.db", mode="actor")
    with db.subscribe() as changes:
        db.close()
        db = SessionDB(tmp_path / "state.db", mode="actor")
        db.set_meta("k", "v")
        assert numbers(changes, 1) == [1]
    db.close()


# An actor that does what the test says.


class Script:
    def __init__(self, path):
        self.paths = resolve_paths(path)
        self.paths.folder.mkdir(mode=0o700)
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sock.bind(str(self.paths.sock))
        self._sock.listen()
        self._sock.settimeout(SECONDS)
        self._peers = []

    def serve(self, *answers, commit_no=0):
        """Take a connection: Welcome, then the answers. Returns the place that is asked for."""
        peer = self._sock.accept()[0]
        self._peers.append(peer)
        buffer, messages = FrameBuffer(1 << 20), []
        peer.sendall(frame(welcome(commit_no)))
        while len(messages) < 2:
            buffer.feed(peer.recv(65536))
            while (body := buffer.next_body()) is not None:
                messages.append(decode_client(body))
        peer.sendall(b"".join(a if isinstance(a, bytes) else frame(a) for a in answers))
        return messages[1].after

    def cut(self):
        self._peers.pop().close()

    def close(self):
        for sock in (self._sock, *self._peers):
            sock.close()


@pytest.fixture
def script(tmp_path):
    with closing(Script(tmp_path / "state.db")) as script:
        yield script


def follow(script, *answers, timeout=30.0):
    served = in_thread(lambda: script.serve(*answers))
    subscription = Subscription(ActorChangeStream(script.paths, None, timeout))
    assert served() == 0
    return subscription


@pytest.mark.parametrize("end", [b"", b"\x00\x00\x00\x01\xc1", frame(changed(3))[:9]])
def test_lost_connection_is_made_again_behind_the_last_change(script, end):
    with follow(script, changed(1), changed(2), end) as changes:
        assert numbers(changes, 2) == [1, 2]
        script.cut()
        served = in_thread(lambda: script.serve(changed(3), commit_no=3))
        assert numbers(changes, 1) == [3]
        assert served() == 2


def test_closing_ends_a_reconnection(script):
    with follow(script) as changes:
        script.cut()
        end = in_thread(lambda: changes.get(SECONDS))  # connects; no Welcome comes
        changes.close()
        assert isinstance(end(), errors.Closed)


def test_time_out_holds_during_a_reconnection(script):
    with follow(script) as changes:
        script.cut()
        assert changes.get(0.05) is None
        assert changes.get(0) is None


def test_without_an_actor_the_error_says_so_and_the_next_call_tries_again(script):
    with follow(script, changed(1), timeout=0.2) as changes:
        assert numbers(changes, 1) == [1]
        script.cut()
        with pytest.raises(errors.DeadlineExceeded):
            changes.get(SECONDS)
        for waiting in range(20):  # tries of before, without an answer
            script._sock.settimeout(0.05)
            try:
                script._peers.append(script._sock.accept()[0])
            except TimeoutError:
                assert waiting
                break
        script._sock.settimeout(SECONDS)
        served = in_thread(lambda: script.serve(changed(2), commit_no=2))
        assert numbers(changes, 1) == [2]
        assert served() == 1


# --- asynchronous ----------------------------------------------------------------------------


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


@pytest.fixture
async def adb(mode, tmp_path, anyio_backend):
    async with AsyncSessionDB(tmp_path / "state.db", mode=mode) as adb:
        yield adb


async def anumbers(subscription, count):
    with anyio.fail_after(SECONDS):
        return [(await subscription.get()).commit_no for _ in range(count)]


@pytest.mark.anyio
async def test_async_follows(adb):
    async with adb.subscribe() as changes:
        await adb.create_session("s", "cli")
        await adb.append_message("s", "user", "x")
        found = []
        async for change in changes:
            found.append((change.commit_no, change.op, change.session_id))
            if len(found) == 2:
                break
        assert await changes.get(0) is None
    assert found == [(1, "session.create", "s"), (2, "message.append", "s")]


@pytest.mark.anyio
async def test_async_begins_with_the_block_or_the_first_question(adb):
    await adb.set_meta("k", "1")
    waiting, late = adb.subscribe(), adb.subscribe(after=0)
    async with waiting:
        await adb.set_meta("k", "2")
        assert await anumbers(waiting, 1) == [2]
    assert await anumbers(late, 2) == [1, 2]
    await late.aclose()
    await adb.subscribe().aclose()


@pytest.mark.anyio
async def test_async_cancelled_wait_loses_nothing(adb):
    async with adb.subscribe() as changes:
        found = []
        for n in range(30):
            with anyio.move_on_after(0.001):
                await adb.set_meta("k", str(n))
            with anyio.move_on_after(0.001):
                found.append((await changes.get()).commit_no)
        await adb.set_meta("k", "the last")
        while (change := await changes.get(0.5)) is not None:
            found.append(change.commit_no)
    assert found == list(range(1, len(found) + 1))
    assert await adb.get_meta("k") == "the last"


@pytest.mark.anyio
async def test_async_closing_ends_those_who_wait(adb):
    iterated, asked = adb.subscribe(), adb.subscribe()
    ends = []

    async def iterate():
        ends.append([change async for change in iterated])

    async def ask():
        with pytest.raises(errors.Closed):
            await asked.get()
        ends.append("asked")

    with anyio.fail_after(SECONDS):
        async with iterated, asked, anyio.create_task_group() as tasks:
            tasks.start_soon(iterate)
            tasks.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            await iterated.aclose()
            await asked.aclose()
    assert len(ends) == 2
    assert [change async for change in iterated] == []
    with pytest.raises(errors.Closed):
        await iterated.get(0)


@pytest.mark.anyio
async def test_async_is_for_one_task_at_a_time(adb):
    async with adb.subscribe() as changes, anyio.create_task_group() as tasks:
        tasks.start_soon(changes.get)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(anyio.BusyResourceError):
            await changes.get(0)
        tasks.cancel_scope.cancel()


def test_program_ends_although_a_wait_was_cancelled(tmp_path, mode, anyio_backend):
    """The thread in which an embedded writer is waited for does not stay behind."""
    code = """
        import sys
        from pathlib import Path
        import anyio
        from hermes_actor import AsyncSessionDB, SessionDB

        blocking = SessionDB(Path(sys.argv[1]), mode=sys.argv[2])

        async def main():
            async with AsyncSessionDB(blocking) as db:
                changes = db.subscribe()
                with anyio.move_on_after(0.05):
                    await changes.get()
            print("1", flush=True)

        anyio.run(main, backend=sys.argv[3])
    """
    assert run_python(code, tmp_path / "state.db", mode, anyio_backend) == 1
