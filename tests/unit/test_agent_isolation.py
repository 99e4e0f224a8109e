"""Isolation over every table and every operation: nothing of another agent changes or shows.

A3 of the acceptance. Programs are drawn; the rows of B are compared as they are stored. On every
provider the same operations run in `providers/test_agents_isolation.py`.
"""

import contextlib
import inspect
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.agent_isolation import CALLS, CHANGES, CLASSES, GLOBAL, READS, SPECIAL, check
from support.agent_stores import everywhere, open_agents

from hermes_actor.agents.rows import FileRows


def test_every_operation_of_an_agent_is_drawn():
    with_scope = {name for name, kind in CLASSES.items() if "agent_id" in kind.__struct_fields__}
    assert with_scope == {*SPECIAL, "put", "patch", "delete", "replace"}


@contextlib.contextmanager
def opened():
    """A store, and in every table a row of B whose key A uses too."""
    with (
        tempfile.TemporaryDirectory() as folder,
        open_agents("embedded", Path(folder) / "agents.db") as store,
    ):
        everywhere(store, "B")
        yield store


@pytest.fixture(scope="module")
def two():
    with opened() as store:
        yield store


@given(program=st.lists(st.sampled_from(CALLS), min_size=1, max_size=12))
@settings(max_examples=50, deadline=None)
def test_nothing_of_b_changes_or_shows_through_calls_of_a(two, program):
    check(two, program)


def check_each(store):
    for call in CALLS:
        check(store, [call])


def test_every_call_by_itself_leaves_b_alone(two):
    check_each(two)


@pytest.mark.parametrize("verb", ["SELECT", "UPDATE", "DELETE"])
def test_broken_scope_is_caught(verb, monkeypatch):
    """A12: one verb whose condition has lost its scope."""
    plain = FileRows.spelled

    def without_scope(self, sql):
        if sql.startswith(verb):
            for clause in ('"agent_id" = :agent_id', "agent_id = :agent_id"):
                sql = sql.replace(clause, "1 = 1")
        return plain(self, sql)

    with opened() as store:
        check(store, CALLS)
        monkeypatch.setattr(FileRows, "spelled", without_scope)
        with pytest.raises(AssertionError):
            check_each(store)


def test_every_question_is_asked():
    """A method that changes nothing and is in neither list would be a question without a test."""
    with opened() as store:
        a = store.of("A")
        for subject in (*READS, "meta"):
            there = {
                name for name, _ in inspect.getmembers(getattr(a, subject), inspect.ismethod)
                if not name.startswith("_")
            }  # fmt: skip
            known = READS.get(subject, set()) | GLOBAL.get(subject, set()) | CHANGES
            assert there <= known, subject
