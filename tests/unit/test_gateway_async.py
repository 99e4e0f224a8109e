"""AsyncSessionStore and its turns, on asyncio and on trio: what a block leaves, however it ends."""

import inspect

import anyio
import pytest

from hermes_actor import AsyncSessionDB, SessionDB
from hermes_actor.errors import TurnBusy
from hermes_actor.gateway import (
    AsyncSessionStore,
    GatewayConfig,
    Hooks,
    SessionSource,
    SessionStore,
)
from hermes_actor.gateway.async_store import AsyncChatTurn
from hermes_actor.gateway.turns import ChatTurn

DM = SessionSource(platform="echo", chat_id="1")

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


@pytest.fixture
def store(tmp_path):
    db = SessionDB(tmp_path / "state.db", mode="embedded")
    store = SessionStore(config=GatewayConfig(), db=db, hooks=Hooks(entry_points=False))
    yield store
    store.close()
    db.close()


@pytest.fixture
def chats(store):
    return AsyncSessionStore(store)


def contents(store, session_id):
    return [one["content"] for one in store.db.get_messages(session_id)]


async def test_turn_stores_question_and_answer(chats, store):
    async with chats.begin_turn(DM, "hello", message_key="m1") as turn:
        with pytest.raises(TurnBusy):
            await anyio.to_thread.run_sync(lambda: store.begin_turn(DM, "again", wait=0))
        assert [one["content"] for one in await turn.history()] == ["hello"]
        await turn.renew()
        await turn.append("assistant", "hi")
        store.db.append_message(turn.session_id, "tool", "x", turn=turn)
    assert contents(store, turn.session_id) == ["hello", "hi", "x"]
    assert store.db.list_turns() == []
    async with chats.begin_turn(DM, "hello", message_key="m1") as repeated:
        assert repeated.is_repeated
        assert repeated.session_id == turn.session_id


async def test_turn_that_was_finished_inside_its_block_is_not_finished_again(chats, store):
    async with chats.begin_turn(DM, "one") as turn:
        await turn.finish(last_prompt_tokens=7)
        async with chats.begin_turn(DM, "two"):
            pass
    entry = await chats.get_or_create_session(DM)
    assert (entry.session_id, entry.last_prompt_tokens) == (turn.session_id, 7)
    async with chats.begin_turn(DM, "three") as turn:
        await turn.fail()
    assert (await chats.get_or_create_session(DM)).resume_pending


async def test_error_inside_marks_the_chat_and_is_the_one_to_see(chats, store):
    with pytest.raises(ZeroDivisionError):
        async with chats.begin_turn(DM, "hello"):
            raise ZeroDivisionError
    assert store.db.list_turns() == []
    assert (await chats.get_or_create_session(DM)).resume_pending


async def test_cancelled_turn_is_given_back(chats, store):
    with anyio.CancelScope() as scope:
        async with chats.begin_turn(DM, "hello"):
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert store.db.list_turns() == []
    assert (await chats.get_or_create_session(DM)).resume_pending


async def test_cancelled_waiter_stands_in_the_line_no_longer(store):
    store.db.create_session("s", "cli")
    async with AsyncSessionDB(store.db) as db:
        async with db.turn("s"):
            with anyio.move_on_after(0.3) as scope:
                async with db.turn("s", wait=60):
                    pytest.fail("another one has the turn")
            assert scope.cancelled_caught
            assert await db.list_turn_waiters() == []
        async with db.turn("s"):
            pass


async def test_more_waiting_messages_than_threads_do_not_stop_the_answer(chats, store):
    """Those who wait for a chat are as many as come; the one who answers needs a thread."""
    asked = 60  # anyio has 40 threads

    async def ask(number):
        async with chats.begin_turn(DM, f"q{number}", wait=60):
            pass

    async with anyio.create_task_group() as tasks, chats.begin_turn(DM, "first") as turn:
        for number in range(asked):
            tasks.start_soon(ask, number)
        with anyio.fail_after(30):
            line = store.db.list_turn_waiters
            while len(await anyio.to_thread.run_sync(line)) < asked:  # noqa: ASYNC110
                await anyio.sleep(0.01)
            await turn.append("assistant", "answer")
    said = contents(store, turn.session_id)
    assert said[:2] == ["first", "answer"]
    assert sorted(said[2:]) == sorted(f"q{number}" for number in range(asked))


async def test_cancelled_message_that_waits_ends_at_once(chats, store):
    async with chats.begin_turn(DM, "hello") as turn:
        with anyio.fail_after(30):
            with anyio.move_on_after(0.3) as scope:
                async with chats.begin_turn(DM, "again", wait=3600):
                    pytest.fail("another one has the turn")
        assert scope.cancelled_caught
        assert store.db.list_turn_waiters() == []
    assert contents(store, turn.session_id) == ["hello"]


async def test_turn_goes_on_in_a_continuation(chats, store):
    async with chats.begin_turn(DM, "hello") as turn:
        before = turn.session_id
        after = await turn.compress([{"role": "user", "content": "summary"}])
        assert turn.session_id == after != before
        await turn.append("assistant", "hi")
    assert contents(store, after) == ["summary", "hi"]
    assert await chats.peek_session_id(turn.entry.session_key) == after


def test_async_turn_has_everything_that_a_turn_has():
    def public(kind):
        return {name for name in vars(kind) if not name.startswith("_")} - {"session_id"}

    assert public(AsyncChatTurn) == public(ChatTurn)
    for name in public(ChatTurn) - {"history"}:
        ours, theirs = getattr(AsyncChatTurn, name), getattr(ChatTurn, name)
        assert str(inspect.signature(ours)) == str(inspect.signature(theirs))
        assert inspect.iscoroutinefunction(ours)
