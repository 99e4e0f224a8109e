"""Plans of the questions of an agent store: what one agent asks is looked up."""

import pytest
from support.agent_stores import START, everywhere, open_agents

from hermes_actor.agents.rows import FileRows
from hermes_actor.agents.times import after

LARGE = {"sessions", "session_events", "memories", "schedules", "schedule_runs", "agent_skills"}
"""Tables that grow with the number of agents."""


@pytest.fixture
def store(tmp_path):
    with open_agents("embedded", tmp_path / "agents.db") as store:
        everywhere(store, "a")
        yield store.of("a")


@pytest.fixture
def scanned(monkeypatch):
    """Names of the large tables that were read from end to end, by statement."""
    found, plain = [], FileRows.all

    def explained(self, sql, values=None):
        for row in plain(self, f"EXPLAIN QUERY PLAN {sql}", values):
            words = row["detail"].split()
            if words[0] == "SCAN" and (LARGE | {"s", "e", "a"}) & {words[1]}:
                found.append((row["detail"], sql))
        return plain(self, sql, values)

    monkeypatch.setattr(FileRows, "all", explained)
    return found


ASKED = {
    "fleet_stats": lambda a: a.agents.fleet_stats(["a", "b"], since=START),
    "fleet_usage": lambda a: a.agents.fleet_usage(["a", "b"], all_time=True),
    "usage_detail": lambda a: a.agents.usage_detail(),
    "sessions": lambda a: a.sessions.list(limit=20),
    "sessions of a user": lambda a: a.sessions.list(user_id="u"),
    "history": lambda a: a.events.history("shared", limit=20),
    "messages since": lambda a: a.events.messages_since("shared", 1),
    "recent messages": lambda a: a.events.recent_messages("shared", 5),
    "cursors": lambda a: a.events.cursors("shared"),
    "message id": lambda a: a.events.find_by_message_id("shared", "m"),
    "compaction": lambda a: a.events.entries_since_compaction("shared"),
    "memories": lambda a: a.memories.list("k"),
    "search": lambda a: a.memories.search("only words"),
    "due": lambda a: a.schedules.due(after(START, 9)),
    "due, all agents": lambda a: a.schedules.all_due(after(START, 9)),
    "runs": lambda a: a.schedules.runs("shared"),
    "skills": lambda a: a.skills.list_enabled(),
}


@pytest.mark.parametrize("name", ASKED)
def test_no_table_that_grows_with_the_agents_is_scanned(store, scanned, name):
    ASKED[name](store)
    assert scanned == []


def test_a_scan_would_be_seen(store, scanned):
    store.agents.counts()
    assert scanned
