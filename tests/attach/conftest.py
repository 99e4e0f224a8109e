from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.hosts import Host, is_installed
from support.model_server import model_server

VERSIONS = ["0.14.0", "0.19.0"]


@pytest.fixture(scope="session")
def model_url() -> Iterator[str]:
    with model_server() as url:
        yield url


@pytest.fixture
def make_host(tmp_path: Path, model_url: str) -> Iterator[Callable[..., Host]]:
    """Make a copy of an installed release. At the end no actor of its home is left."""
    made: list[Host] = []

    def make(version: str, prefix: str = "env") -> Host:
        if not is_installed(version):
            pytest.skip("the agent program is not installed")
        made.append(Host(version, tmp_path / f"host{len(made)}", model_url, prefix))
        return made[-1]

    yield make
    for host in made:
        host.end()


@pytest.fixture(params=VERSIONS)
def host(request: pytest.FixtureRequest, make_host: Callable[..., Host]) -> Host:
    return make_host(request.param)


@pytest.fixture
def newest(make_host: Callable[..., Host]) -> Host:
    return make_host(VERSIONS[-1])
