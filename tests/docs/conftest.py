from collections.abc import Iterator
from pathlib import Path

import pytest
from support.actors import stop_actor, wait_no_actor


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """An empty home. At the end no actor of its stores is left."""
    yield tmp_path
    for folder in tmp_path.glob(".*.actor"):
        path = folder.with_name(folder.name.removeprefix(".").removesuffix(".actor"))
        stop_actor(path)
        wait_no_actor(path)
