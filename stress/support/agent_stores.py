"""Agent stores of every kind, with a clock that tests move."""

import uuid
from pathlib import Path
from typing import Any

from hermes_actor import AgentStore
from hermes_actor.agents.times import after
from hermes_actor.agents.vault import Vault
from support import servers
from support.stores import SERVERS

__all__ = ["KEY", "OTHER_KEY", "START", "Agents", "Clock", "open_agents", "session", "unique"]

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
