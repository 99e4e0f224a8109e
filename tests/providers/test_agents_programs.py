"""Random programs of thirty calls give the same answers and the same rows everywhere (A4)."""

import pytest
from support.agent_calls import Answers, program, run
from support.agent_stores import open_agents

PROGRAMS = 40
LENGTH = 30


@pytest.fixture(scope="module")
def stores(kind, tmp_path_factory):
    """A file with a writer in this process, and a store of the kind."""
    folder = tmp_path_factory.mktemp("programs")
    other = "actor" if kind == "embedded" else kind
    with (
        open_agents("embedded", folder / "ours.db") as ours,
        open_agents(other, folder / "theirs.db") as theirs,
    ):
        yield (ours, Answers()), (theirs, Answers())


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_program_gives_the_same_answers(stores, seed):
    calls = program(seed, LENGTH)
    names = {"self": f"agent {seed}", "other": f"agent {seed - 1}"}
    made = [run(store, names, calls, seen) for store, seen in stores]
    for number, (ours, theirs) in enumerate(zip(*made, strict=True)):
        assert ours == theirs, calls[: number + 1][-3:]
