"""What questions of an agent store cost, in instructions of SQLite: no more in a larger store.

Figures of time are in `stress/bench_agents.py`; instructions are the same on every machine.
"""

import sqlite3

import pytest

from hermes_actor.agents import words
from hermes_actor.agents.questions import fleet, memories
from hermes_actor.agents.rows import FileRows
from hermes_actor.agents.schema import SQLITE, create_statements

NOW, SINCE = "2026-01-31T00:00:00.000Z", "2026-01-30T00:00:00.000Z"
FEW, MANY = 20, 200
NUMBERS = "WITH RECURSIVE a(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM a WHERE n < :agents), " \
    "s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < 20), " \
    "e(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM e WHERE n < 10) "  # fmt: skip
TIME = "printf('2026-01-%02dT00:00:00.%03dZ', 10 + s.n, s.n)"
FILL = (
    f"{NUMBERS} INSERT INTO agents (agent_id, workspace_dir, status, created_at, updated_at)"
    " SELECT 'agent-' || a.n, '/w', 'active', :now, :now FROM a",
    f"{NUMBERS} INSERT INTO sessions (agent_id, session_id, source_kind, interactive, created_at,"
    " last_activity_at, message_count, completed_turn_count, metadata, status, type, user_ids)"
    f" SELECT 'agent-' || a.n, 's' || s.n, 'cli', 1, {TIME}, {TIME}, 1, 1, '{{}}', 'idle',"
    " 'direct', '[]' FROM a CROSS JOIN s",
    f"{NUMBERS} INSERT INTO session_events (agent_id, session_id, ts, event_type, payload)"
    f" SELECT 'agent-' || a.n, 's' || s.n, {TIME}, CASE e.n % 3 WHEN 0 THEN 'error' ELSE"
    " 'assistant' END, '{\"usage\":{\"input\":1}}' FROM a CROSS JOIN s CROSS JOIN e",
)


def filled(agents):
    conn = sqlite3.connect(":memory:", isolation_level=None)
    for statement in create_statements(SQLITE):
        conn.execute(statement)
    for statement in FILL:
        conn.execute(statement, {"agents": agents, "now": NOW})
    for number in range(1, agents + 1):
        for key in range(10):
            text = f"Deployment {key} went out."
            row = {"agent_id": f"agent-{number}", "memory_key": str(key), "content": text,
                   "metadata": "{}", "grants": "[]", "created_at": NOW, "updated_at": NOW,
                   **words.columns(str(key), text)}  # fmt: skip
            names = ", ".join(row)
            values = ", ".join(f":{name}" for name in row)
            conn.execute(f"INSERT INTO memories ({names}) VALUES ({values})", row)
    return conn


@pytest.fixture(scope="module")
def stores():
    return {agents: filled(agents) for agents in (FEW, MANY)}


def instructions(conn, question):
    counted = 0

    def count():
        nonlocal counted
        counted += 1
        return 0

    conn.set_progress_handler(count, 1)
    answer = question(FileRows(conn))
    conn.set_progress_handler(None, 0)
    assert answer
    return counted


def ids(agents, every=1):
    return [f"agent-{number}" for number in range(1, agents + 1, every)]


QUESTIONS = {
    "fleet numbers": lambda agents: (
        lambda rows: fleet.fleet_stats(rows, ids(agents, agents // FEW), SINCE)
    ),
    "tokens": lambda agents: (
        lambda rows: fleet.fleet_usage(rows, ids(agents, agents // FEW), NOW, False)
    ),
    "sessions": lambda agents: lambda rows: fleet.list_rows(rows, "sessions", "agent-7", {}, None),
    "memories": lambda agents: (
        lambda rows: memories.search(rows, "agent-7", "deployments", 10, None)
    ),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_same_question_costs_the_same_in_a_store_of_ten_times_the_size(stores, name):
    few, many = (instructions(stores[n], QUESTIONS[name](n)) for n in (FEW, MANY))
    assert many <= 1.02 * few


def test_numbers_of_every_agent_cost_as_much_for_each(stores):
    few, many = (
        instructions(stores[n], lambda rows, n=n: fleet.fleet_stats(rows, ids(n), SINCE)) / n
        for n in (FEW, MANY)
    )
    assert many <= few
