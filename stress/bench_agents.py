"""The cost of questions of an agent store, by the number of agents, and of appended events.

    python stress/bench_agents.py [--agents 150,1500] [--events 2000000] [--no-server]

Each store holds so many agents; the largest has all the events, a smaller one its share of them, so
that an agent has as many in both. The stores are asked in turn, through an actor, and the figures
are medians over rounds. What is asked is the same in both, and may take twice as long in the larger
one; only the numbers of every agent are an answer ten times as long, so of them each agent is
compared. Events are appended by four threads at once, one per call, beside a PostgreSQL of its own.
Beside each figure stands its limit, and whether it is kept; the exit code is 0 either way.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from support.actors import end_actors
from support.servers import find, new_store

from hermes_actor import AgentStore
from hermes_actor.agents.vault import Vault

MEMORIES = 5_000
SESSIONS = 50
KEY = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
LIMITS_MS = {"fleet, all agents": 200.0, "session list": 20.0, "memory search": 30.0}
"""What the questions may take with the largest number of agents."""
RATIO_LIMIT = 2.0
"""How much longer the same question may take there than with the smallest number."""


def name_of(number: int) -> str:
    return f"agent-{number:05}"


def open_store(target: Path | str) -> AgentStore:
    return AgentStore.global_(target, vault=Vault(KEY), timeout=60.0)


def fill(path: Path, agents: int, events: int) -> None:
    """Write agents, sessions and events in one transaction, without an actor: in a minute."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as conn:
        now = datetime.now(UTC)
        first = (now - timedelta(days=30)).timestamp()
        each = max(1, events // (agents * SESSIONS))
        time_of = "strftime('%Y-%m-%dT%H:%M:%f', :first + {}, 'unixepoch') || 'Z'"
        values = {"agents": agents, "sessions": SESSIONS, "each": each, "first": first,
                  "step": 30 * 86400 / (SESSIONS * each)}  # fmt: skip
        numbers = (
            "WITH RECURSIVE a(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM a WHERE n < :agents - 1),"
            " s(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM s WHERE n < :sessions - 1),"
            " e(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM e WHERE n < :each - 1)"
        )
        agent, session = "printf('agent-%05d', a.n)", "printf('s%03d', s.n)"
        conn.execute("PRAGMA foreign_keys = OFF")
        conn.execute("PRAGMA cache_size = -200000")
        conn.execute("BEGIN IMMEDIATE")
        conn.execute(
            f"{numbers} INSERT INTO agents"
            " (agent_id, workspace_dir, status, created_at, updated_at)"
            f" SELECT {agent}, '/w', 'active', {time_of.format('0')}, {time_of.format('0')} FROM a",
            values,
        )
        last = time_of.format("(s.n + 1) * :each * :step")
        conn.execute(
            f"{numbers} INSERT INTO sessions (agent_id, session_id, source_kind, interactive,"
            " created_at, last_activity_at, message_count, completed_turn_count, metadata, status,"
            f" type, user_ids) SELECT {agent}, {session}, 'cli', 1, {last}, {last}, :each, 1,"
            " '{}', 'idle', 'direct', '[\"u1\"]' FROM a CROSS JOIN s",
            values,
        )
        conn.execute(
            f"{numbers} INSERT INTO session_events (agent_id, session_id, ts, event_type, payload,"
            f" content) SELECT {agent}, {session},"
            f" {time_of.format('(s.n * :each + e.n) * :step')},"
            " CASE WHEN e.n % 50 = 1 THEN 'error'"
            " WHEN e.n % 2 = 0 THEN 'user' ELSE 'assistant' END,"
            ' CASE WHEN e.n % 2 = 1 THEN \'{"role":"assistant","usage":{"input":10}}\''
            " ELSE '{\"role\":\"user\"}' END, 'some words of a conversation'"
            " FROM a CROSS JOIN s CROSS JOIN e",
            values,
        )
        conn.execute("COMMIT")
        conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def remember(store: AgentStore) -> None:
    """Fill the memory of one agent."""
    with store.of(name_of(0)) as one:
        for number in range(MEMORIES):
            text = f"Deployment {number} of service {number % 37} went out on day {number % 365}."
            one.memories.put(text, key=f"notes/{number % 50}/{number}")


@contextlib.contextmanager
def filled(folder: Path, agents: int, events: int) -> Iterator[AgentStore]:
    path = folder / f"agents-{agents}.db"
    with open_store(path):
        pass
    end_actors(path)
    fill(path, agents, events)
    store = open_store(path)
    try:
        remember(store)
        yield store
    finally:
        store.close()
        end_actors(path)


def questions(store: AgentStore, agents: int, few: int) -> dict[str, Callable[[], object]]:
    """What is asked of a store; of *few* agents, and of all."""
    every = [name_of(number) for number in range(agents)]
    page = every[:: max(1, agents // few)][:few]
    one = store.of(name_of(0))
    return {
        "fleet, all agents": lambda: store.agents.fleet_stats(every),
        f"fleet, {few} agents": lambda: store.agents.fleet_stats(page),
        f"usage, {few} agents": lambda: store.agents.fleet_usage(page),
        "session list": lambda: one.sessions.list(),
        "memory search": lambda: one.memories.search("deployment of service 12"),
    }


def spent(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - begun)


def appended_per_second(target: Path | str, calls: int) -> float:
    """Events that four threads append together, each acknowledged before the next."""
    with open_store(target) as store:
        one = store.of("appending")
        source = {"kind": "cli", "interactive": True}
        for number in range(4):
            one.sessions.upsert({"session_id": f"s{number}", "source": source})

        def append(session_id: str) -> None:
            for number in range(calls):
                one.events.append(session_id, {"role": "user", "content": f"event {number}"})

        threads = [threading.Thread(target=append, args=(f"s{number}",)) for number in range(4)]
        begun = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return 4 * calls / (time.perf_counter() - begun)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])

    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    parser.add_argument("--agents", type=numbers, default=[150, 1500])
    parser.add_argument("--events", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--appends", type=int, default=250, help="events of each of four threads")
    parser.add_argument("--no-server", action="store_true", help="nothing beside PostgreSQL")
    return parser.parse_args()


def main() -> int:
    """Ask the stores in turn, and print a table."""
    given = arguments()
    folder = Path(tempfile.mkdtemp(prefix="bench-agents-"))
    found: dict[str, dict[int, list[float]]] = {}
    try:
        with contextlib.ExitStack() as stack:
            asked = {}
            for agents in sorted(given.agents):
                share = given.events * agents // max(given.agents)
                store = stack.enter_context(filled(folder, agents, share))
                asked[agents] = questions(store, agents, min(given.agents))
            for _ in range(given.rounds):
                for agents, calls in asked.items():
                    for name, call in calls.items():
                        found.setdefault(name, {}).setdefault(agents, []).append(spent(call))
        show(found, given.events)
        ours = appended_per_second(folder / "new.db", given.appends)
        print(f"events per second, actor: {ours:.0f}")
        end_actors(folder / "new.db")
        if not given.no_server and find("initdb") is not None:
            rate = appended_per_second(new_store("postgresql"), given.appends)
            print(f"events per second, PostgreSQL: {rate:.0f}; the actor: {ours / rate:.1f} times")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def show(found: dict[str, dict[int, list[float]]], events: int) -> None:
    """Print every figure beside its limits."""
    columns = sorted(next(iter(found.values())))
    heads = "".join(f"{f'{agents} agents':>15}" for agents in columns)
    print(f"{'median ms':>18}{heads}{'ratio':>8}   limits")
    for name, times in found.items():
        middle = [statistics.median(times[agents]) for agents in columns]
        longer = name == "fleet, all agents"
        ratio = middle[-1] / middle[0]
        said = [] if longer else [kept(ratio, RATIO_LIMIT, "x")]
        if name in LIMITS_MS:
            said.append(kept(middle[-1], LIMITS_MS[name], "ms"))
        cells = "".join(f"{one:>15.2f}" for one in middle)
        print(f"{name:>18}{cells}{ratio:>8.2f}   {', '.join(said)}")
        if longer:  # the answer itself is longer in the larger store
            each = [1e3 * one / agents for one, agents in zip(middle, columns, strict=True)]
            cells = "".join(f"{one:>12.2f} µs" for one in each)
            ratio = each[-1] / each[0]
            print(f"{'each of them':>18}{cells}{ratio:>8.2f}   {kept(ratio, RATIO_LIMIT, 'x')}")
    print(f"{events} events in the store with {columns[-1]} agents")


def kept(figure: float, limit: float, unit: str) -> str:
    """Say whether a limit is kept."""
    return f"{limit:.0f} {unit} {'kept' if figure <= limit else 'EXCEEDED'}"


if __name__ == "__main__":
    sys.exit(main())
