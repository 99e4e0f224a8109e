import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.actors import end_actors
from support.cli_home import NOW, Home
from support.clock import Clock


@pytest.fixture
def home(
    tmp_path: Path,
    clock: Clock,
    capsysbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Home]:
    """A home of its own for the commands of one test. At the end no actor of it is left."""
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    monkeypatch.setenv("HERMES_ACTOR_IDLE_EXIT", "5")
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("NO_COLOR", raising=False)
    time.tzset()
    clock.at(NOW)
    made = Home(tmp_path, clock, capsysbinary, monkeypatch)
    yield made
    end_actors(made.db_path)
    monkeypatch.undo()
    time.tzset()
