import atexit
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from support.clock import Clock
from support.signals import hear_signals

# `make stress-long` draws many more programs than `make test`.
settings.register_profile("default", deadline=None, print_blob=True, max_examples=50)
settings.register_profile("long", settings.get_profile("default"), max_examples=2000)
settings.load_profile("default")

CI = os.environ.get("CI", "").lower() in ("true", "1")
INSTALLED_BY_MAKE = {"the agent program is not installed"}

hear_signals()

# The module under test takes its default path from HERMES_HOME once, when it is imported.
# A folder of our own also keeps every test away from ~/.hermes.
os.environ["HERMES_HOME"] = tempfile.mkdtemp(prefix="hermes-actor-tests-")
# Stores that are saved when their home is deleted stay away from those of the user, too.
os.environ["XDG_STATE_HOME"] = os.path.join(os.environ["HERMES_HOME"], "state")
# An actor that a test has started ends soon after the test does.
os.environ.setdefault("HERMES_ACTOR_IDLE_EXIT", "1")
atexit.register(shutil.rmtree, os.environ["HERMES_HOME"], ignore_errors=True)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    """Let every report travel between processes: one that quotes an odd path has surrogates.

    Under continuous integration a test that lacks what `make test` installs has failed.
    """
    report = yield
    if CI and report.skipped and isinstance(report.longrepr, tuple):
        *_, reason = report.longrepr
        if reason.removeprefix("Skipped: ") in INSTALLED_BY_MAKE:
            report.outcome = "failed"
            report.longrepr = f"{reason}; with CI=true that is a failure: run make test"
    report.sections = [(name, _escaped(text)) for name, text in report.sections]
    if report.longrepr is not None and _escaped(shown := str(report.longrepr)) != shown:
        report.longrepr = _escaped(shown)
    return report


def _escaped(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def pytest_sessionfinish() -> None:
    """Remove the servers of this process now: a worker of xdist that takes more than ten seconds
    to exit is killed, and would leave what it has not removed."""
    servers = sys.modules.get("support.servers")
    if servers is not None:
        servers.remove_all()


@pytest.fixture(scope="session", params=os.environ.get("STORE_MODES", "embedded actor").split())
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(1000.0)
    monkeypatch.setattr(time, "time", lambda: clock.now)
    return clock


@pytest.fixture
def open_store(mode: str) -> Iterator[Callable[[Path], Any]]:
    """Open a store in the mode of this run; whatever is still open is closed at the end."""
    from hermes_actor import SessionDB

    opened: list[Any] = []

    def open_(path: Path) -> Any:
        opened.append(SessionDB(path, mode=mode))
        return opened[-1]

    yield open_
    for db in opened:
        db.close()


@pytest.fixture
def db(open_store: Callable[[Path], Any], tmp_path: Path) -> Any:
    return open_store(tmp_path / "state.db")


@pytest.fixture
def open_folder() -> Iterator[str]:
    """A folder that an unprivileged child process can reach (pytest's own are private)."""
    folder = tempfile.mkdtemp(prefix="hermes-actor-open-")
    if os.getuid() == 0:
        os.chown(folder, 65534, 65534)
    yield folder
    os.chmod(folder, 0o700)
    shutil.rmtree(folder)
