"""Notifications of changes, for subscribers: operation, table and agent, never a value."""

from __future__ import annotations

from typing import Any

from hermes_protocol.messages import Changed
from hermes_protocol.operations import Operation

__all__ = ["change_of"]

_TABLES = {
    "agents.append": "session_events", "agents.sweep": "sessions", "agents.document": "agents",
    "agents.merge_memory": "memories", "agents.fanout": "instructions", "agents.link": "users",
    "agents.identify": "users", "agents.merge": "users", "agents.promote": "user_agents",
    "agents.own": "user_agents", "agents.claim": "schedules", "agents.renew": "schedules",
    "agents.complete": "schedules", "agents.plan": "schedules", "agents.expire":
    "approval_requests", "agents.provision": "agents", "agents.remove": "agents",
}  # fmt: skip


def change_of(operation: Operation[Any], commit_no: int) -> Changed:
    """Return the notification of an applied operation."""
    tag = str(operation.__struct_config__.tag)
    table = getattr(operation, "table", None) or _TABLES.get(tag)
    agent_id = getattr(operation, "agent_id", None)
    return Changed(commit_no=commit_no, op=tag, table=table, agent_id=agent_id)
