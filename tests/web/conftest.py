import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from support.actors import end_actors
from support.agent_stores import KEY
from support.web import TOKEN, WebProcess, opened, seed


@pytest.fixture(scope="session")
def shared_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home with known stores, which the tests only read."""
    home = tmp_path_factory.mktemp("web") / "home"
    seed(home, time.time())
    yield home
    end_all(home)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The same home, to be changed."""
    home = tmp_path / "home"
    seed(home, time.time(), sessions=12)
    monkeypatch.setenv("HERMES_HOME", str(home))
    monkeypatch.setenv("HERMES_ACTOR_SECRETS_KEY", KEY)
    monkeypatch.setenv("HERMES_ACTOR_IDLE_EXIT", "60")
    yield home
    end_all(home)


def end_all(home: Path) -> None:
    for name in ("state.db", "agents.db"):
        end_actors(home / name)


@pytest.fixture
def pages(shared_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    """A visitor with the token."""
    monkeypatch.setenv("HERMES_HOME", str(shared_home))
    monkeypatch.setenv("HERMES_ACTOR_SECRETS_KEY", KEY)
    with opened(shared_home) as client:
        assert client.get("/", params={"token": TOKEN}).status_code == 303
        yield client


@pytest.fixture
def changing(home: Path) -> Iterator[TestClient]:
    """A visitor of a home that may be changed, with the bearer token."""
    with opened(home) as client:
        client.headers["Authorization"] = f"Bearer {TOKEN}"
        yield client


@pytest.fixture(scope="session")
def shared_process(shared_home: Path) -> Iterator[WebProcess]:
    """The real command over the shared home."""
    with WebProcess(shared_home) as web:
        yield web
