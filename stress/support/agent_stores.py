"""Agent stores of every kind, with a clock that tests move."""

import uuid
from pathlib import Path
from typing import Any

from hermes_actor import AgentStore
from hermes_actor.agents.documents import dumps
from hermes_actor.agents.tables import TABLES, Column, Form, Table
from hermes_actor.agents.times import after
from hermes_actor.agents.vault import Vault
from hermes_protocol.agents import AgentsCopy, AgentsPut
from support import servers
from support.stores import SERVERS

__all__ = [
    "KEY", "OTHER_KEY", "START", "Agents", "Clock", "conversation", "everywhere", "new_row",
    "open_agents", "parents", "session", "unique", "value_for",
]  # fmt: skip

KEY = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
OTHER_KEY = "//79/Pv6+fj39vX08/Lx8O/u7ezr6uno5+bl5OPi4eA="
START = "2026-01-01T00:00:00.000Z"


class Clock:
    """Time that moves one millisecond at every look, and as far as a test moves it."""

    def __init__(self) -> None:
        self.time = START

    def __call__(self) -> str:
        self.move(0.001)
        return self.time

    def move(self, seconds: float) -> str:
        self.time = after(self.time, seconds)
        return self.time


def open_agents(kind: str, path: Path, **options: Any) -> AgentStore:
    """A store without an agent; *path* is used for files only."""
    options = {"vault": Vault(KEY), "timeout": 60.0, **options}
    if kind in SERVERS:
        return AgentStore.global_(servers.new_store(kind), **options)
    return AgentStore.global_(path, mode=kind, **options)


def unique(name: str) -> str:
    """*name*, and something that no other test has."""
    return f"{name}-{uuid.uuid4().hex[:8]}"


class Agents:
    """Agents of a store that other tests use as well."""

    def __init__(self, shared: AgentStore) -> None:
        self.clock = Clock()
        self.all = shared.of(None)
        self.all.now = self.clock

    def new(self, name: str = "agent") -> AgentStore:
        return self.all.of(unique(name))


def session(store: AgentStore, session_id: str = "s1", **fields: Any) -> str:
    """A session of *store*."""
    source = {"kind": "cli", "interactive": True, **fields.pop("source", {})}
    assert store.sessions.upsert({"session_id": session_id, "source": source, **fields})
    return session_id


# --- a row in every table of the registry --------------------------------------------------------


def value_for(column: Column, tag: str) -> Any:
    """Return a value that *column* takes, and that shows whose it is."""
    if column.form is Form.TIME:
        return START
    if column.form is Form.JSON:
        return dumps({"of": tag})
    if column.form in (Form.FLAG, Form.NUMBER):
        return 1
    if column.secret:
        return Vault(KEY).encrypt(tag)
    return column.values[0] if column.values else tag


def new_row(table: Table, tag: str) -> dict[str, Any]:
    """Return a row of *table* with the key ``shared``, for parents of that key."""
    keys = {*table.key, *(name for link in table.foreign for name in link.columns)}
    return {
        column.name: value_for(column, "shared" if column.name in keys else tag)
        for column in table.columns
        if column.name != "agent_id" and column.form is not Form.SERIAL
    }


def parents(store: AgentStore, agent_id: str) -> None:
    """Put the rows that others of the agent refer to."""
    for name in ("users", "skills", "mcp_servers"):
        row = {
            **new_row(TABLES[name], "parent"),
            **({"merged_into": None} if name == "users" else {}),
        }
        store.submit(AgentsPut(table=name, rows=[row], mode="upsert"))
    for name in ("agents", "sessions", "schedules"):
        row = new_row(TABLES[name], f"only-{agent_id}")
        store.submit(AgentsPut(table=name, rows=[row], agent_id=agent_id, mode="upsert"))


def everywhere(store: AgentStore, agent_id: str, number: int = 1) -> None:
    """Put rows of the agent into every table that has rows of agents.

    One has the key ``shared``, and where it is free another one a key of its own. *number* is that
    of rows which the store numbers.
    """
    parents(store, agent_id)
    tag = f"only-{agent_id} more"
    store.submit(AgentsPut(table="skills", rows=[{
        **new_row(TABLES["skills"], tag), "id": tag, "source": "user", "owner_agent_id": agent_id,
    }], mode="upsert"))  # fmt: skip
    for table in TABLES.values():
        linked = {name for link in table.foreign for name in link.columns}
        if table.scoped and table.serial is None and set(table.key) - linked:
            keys = {name: tag for name in table.key if name not in linked}
            kind = {"type": "docker"} if table.name == "sandboxes" else {}
            row = {**new_row(table, tag), **keys, **kind}
            store.submit(AgentsPut(table=table.name, rows=[row], agent_id=agent_id, mode="upsert"))
    for table in TABLES.values():
        if table.scoped and table.name not in ("agents", "sessions", "schedules"):
            row = {**new_row(table, f"only-{agent_id}"), "agent_id": agent_id}
            numbered = {table.serial: number} if table.serial else {}
            store.submit(AgentsCopy(table=table.name, rows=[{**row, **numbered}]))


def conversation(store: AgentStore, agent_id: str) -> None:
    """Let the agent do what only its own methods do: a turn, a memory, a channel, an approval."""
    one, tag = store.of(agent_id), f"only-{agent_id}"
    usage = {"input": 7 + len(agent_id), "cost": {"total": 0.5}}
    one.events.append_many("shared", [
        {"role": "user", "content": tag, "userId": tag, "messageId": "m"},
        {"role": "assistant", "content": tag, "usage": usage, "model": tag},
        {"role": "system", "type": "agent_end"},
        {"role": "system", "type": "introspection_end", "summary": tag},
        {"role": "system", "type": "context_compaction", "content": tag},
        {"role": "error", "message": tag},
        {"role": "user", "content": tag},
    ])  # fmt: skip
    one.memories.put(f"a kept thing of {agent_id}: {tag}, shared", key="thing")
    one.channels.create_builtin("telegram", config={"of": tag})
    asked = one.approvals.create("shared", tag, tag, tag)
    one.approvals.resolve(asked["id"], "approved", tag)
