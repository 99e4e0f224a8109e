from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.direct_writer import run
from support.protocol_actor import FakeActor, Link, connect

from hermes_actor.client.protocol import client_protocol
from hermes_actor.engine.environment import Environment
from hermes_actor.engine.writer import Writer
from hermes_actor.paths import resolve_paths
from hermes_protocol.operations import SessionCreate

OpenWriter = Callable[..., Writer]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a store will be."""
    return tmp_path / "state.db"


@pytest.fixture
def open_writer(path: Path) -> Iterator[OpenWriter]:
    """Open writers in this process. Their connections are closed at the end."""
    opened: list[Writer] = []

    def open_(env: Environment | None = None) -> Writer:
        opened.append(Writer(resolve_paths(path), env))
        return opened[-1]

    yield open_
    for writer in opened:
        writer.connection.conn.close()


@pytest.fixture
def writer(open_writer: OpenWriter) -> Writer:
    """A writer of a file with one session."""
    writer = open_writer()
    assert run(writer, SessionCreate(id="s", source="cli", started_at=1.0)) == [True]
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
