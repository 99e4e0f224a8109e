import pytest
from support.actors import end_actors


@pytest.fixture
def long_lived(monkeypatch):
    """Actors that do not end for idleness during a test, however busy the machine is."""
    monkeypatch.setenv("HERMES_ACTOR_IDLE_EXIT", "30")


@pytest.fixture
def path(tmp_path, long_lived):
    """Where a store will be. At the end no actor of it is left."""
    path = tmp_path / "state.db"
    yield path
    end_actors(path)
