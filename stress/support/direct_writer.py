"""A writer in the process of the test, without threads: its time, its batches, its index."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hermes_actor.engine.environment import Environment
from hermes_actor.engine.jobs import Request
from hermes_actor.engine.writer import Writer
from hermes_protocol.agents import AgentsPut
from hermes_protocol.operations import MessageAppend, MessageRow, MetaSet, SqlStatement
from support.files import FTS_TABLES as INDEXES
from support.files import names, query


class FakeTime:
    """Time that passes only by sleeping, or by looking at it if *look_costs*."""

    def __init__(self, look_costs: float = 0.0) -> None:
        self.now = 0.0
        self.sleeps = 0
        self.look_costs = look_costs
        self.on_sleep: Callable[[], object] = lambda: None

    def monotonic(self) -> float:
        self.now += self.look_costs
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.sleeps += 1
        self.on_sleep()

    def env(self, **more: Any) -> Environment:
        return Environment(monotonic=self.monotonic, sleep=self.sleep, **more)


def run(writer: Writer, *operations: Any) -> list[Any]:
    """The results of a batch in which nothing may fail."""
    outcomes = batch(writer, *operations)
    assert [outcome.error for outcome in outcomes] == [None] * len(operations)
    return [outcome.result for outcome in outcomes]


def batch(writer: Writer, *operations: Any) -> list[Any]:
    """As a host does it: what a batch that took long did not come to is brought again."""
    requests = [Request(operation) for operation in operations]
    outcomes: list[Any] = []
    while len(outcomes) < len(requests):
        outcomes += writer.run_batch(requests[len(outcomes) :])
    return outcomes


def put(key: str, value: str = "v") -> MetaSet:
    return MetaSet(key=key, value=value)


def put_by_sql(key: str, value: str = "v") -> SqlStatement:
    """The same as a statement of a guest, for files of any kind."""
    sql = "INSERT OR REPLACE INTO state_meta (key, value) VALUES (?, ?)"
    return SqlStatement(sql=sql, parameters=[key, value])


def put_in_agents(key: str, value: str = "v") -> AgentsPut:
    """The same in ``meta`` of an agent store."""
    return AgentsPut(table="meta", rows=[{"key": key, "value": value}], mode="upsert")


def append(text: str, session_id: str = "s") -> MessageAppend:
    return MessageAppend(
        session_id=session_id, message=MessageRow(role="user", timestamp=2.0, content=text)
    )


def sql(text: str) -> SqlStatement:
    return SqlStatement(sql=text)


def keys(path: Path) -> list[str]:
    """Keys that :func:`put` has left, in order."""
    table = "state_meta" if "state_meta" in names(path, "table") else "meta"
    return [key for (key,) in query(path, f"SELECT key FROM {table} ORDER BY key")]


def indexed(path: Path, table: str) -> list[int]:
    """Ids in the index, as often as they are there."""
    return [n for (n,) in query(path, f"SELECT id FROM {table}_docsize ORDER BY id")]


def index_everything(writer: Writer) -> None:
    """Run slices until none is left."""
    for _ in range(1000):
        if not writer.index.run_slice(0.01):
            return
    raise AssertionError("indexing does not come to an end")


def assert_index_is_true(path: Path) -> None:
    """Both indexes hold every message once, with its present text."""
    text = "COALESCE(content, '') || ' ' || COALESCE(tool_name, '') || ' '" + (
        " || COALESCE(tool_calls, '')"
    )
    wanted = query(path, f"SELECT id, {text} FROM messages ORDER BY id")
    for table in INDEXES:
        assert query(path, f"SELECT rowid, content FROM {table} ORDER BY rowid") == wanted
        assert indexed(path, table) == [n for n, _ in wanted]
        query(path, f"INSERT INTO {table}({table}) VALUES ('integrity-check')")
