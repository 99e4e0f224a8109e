"""The awaitable twin, under asyncio and under trio; and pipelines, which share its ground."""

import inspect
import threading

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

import hermes_protocol.operations as ops
from hermes_actor import AsyncSessionDB, SessionDB
from hermes_actor.api.change import build, is_one_change
from hermes_actor.errors import Closed, ConstraintFailed, SessionEnded, TitleInUse
from hermes_actor.pipeline import AsyncPipeline, Pipeline

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
    with pytest.raises(Closed):
        await AsyncSessionDB(blocking).create_session("t", "cli")


async def test_opens_once_however_many_call_at_first(mode, tmp_path):
    async with AsyncSessionDB(tmp_path / "state.db", mode=mode) as db:
        async with anyio.create_task_group() as tasks:
            for n in range(20):
                tasks.start_soon(db.create_session, f"s{n}", "cli")
        assert await db.session_count() == 20


async def test_several_objects_and_calls_after_closing(mode, tmp_path):
    one = AsyncSessionDB(tmp_path / "state.db", mode=mode)
    async with one, AsyncSessionDB(tmp_path / "state.db", mode=mode) as other:
        await one.create_session("s", "cli")
        await one.aclose()
        assert await other.append_message("s", "user", "x") == 1
        assert await one.append_message("s", "user", "y") == 2  # opens again


def test_one_loop_after_the_other(mode, tmp_path, anyio_backend):
    async def use():
        async with AsyncSessionDB(tmp_path / "state.db", mode=mode) as db:
            await db.create_session("s", "cli")
            return await db.append_message("s", "user", "x")

    assert [anyio.run(use, backend=anyio_backend) for _ in range(3)] == [1, 2, 3]


