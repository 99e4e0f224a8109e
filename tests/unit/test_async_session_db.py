"""The awaitable twin, under asyncio and under trio."""

import inspect

import anyio
import pytest

from hermes_actor import AsyncSessionDB, SessionDB
from hermes_actor.errors import ConstraintFailed, TitleInUse

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


async def test_same_results_as_the_blocking_twin(mode, tmp_path):
    async with AsyncSessionDB(tmp_path / "state.db", mode=mode) as db:
        assert await db.create_session("s", "cli", model="m") == "s"
        assert await db.append_message("s", "user", content="hello 北京") == 1
        assert [m["content"] for m in await db.get_messages("s")] == ["hello 北京"]
        assert [m["id"] for m in await db.search_messages("hello")] == [1]
        assert (await db.list_sessions_rich())[0]["preview"] == "hello 北京"
        await db.set_session_title("s", "T")
        with pytest.raises(TitleInUse):
            await db.set_session_title("other", "T")


async def test_takes_an_open_store_and_leaves_it_open(mode, tmp_path):
    blocking = SessionDB(tmp_path / "state.db", mode=mode)
    async with AsyncSessionDB(blocking) as db:
        await db.create_session("s", "cli")
    assert blocking.get_session("s")["source"] == "cli"
    blocking.close()


async def test_opens_once_however_many_call_at_first(mode, tmp_path):
    async with AsyncSessionDB(tmp_path / "state.db", mode=mode) as db:
        async with anyio.create_task_group() as tasks:
            for n in range(20):
                tasks.start_soon(db.create_session, f"s{n}", "cli")
        assert await db.session_count() == 20


async def test_pipeline_keeps_order_and_raises_the_first_error(mode, tmp_path):
    async with AsyncSessionDB(tmp_path / "state.db", mode=mode) as db:
        async with db.pipeline() as p:
            p.create_session("s", "cli")
            answers = [p.append_message("s", "user", str(n)) for n in range(100)]
        assert [answer.result() for answer in answers] == list(range(1, 101))
        p = await db.pipeline().__aenter__()
        p.append_message("nobody", "user", "x")
        p.append_message("s", "user", "kept")
        with pytest.raises(ConstraintFailed):
            p.__exit__(None)
        assert (await db.get_messages("s"))[-1]["content"] == "kept"


async def test_event_loop_is_not_held_up(mode, tmp_path):
    """While one call waits inside a transaction of another, the loop goes on."""
    async with AsyncSessionDB(tmp_path / "state.db", mode=mode) as db:
        await db.create_session("s", "cli")
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                await anyio.sleep(0.001)
                ticks += 1

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(tick)
            for n in range(20):
                await db.append_message("s", "user", str(n))
            tasks.cancel_scope.cancel()
        assert ticks > 0


def test_every_public_method_is_there():
    db = AsyncSessionDB()
    for name, member in inspect.getmembers(SessionDB, callable):
        if not name.startswith("_") and name not in ("close", "pipeline"):
            assert inspect.iscoroutinefunction(getattr(db, name)), name
            assert getattr(db, name).__doc__ == member.__doc__


def test_unknown_method_is_refused():
    with pytest.raises(AttributeError, match="no_such_method"):
        _ = AsyncSessionDB().no_such_method
