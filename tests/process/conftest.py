from collections.abc import Iterator
from pathlib import Path

import pytest
from support.actors import end_actors


@pytest.fixture
def long_lived(monkeypatch: pytest.MonkeyPatch) -> None:
    """Actors that do not end for idleness during a test, however busy the machine is."""
    monkeypatch.setenv("HERMES_ACTOR_IDLE_EXIT", "30")


@pytest.fixture
def path(tmp_path: Path, long_lived: None) -> Iterator[Path]:
    """Where a store will be. At the end no actor of it is left."""
    path = tmp_path / "state.db"
    yield path
    end_actors(path)
