"""Agents: documents, memories, skills and MCP servers, schedules with runs, names of secrets."""

from __future__ import annotations

import re
from typing import Any

from hermes_actor.errors import NotFound
from hermes_actor.providers.resolve import masked
from hermes_actor.store.rows import Row
from hermes_actor.web.parameters import Parameter
from hermes_actor.web.stores import ShownStore
from hermes_actor.web.views.view import View
from hermes_protocol.features import AGENTS

__all__ = ["VIEWS"]

_MEMORIES = 50
_RUNS = 5

_REFERENCE = re.compile(r"\$\{\{[\w .-]+\}\}")

_SECRET = re.compile(
    r"key|token|secret|passw|passphrase|credential|authoriz|bearer|cookie|private"
    r"|(^|[^a-z])auth([^a-z]|$)",
    re.IGNORECASE,
)


def _agents(shown: ShownStore, _asked: Row) -> Row:
    store = shown.agents
    agents = store.agents.list()
    ids = [agent["agent_id"] for agent in agents]
    return {
        "agents": agents,
        "activity": store.agents.fleet_stats(ids),
        "skills": [_item(one) for one in store.skills.list()],
        "mcp": [_item(one) for one in store.mcp.list()],
        "for_all": {
            "skills": _switches(store.skills.list_assignments(), "skill_id"),
            "mcp": _switches(store.mcp.list_assignments(), "mcp_server_id"),
        },
        "schedules": store.schedules.list_all(),
    }


def _agent(shown: ShownStore, asked: Row) -> Row:
    store = shown.agents.of(asked["id"])
    agent = store.agents.get()
    if agent is None:
        raise NotFound(f"there is no agent {asked['id'][:200]!r}")
    schedules = store.schedules.list()
    return {
        "agent": agent,
        "config": without_secrets(store.config.get()),
        "security": without_secrets(store.security.get()),
        "instructions": store.instructions.list(),
        "memories": store.memories.list(limit=_MEMORIES),
        "skills": _assigned(
            store.skills.list(), store.skills.list_enabled(), store.skills.list_assignments(),
            "skill_id", asked["id"],
        ),
        "mcp": _assigned(
            store.mcp.list(), store.mcp.list_enabled(), store.mcp.list_assignments(),
            "mcp_server_id", asked["id"],
        ),
        "schedules": [
            {**one, "runs": store.schedules.runs(one["schedule_id"], _RUNS)} for one in schedules
        ],
        "secrets": store.secrets.names(),
        "channels": [
            {name: one.get(name) for name in ("id", "channel_type", "label", "enabled", "status")}
            for one in store.channels.list()
        ],
    }  # fmt: skip


def _item(item: Row) -> Row:
    """Return a skill or an MCP server without what may hold a secret."""
    kept = {name: value for name, value in item.items() if name not in ("headers", "metadata")}
    if kept.get("url"):
        kept["url"] = masked(kept["url"])
    if isinstance(item.get("headers"), dict):
        kept["headers"] = sorted(item["headers"])
    return kept


def _switches(assignments: list[Row], name: str) -> dict[str, bool]:
    """Return the switches for all agents, by item."""
    return {one[name]: bool(one["enabled"]) for one in assignments if one["agent_id"] == "*"}


def _assigned(
    items: list[Row], enabled: list[Row], assignments: list[Row], name: str, agent: str
) -> list[Row]:
    """Return items with their switches: the agent's own, that for all, and which counts."""
    on = {one["id"] for one in enabled}
    own = {one[name]: bool(one["enabled"]) for one in assignments if one["agent_id"] == agent}
    every = _switches(assignments, name)
    return [
        {**_item(one), "enabled": one["id"] in on, "own": own.get(one["id"]),
         "all": every.get(one["id"])}
        for one in items
    ]  # fmt: skip


def without_secrets(value: Any, *, is_secret: bool = False) -> Any:
    """Return a document with a mask for every text whose name says that it is a secret.

    That of anything around it counts, too. Passwords in addresses are masked everywhere.
    References such as ``${{NAME}}`` stay: they are names.
    """
    if isinstance(value, dict):
        return {
            key: without_secrets(inner, is_secret=is_secret or bool(_SECRET.search(str(key))))
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [without_secrets(inner, is_secret=is_secret) for inner in value]
    if not isinstance(value, str) or not value or _REFERENCE.fullmatch(value):
        return value
    return "***" if is_secret else masked(value)


VIEWS = (
    View("agents", "Agents", "Agents of a store, what is registered for them, and schedules.",
         _agents, kind=AGENTS),
    View("agent", "Agent", "One agent: documents, memories, assignments, schedules, secret names.",
         _agent, (Parameter("id", "Id of the agent.", needed=True),), kind=AGENTS, in_menu=False),
)  # fmt: skip
