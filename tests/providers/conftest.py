import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
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
