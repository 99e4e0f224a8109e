from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.direct_writer import put as put_meta
from support.direct_writer import put_by_sql, put_in_agents, run
from support.files import raw
from support.protocol_actor import FakeActor, Link, connect

from hermes_actor.client.protocol import client_protocol
from hermes_actor.engine.environment import Environment
from hermes_actor.engine.writer import Writer
from hermes_actor.paths import resolve_paths
from hermes_protocol.operations import Operation, SessionCreate

OpenWriter = Callable[..., Writer]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a store will be."""
    return tmp_path / "state.db"


@pytest.fixture
def file_kind() -> str:
    """The kind of the file. A test about all kinds is parametrised by it."""
    return "sessions"


@pytest.fixture
def put(file_kind: str) -> Callable[..., Operation[Any]]:
    """An operation that leaves a key and a value in ``state_meta``, in a file of any kind."""
    made: dict[str, Callable[..., Operation[Any]]]
    made = {"sessions": put_meta, "plain": put_by_sql, "agents": put_in_agents}
    return made[file_kind]


@pytest.fixture
def open_writer(path: Path, file_kind: str) -> Iterator[OpenWriter]:
    """Open writers in this process. Their connections are closed at the end."""
    opened: list[Writer] = []
    if file_kind == "plain":
        with raw(path) as conn:
            conn.execute("CREATE TABLE state_meta (key TEXT PRIMARY KEY, value TEXT)")

    def open_(env: Environment | None = None) -> Writer:
        opened.append(Writer(resolve_paths(path), env, kind=file_kind))
        return opened[-1]

    yield open_
    for writer in opened:
        writer.connection.conn.close()


@pytest.fixture
def writer(open_writer: OpenWriter, file_kind: str) -> Writer:
    """A writer of a file with one session or, if it is plain, one row."""
    writer = open_writer()
    if file_kind == "agents":
        run(writer, put_in_agents("s"))
    elif file_kind == "sessions":
        assert run(writer, SessionCreate(id="s", source="cli", started_at=1.0)) == [True]
    else:
        run(writer, put_by_sql("s"))
    return writer


@pytest.fixture
def core() -> Any:
    """The client's end of the protocol."""
    return client_protocol("test")


@pytest.fixture
def actor() -> FakeActor:
    """The other end of it."""
    return FakeActor()


@pytest.fixture
def link(core: Any, actor: FakeActor) -> Link:
    """A connection of both."""
    return connect(core, actor)
