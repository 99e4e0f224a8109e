"""Faults that are put into the agent store on purpose, and the tests that must fail with them.

A12 of the acceptance. Each fault breaks one rule; the tests of that rule run as they are, on an
embedded store, and a fault that none of them notices would be a rule without a test.
"""

import importlib.util
from functools import cache
from pathlib import Path

import pytest
from support.agent_stores import Agents, open_agents, unique

from hermes_actor.agents.changes import schedules, sessions, users
from hermes_actor.agents.questions import memories
from hermes_actor.agents.rows import FileRows
from hermes_actor.agents.tables import TABLES

PROVIDERS = Path(__file__).parents[1] / "providers"


@cache
def module(subject):
    file = PROVIDERS / f"test_agents_{subject}.py"
    spec = importlib.util.spec_from_file_location(f"broken_{subject}", file)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture
def agents(tmp_path):
    with open_agents("embedded", tmp_path / "agents.db") as store:
        yield Agents(store)


def in_sql(right, wrong):
    """A fault in the text of a statement, which must be there."""

    def apply(monkeypatch):
        plain, seen = FileRows.spelled, []

        def spelled(self, sql):
            seen.append(right in sql)
            return plain(self, sql.replace(right, wrong))

        monkeypatch.setattr(FileRows, "spelled", spelled)
        return seen

    return apply


def put(target, name, value):
    def apply(monkeypatch):
        monkeypatch.setattr(target, name, value)
        return [True]

    return apply


def nothing_is_set_once(monkeypatch):
    table = TABLES["sessions"]
    columns = tuple(column._replace(once=False) for column in table.columns)
    monkeypatch.setitem(TABLES, "sessions", table._replace(columns=columns))
    return [True]


def held_by_anyone(rows, agent_id, run_id, worker):
    run = schedules.verbs.find(rows, TABLES["schedule_runs"], agent_id, {"id": run_id})
    key = {"schedule_id": run["schedule_id"]}
    return run, schedules.verbs.find(rows, TABLES["schedules"], agent_id, key)


def cut_before_the_filter(entries, limit, principal):
    return [one for one in entries[:limit] if memories.visible(one["grants"], principal)]


def a_skill(agents):
    item = unique("item")
    agents.all.skills.upsert({"id": item, "name": item, "path": "/p"})
    return lambda store: store.skills, item


def users_of(store):
    def make(name=None):
        user_id = unique("u")
        store.users.upsert({"user_id": user_id, "name": name})
        return user_id

    return make


def run(agents, subject, name):
    """Run one test of the suite of providers on *agents*."""
    store, test = agents.new(), getattr(module(subject), name)
    known = {"store": lambda: store, "agents": lambda: agents, "items": lambda: a_skill(agents),
             "user": lambda: users_of(store)}  # fmt: skip
    count = test.__code__.co_argcount
    test(*(known[word]() for word in test.__code__.co_varnames[:count]))


FAULTS = {
    "an assignment to all beats that of the agent": (
        in_sql("COALESCE(own.enabled, every.enabled) = true",
               "(own.enabled = true OR every.enabled = true)"),
        "users", "test_own_assignment_beats_that_of_all_agents"),
    "an upsert changes what is set once": (
        nothing_is_set_once, "sessions", "test_source_type_and_creation_are_set_once"),
    "a claim does not look at leases": (
        in_sql(" AND (claimed_by IS NULL OR claim_expires_at <= :now)", ""),
        "schedules", "test_claim_is_held_until_it_expires"),
    "a run is ended by a worker that lost it": (
        put(schedules, "_held", held_by_anyone),
        "schedules", "test_claim_is_held_until_it_expires"),
    "a one-shot that failed stays active": (
        put(schedules, "_marked", lambda *_: ({"next_run_at": None, "last_error": "boom"}, {})),
        "schedules", "test_failed_one_shot_is_parked"),
    "a message id is not looked for": (
        put(sessions, "find_message", lambda *_words: None),
        "sessions", "test_recorded_messages_are_counted_once"),
    "grants are looked at after the cut": (
        put(memories, "_kept", cut_before_the_filter),
        "memories", "test_grants_are_looked_at_before_the_cut"),
    "a prefix is a pattern": (
        in_sql("substr(memory_key, 1, :length) = :prefix",
               "memory_key LIKE :prefix || '%' AND :length > 0"),
        "memories", "test_lists_take_a_prefix_literally"),
    "the weaker role wins": (
        put(users, "_STRENGTH", ("owner", "user", "guest")),
        "users", "test_merge_moves_roles_schedules_and_participants"),
    "a removed agent leaves its credentials": (
        in_sql("DELETE FROM @agent_channel_credentials WHERE agent_id = :agent_id",
               "DELETE FROM @agent_channel_credentials WHERE agent_id = :agent_id AND 0"),
        "agents", "test_removed_agent_leaves_nothing"),
    "errors are those of every agent": (
        in_sql("e.agent_id = wanted.value AND e.event_type = 'error'", "e.event_type = 'error'"),
        "agents", "test_fleet_numbers"),
}  # fmt: skip
"""What is broken, and the test that must notice it."""


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_noticed(agents, monkeypatch, name):
    fault, subject, test = FAULTS[name]
    run(agents, subject, test)
    applied = fault(monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        run(agents, subject, test)
    assert any(applied)
