"""Sandboxes of an agent."""

from __future__ import annotations

from datetime import datetime

from msgspec import UNSET, UnsetType

from hermes_actor.agent_store.subject import Records, Subject, given
from hermes_actor.agents import ids, times
from hermes_actor.agents.documents import dumps
from hermes_actor.agents.rows import Row

__all__ = ["Sandboxes"]


class Sandboxes(Subject):
    """Execution environments: pending, provisioned, deleted."""

    table = "sandboxes"

    def create(
        self,
        alias: str,
        type_: str,
        *,
        id_: str | None = None,
        external_id: str | None = None,
        status: str = "pending",
        config: Row | None = None,
        runtime_state: Row | None = None,
    ) -> Row:
        """Create a sandbox. Raises :class:`Conflict` for an alias in use and a second host."""
        now = self._now()
        row = {
            "id": id_ or ids.random_id(), "alias": alias, "type": type_,
            "external_id": external_id, "status": status, "config": dumps(config or {}),
            "runtime_state": dumps(runtime_state or {}), "created_at": now, "updated_at": now,
        }  # fmt: skip
        return self._stored(row, "insert")

    def get(self, id_: str) -> Row | None:
        """Return a sandbox, deleted ones included."""
        return self._get({"id": id_})

    def get_by_alias(self, alias: str) -> Row | None:
        """Return the sandbox with an alias."""
        return next((one for one in self.list() if one["alias"] == alias), None)

    def list(self) -> Records:
        """Return the sandboxes that were not deleted, by alias."""
        return [one for one in self._list() if one["status"] != "deleted"]

    def list_all(self) -> Records:
        """Return the sandboxes of all agents, by agent and alias."""
        return self._all("status <> 'deleted'")

    def update(
        self,
        id_: str,
        *,
        status: str | None = None,
        external_id: str | UnsetType | None = UNSET,
        config: Row | None = None,
        runtime_state: Row | None = None,
        last_seen_at: str | datetime | UnsetType | None = UNSET,
    ) -> Row | None:
        """Change what is given; returns ``None`` for an unknown sandbox."""
        values = given(status=status, updated_at=self._now())
        if external_id is not UNSET:
            values["external_id"] = external_id
        if last_seen_at is not UNSET:
            seen = last_seen_at
            values["last_seen_at"] = None if seen is None else times.canonical(seen)
        if config is not None:
            values["config"] = dumps(config)
        if runtime_state is not None:
            values["runtime_state"] = dumps(runtime_state)
        return self._patch({"id": id_}, values, missing="nothing")

    def delete(self, id_: str) -> None:
        """Mark a sandbox as deleted; its alias is free again."""
        values = {"status": "deleted", "updated_at": self._now()}
        self._patch({"id": id_}, values, missing="nothing")

    def find_agent_by_type(self, type_: str, *, exclude: str | None = None) -> str | None:
        """Return the first agent with an active sandbox of a type."""
        found = self._all("status <> 'deleted' AND type = :type", {"type": type_})
        return min((one["agent_id"] for one in found if one["agent_id"] != exclude), default=None)
