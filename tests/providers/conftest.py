import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.agent_stores import Agents, open_agents
from support.stores import Stores, chosen_kinds

CI = os.environ.get("CI", "").lower() in ("true", "1")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    """Under continuous integration a missing server, program or right is a failure."""
    report = yield
    if CI and report.skipped:
        *_, reason = report.longrepr
        report.outcome, report.longrepr = "failed", f"{reason}; with CI=true that is a failure"
    return report


@pytest.fixture(scope="session", params=chosen_kinds())
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def module_stores(kind: str) -> Iterator[Stores]:
    """Stores that the tests of a module share."""
    stores = Stores(kind)
    yield stores
    stores.close()


@pytest.fixture
def stores(kind: str) -> Iterator[Stores]:
    stores = Stores(kind)
    yield stores
    stores.close()


@pytest.fixture
def db(stores: Stores, tmp_path: Path) -> Any:
    return stores.open(tmp_path / "state.db")


@pytest.fixture(scope="module")
def shared_agents(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The agent store that the tests of a module share, without an agent."""
    store = open_agents(kind, tmp_path_factory.mktemp("agents") / "agents.db")
    yield store
    store.close()


@pytest.fixture
def agents(shared_agents: Any) -> Agents:
    """New agents of it, and their clock."""
    return Agents(shared_agents)


@pytest.fixture
def store(agents: Agents) -> Any:
    """The store of a new agent."""
    return agents.new()
