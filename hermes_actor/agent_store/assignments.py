"""Skills and MCP servers, and their assignment to one agent or to all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from hermes_actor.agent_store.subject import Records, Subject
from hermes_actor.agents import times
from hermes_actor.agents.documents import dumps, resolve
from hermes_actor.agents.questions import fleet
from hermes_actor.agents.records import record
from hermes_actor.agents.rows import Row
from hermes_actor.agents.tables import TABLES
from hermes_actor.errors import BadValue
from hermes_protocol.agents import AgentsPut

__all__ = ["McpServers", "Skills"]


class _Assigned(Subject):
    """Items that are registered once, and switched on for agents."""

    assignments: ClassVar[str]
    objects: ClassVar[tuple[str, ...]]
    """Columns that hold objects; left out of records when they are empty."""

    def _record(self, row: Mapping[str, Any]) -> Row:
        made = super()._record(row)
        return {name: value for name, value in made.items() if value or name not in self.objects}

    def upsert(self, item: Row) -> Row:
        """Register an item, or replace the one of its id."""
        now = self._now()
        row = {"description": "", **item}
        for name in ("created_at", "updated_at"):
            row[name] = times.canonical(row.get(name) or now)
        for name in self.objects:
            row[name] = dumps(row.get(name) or {})
        return self._stored(row)

    def get(self, id_: str) -> Row | None:
        """Return an item, ``None`` if there is none."""
        return self._get({"id": id_})

    def list(self) -> Records:
        """Return all items by name."""
        return self._list()

    def delete(self, id_: str) -> bool:
        """Delete an item with its assignments; returns False if there was none."""
        return bool(self._delete({"id": id_}))

    def enable(self, id_: str, *, agent: str | None = None) -> str:
        """Switch an item on for an agent, or with ``agent="*"`` for all, later ones included.

        Returns whom it concerns. Raises :class:`NotFound` for an unknown item.
        """
        return self._assign(id_, agent, True)

    def disable(self, id_: str, *, agent: str | None = None) -> str:
        """Switch an item off; an agent's own switch beats the one for all."""
        return self._assign(id_, agent, False)

    def _assign(self, id_: str, agent: str | None, enabled: bool) -> str:
        whom = self._agent if agent is None else agent
        row: Row = {
            TABLES[self.assignments].key[0]: id_,
            "enabled": enabled,
            "created_at": self._now(),
        }
        self._store.submit(
            AgentsPut(table=self.assignments, rows=[row], agent_id=whom, mode="upsert")
        )
        return whom

    def list_enabled(self) -> Records:
        """Return the items that are effective for this agent, by name."""
        found = self._store.ask(fleet.enabled, self.table, self.assignments, self._agent)
        return [{n: v for n, v in one.items() if v or n not in self.objects} for one in found]

    def list_assignments(self, id_: str | None = None) -> Records:
        """Return the assignments as they are stored, those to all agents included."""
        name = TABLES[self.assignments].key[0]
        where, values = ("1 = 1", None) if id_ is None else (f"{name} = :item", {"item": id_})
        found = self._store.ask(fleet.all_of, self.assignments, where, values)
        return [record(TABLES[self.assignments], row) for row in found]


class Skills(_Assigned):
    """Skills."""

    table = "skills"
    assignments = "agent_skills"
    objects = ("metadata",)

    def upsert(self, item: Row) -> Row:
        """Register a skill, or replace the one of its id; the slug defaults to the id.

        Raises :class:`Conflict` if another skill has the slug.
        """
        if item.get("source") == "user" and not item.get("owner_agent_id"):
            raise BadValue("a skill of a user needs its owner_agent_id")
        return super().upsert({"slug": item.get("id"), **item})


class McpServers(_Assigned):
    """MCP servers."""

    table = "mcp_servers"
    assignments = "agent_mcp_servers"
    objects = ("headers", "metadata")

    def list_enabled(self, *, with_headers: bool = False) -> Records:
        """Return the effective servers; of their headers only the names, unless asked for."""
        found = super().list_enabled()
        if with_headers:
            return found
        return [_without_values(one) for one in found]

    def headers(self, id_: str) -> dict[str, str]:
        """Return the headers of a server for use: ``${{NAME}}`` replaced by secrets."""
        found = self.get(id_)
        made: dict[str, str] = resolve(
            (found or {}).get("headers", {}), self._store.secrets.values()
        )
        return made


def _without_values(server: Row) -> Row:
    if "headers" not in server:
        return server
    return {**server, "headers": sorted(server["headers"])}
