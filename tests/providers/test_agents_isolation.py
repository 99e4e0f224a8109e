"""Isolation on every provider: A runs every operation on what B has as well, and asks all."""

import itertools

import pytest
from support.agent_isolation import CALLS, check
from support.agent_stores import everywhere, open_agents


@pytest.fixture(scope="module")
def two(kind, tmp_path_factory):
    """A store, and in every table a row of B whose key A uses too."""
    with open_agents(kind, tmp_path_factory.mktemp("two") / "agents.db") as store:
        everywhere(store, "B")
        yield store


PROGRAMS = {
    verb: list(calls)
    for verb, calls in itertools.groupby(CALLS, key=lambda call: call[0].partition(" ")[0])
}
"""Operations by their verb; one verb after the other on every table."""


@pytest.mark.parametrize("verb", PROGRAMS)
def test_no_operation_of_an_agent_meets_another(two, verb):
    check(two, PROGRAMS[verb])