def test_loops_of_several_threads_share_one_object(mode, tmp_path, anyio_backend):
    db, reads, writes = AsyncSessionDB(tmp_path / "state.db", mode=mode), 20, 10

    async def read():
        assert (await db.get_session("s"))["id"] == "s"

    async def use(name):
        await db.ensure_session("s", "cli")
        async with anyio.create_task_group() as tasks:
            for n in range(writes):
                tasks.start_soon(db.append_message, "s", "user", f"{name} {n}")
            for _ in range(reads):
                tasks.start_soon(read)
        async with db.pipeline() as lines:
            lines.append_message("s", "user", f"{name} last")

    def run(number):
        for turn in range(3):
            anyio.run(use, f"{number} {turn}", backend=anyio_backend)

    async def count_and_close():
        found = await db.message_count()
        await db.aclose()
        return found

    threads = [threading.Thread(target=run, args=(n,), daemon=True) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert anyio.run(count_and_close, backend=anyio_backend) == 4 * 3 * (writes + 1)


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
        if not name.startswith("_") and name not in ("close", "pipeline", "subscribe", "turn"):
            assert inspect.iscoroutinefunction(getattr(db, name)), name
            assert getattr(db, name).__doc__ == member.__doc__


def test_unknown_method_is_refused():
    with pytest.raises(AttributeError, match="no_such_method"):
        _ = AsyncSessionDB().no_such_method


# --- methods that make one change ------------------------------------------------------------

PREPARED = [
    ("create_session", ("s", "cli"), {"model": "m", "model_config": {"a": 1}}),
    ("create_session", ("old", "telegram"), {"user_id": "u"}),
    ("append_message", ("s", "user", "one"), {}),
]

CALLS = [
    ("create_session", ("new", "cli"), {"system_prompt": "p"}),
    ("create_session", ("s", "again"), {}),
    ("ensure_session", ("ensured",), {}),
    ("continue_session", ("s", "child"), {}),
    ("end_session", ("s", "done"), {}),
    ("reopen_session", ("s",), {}),
    ("update_system_prompt", ("s", "prompt"), {}),
    ("update_token_counts", ("s",), {"input_tokens": 5, "model": "m2"}),
    ("set_session_title", ("s", "  a   title "), {}),
    ("set_session_title", ("nobody", "t"), {}),
    ("append_message", ("s", "assistant", ["a", {"b": "北京"}]), {"tool_calls": [{"id": 1}]}),
    ("append_message", ("s", "user", "two"), {}),
    ("replace_messages", ("s", [{"role": "user", "content": "n"}]), {}),
    ("clear_messages", ("s",), {}),
    ("set_meta", ("k", "v"), {}),
    ("vacuum", (), {}),
    ("request_handoff", ("s", "telegram"), {}),
    ("request_handoff", ("nobody", "telegram"), {}),
    ("claim_handoff", ("s",), {}),
    ("complete_handoff", ("s",), {}),
    ("fail_handoff", ("s", "e" * 600), {}),
    ("finalize_orphaned_compression_sessions", (), {}),
    ("apply_telegram_topic_migration", (), {}),
    ("enable_telegram_topic_mode", (), {"chat_id": 1, "user_id": 2}),
    ("disable_telegram_topic_mode", (), {"chat_id": 1}),
    (
        "bind_telegram_topic",
        (),
        {"chat_id": 1, "thread_id": 2, "user_id": 3, "session_key": "k", "session_id": "old"},
    ),
    ("archive_session", ("s",), {}),
    ("archive_session", ("s",), {"archived": False}),
    ("move_session_title", ("s", "moved"), {}),
    ("queue_title", ("later", "kept"), {}),
    ("create_session", ("later", "cli"), {}),
    ("import_session", (ops.SessionRow(id="i", source="cli", started_at=1.0), []), {}),
    # Refused by the writer, by the method, by the call itself.
    ("append_message", ("nobody", "user", "x"), {}),
    ("continue_session", ("nobody",), {}),
    ("set_session_title", ("s", "x" * 101), {}),
    ("append_message", ("s", "user", "\ud800"), {}),
    ("create_session", ("s",), {}),
    # Lone surrogates outside the text of a message.
    ("create_session", ("broken", "c\ud800li"), {"system_prompt": "\udfff"}),
    ("append_message", ("s", "user", "x"), {"reasoning": "\ud800", "finish_reason": "\udfff"}),
    ("set_meta", ("k\ud800", "\ud800"), {}),
    ("replace_messages", ("s", [{"role": "user", "content": "\ud800"}]), {}),
]

TABLES = {
    "sessions": "SELECT * FROM sessions ORDER BY id",
    "messages": "SELECT * FROM messages ORDER BY id",
    "meta": "SELECT * FROM state_meta ORDER BY key",
    "topics": "SELECT count(*) FROM sqlite_master WHERE name LIKE '%topic%'",
}


def shown(function):
    """What a call returns or raises."""
    try:
        return repr(function())
    except Exception as error:
        return type(error), str(error)


def prepared(path, mode):
    db = SessionDB(path, mode=mode)
    for name, args, kwargs in PREPARED:
        getattr(db, name)(*args, **kwargs)
    return db


def rows(db):
    return {name: list(map(tuple, db._conn.execute(sql))) for name, sql in TABLES.items()}


@pytest.fixture
def expected(clock, tmp_path, mode):
    """What the calls return on a blocking store, one by one, and what is in it then."""
    db = prepared(tmp_path / "expected.db", mode)
    outcomes = [shown(lambda c=c: getattr(db, c[0])(*c[1], **c[2])) for c in CALLS]
    # Errors name the file; the other stores are called state.db.
    outcomes = [
        one if isinstance(one, str) else (one[0], one[1].replace("expected.db", "state.db"))
        for one in outcomes
    ]
    yield outcomes, rows(db)
    db.close()


def test_every_method_of_one_change_is_called():
    def public(cls):
        return {name for name, _ in inspect.getmembers(cls, callable) if name[0] != "_"}

    changes = {name for name in public(SessionDB) if hasattr(getattr(SessionDB, name), "builder")}
    assert {name for name, _, _ in CALLS} == changes
    assert public(Pipeline) == public(AsyncPipeline) == changes | {"flush"}


async def test_results_and_effects_are_those_of_the_method(clock, tmp_path, mode, expected):
    blocking = prepared(tmp_path / "state.db", mode)
    outcomes = []
    async with AsyncSessionDB(blocking) as db:
        for name, args, kwargs in CALLS:
            try:
                outcomes.append(repr(await getattr(db, name)(*args, **kwargs)))
            except Exception as error:
                outcomes.append((type(error), str(error)))
    assert (outcomes, rows(blocking)) == expected
    blocking.close()


def queue_all(pipeline):
    """Every call; its answer, or what was raised at once."""
    for name, args, kwargs in CALLS:
        try:
            yield getattr(pipeline, name)(*args, **kwargs), None
        except Exception as error:
            yield None, (type(error), str(error))


def answers_of(queued):
    return [raised if answer is None else shown(answer.result) for answer, raised in queued]


def test_pipeline_has_the_results_and_effects_of_the_methods(clock, tmp_path, mode, expected):
    db = prepared(tmp_path / "state.db", mode)
    queued = []

    def fill():
        with db.pipeline() as p:
            queued.extend(queue_all(p))
            assert shown(queued[0][0].result) == "'new'"

    with pytest.raises(ConstraintFailed):
        fill()
    assert all(answer is None or answer.done() for answer, _ in queued)
    assert (answers_of(queued), rows(db)) == expected
    db.close()


async def test_async_pipeline_has_them_too(clock, tmp_path, mode, expected):
    blocking = prepared(tmp_path / "state.db", mode)
    queued = []

    async def fill():
        async with db.pipeline() as p:
            queued.extend(queue_all(p))
            assert await queued[0][0] == "new"

    async with AsyncSessionDB(blocking) as db:
        with pytest.raises(ConstraintFailed):
            await fill()
        assert all(answer is None or answer.done() for answer, _ in queued)
    assert (answers_of(queued), rows(blocking)) == expected
    blocking.close()


async def test_writes_take_no_thread(tmp_path, monkeypatch):
    blocking = prepared(tmp_path / "state.db", "actor")
    async with AsyncSessionDB(blocking) as db:

        async def refuse(*args, **kwargs):
            raise AssertionError("a worker thread")

        with monkeypatch.context() as patch:
            patch.setattr(anyio.to_thread, "run_sync", refuse)
            for name, args, kwargs in CALLS[:20]:
                await getattr(db, name)(*args, **kwargs)
            async with db.pipeline() as p:
                answers = [p.append_message("s", "user", str(n)) for n in range(200)]
            assert [await answer for answer in answers] == list(range(5, 205))
            async with db.subscribe() as changes:
                await db.append_message("s", "user", "x")
                assert (await changes.get()).op == "message.append"
            with pytest.raises(AssertionError, match="a worker thread"):
                await db.get_messages("s")
    blocking.close()


async def test_method_of_a_subclass_runs_as_it_is(mode, tmp_path):
    class Twice(SessionDB):
        def append_message(self, *args, **kwargs):
            super().append_message(*args, **kwargs)
            return super().append_message(*args, **kwargs)

    blocking = Twice(tmp_path / "state.db", mode=mode)
    async with AsyncSessionDB(blocking) as db:
        await db.create_session("s", "cli")
        assert await db.append_message("s", "user", "x") == 2
    with (
        pytest.raises(TypeError, match=r"Twice\.append_message may be more than one change"),
        blocking.pipeline() as p,
    ):
        p.append_message("s", "user", "x")
    assert blocking.message_count() == 2
    blocking.close()


@pytest.mark.parametrize("name", ["delete_session", "get_session", "set_default_title"])
def test_method_that_is_more_than_one_change_cannot_be_built(mode, tmp_path, name):
    db, method = SessionDB(tmp_path / "state.db", mode=mode), getattr(SessionDB, name)
    assert not is_one_change(method, db)
    with pytest.raises(TypeError, match=f"{name} may be more than one change"):
        build(method, db, "s")
    db.close()


def test_time_and_generated_ids_are_taken_once(clock, mode, tmp_path):
    db = SessionDB(tmp_path / "state.db", mode=mode)
    change = build(SessionDB.continue_session, db, "old")
    clock.at(2000)
    assert change.operation.now == 1000.0
    assert change.operation.new
    assert change.outcome(ops.Continued(id="generated", title=None)) == "generated"
    db.close()


# --- pipelines -------------------------------------------------------------------------------


async def test_pipeline_keeps_order_and_raises_the_first_error(mode, tmp_path):
    async def fill():
        async with db.pipeline() as p:
            p.append_message("nobody", "user", "x")
            p.append_message("s", "user", "kept")
            p.continue_session("nobody")

    async with AsyncSessionDB(tmp_path / "state.db", mode=mode) as db:
        async with db.pipeline() as p:
            p.create_session("s", "cli")
            answers = [p.append_message("s", "user", str(n)) for n in range(100)]
        assert [answer.result() for answer in answers] == list(range(1, 101))
        with pytest.raises(ConstraintFailed):
            await fill()
        assert (await db.get_messages("s"))[-1]["content"] == "kept"


async def test_answers_can_be_awaited_inside_the_block(mode, tmp_path):
    async with AsyncSessionDB(tmp_path / "state.db", mode=mode) as db, db.pipeline() as p:
        created = p.create_session("s", "cli")
        first, second = p.append_message("s", "user", "1"), p.append_message("s", "user", "2")
        assert not created.done()
        with pytest.raises(RuntimeError, match="not been awaited"):
            first.result()
        assert [await second, await first, await first, await created] == [2, 1, 1, "s"]
        third = p.append_message("s", "user", "3")
        await p.flush()
        assert await third == 3


async def test_flushes_at_once_do_not_mix(mode, tmp_path):
    async with AsyncSessionDB(tmp_path / "state.db", mode=mode) as db:
        async with db.pipeline() as p, anyio.create_task_group() as tasks:
            p.create_session("s", "cli")
            for n in range(300):
                p.append_message("s", "user", str(n))
                if n % 30 == 0:
                    tasks.start_soon(p.flush)
                    await anyio.lowlevel.checkpoint()
        assert [m["content"] for m in await db.get_messages("s")] == [str(n) for n in range(300)]


async def test_error_of_the_block_comes_first_and_the_queue_is_sent(mode, tmp_path):
    async def fill():
        async with db.pipeline() as p:
            p.create_session("s", "cli")
            p.append_message("nobody", "user", "x")
            raise KeyError

    async with AsyncSessionDB(tmp_path / "state.db", mode=mode) as db:
        with pytest.raises(KeyError):
            await fill()
        assert await db.get_session("s")


async def test_block_that_is_cancelled_sends_nothing_more(mode, tmp_path):
    async with AsyncSessionDB(tmp_path / "state.db", mode=mode) as db:
        with anyio.CancelScope() as scope:
            async with db.pipeline() as p:
                p.create_session("s", "cli")
                scope.cancel()
        assert await db.get_session("s") is None


def test_pipeline_refuses_what_is_no_single_change(mode, tmp_path):
    db = SessionDB(tmp_path / "state.db", mode=mode)
    for name in ("get_messages", "delete_session", "prune_sessions", "close", "no_such_method"):
        with pytest.raises(AttributeError, match="cannot be part of a pipeline"):
            getattr(db.pipeline(), name)
    db.close()


def test_pipeline_of_a_closed_store_tells_every_answer(mode, tmp_path):
    db = SessionDB(tmp_path / "state.db", mode=mode)
    db.create_session("s", "cli")
    db.end_session("s", "done")
    with pytest.raises(SessionEnded), db.pipeline() as p:
        answer = p.continue_session("s")
    with pytest.raises(SessionEnded):
        answer.result()
    p = db.pipeline()
    answer = p.reopen_session("s")
    db.close()
    for _ in range(2):
        with pytest.raises(Closed):
            answer.result()
    with pytest.raises(Closed):
        p.__exit__(None)
