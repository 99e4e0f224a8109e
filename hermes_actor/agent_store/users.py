"""Users, their identities on channels, and their roles."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from datetime import datetime

from hermes_actor.agent_store.subject import Records, Subject, mapping
from hermes_actor.agents import ids, times
from hermes_actor.agents.changes.users import resolve
from hermes_actor.agents.questions import fleet
from hermes_actor.agents.records import record
from hermes_actor.agents.rows import Row, Rows
from hermes_actor.agents.tables import TABLES
from hermes_actor.agents.values import shown
from hermes_actor.errors import BadValue
from hermes_protocol.agents import (
    AgentsDelete,
    AgentsIdentify,
    AgentsLink,
    AgentsMerge,
    AgentsPromote,
    AgentsPut,
)

__all__ = ["Users"]

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def _guest_id() -> str:
    """Return the id of an automatic guest: the milliseconds in base 36, and a little chance."""
    number, text = int(time.time() * 1000), ""
    while number:
        number, digit = divmod(number, 36)
        text = _DIGITS[digit] + text
    return f"usr-{text}-{os.urandom(3).hex()}"


def _of_users(rows: Rows, table: str, user_ids: Sequence[str]) -> dict[str, Records]:
    wanted = set(user_ids)
    found: dict[str, Records] = {}
    for start in range(0, len(user_ids), 500):
        values = {f"u{n}": one for n, one in enumerate(user_ids[start : start + 500])}
        listed = ", ".join(f":{name}" for name in values)
        for row in fleet.all_of(rows, table, f"user_id IN ({listed})", values):
            if row["user_id"] in wanted:
                found.setdefault(row["user_id"], []).append(record(TABLES[table], row))
    return found


class Users(Subject):
    """People, over all agents; their roles are those of the agent of the store."""

    table = "users"

    def upsert(self, user: Row) -> None:
        """Insert a user or replace its name and ``merged_into``; its creation stays."""
        now = self._now()
        mapping(user, "a user")
        self._put({
            "user_id": user.get("user_id"),
            "name": user.get("name"),
            "merged_into": user.get("merged_into"),
            "created_at": times.canonical(user.get("created_at") or now),
            "updated_at": times.canonical(user.get("updated_at") or now),
        })  # fmt: skip

    def get(self, user_id: str) -> Row | None:
        """Return a user; ``None`` if there is none, or if it was merged into another."""
        found = self._get({"user_id": user_id})
        return None if found is None or "merged_into" in found else found

    def described(self, user_id: str) -> Row | None:
        """Return a user with its identities and roles."""
        found = self.get(user_id)
        if found is None:
            return None
        return {**found, "identities": self.identities(user_id), "roles": self.roles_of(user_id)}

    def list(self) -> Records:
        """Return all users that were not merged, the oldest first."""
        return self._all("merged_into IS NULL")

    def delete(self, user_id: str) -> None:
        """Delete a user with its identities and roles."""
        self._delete({"user_id": user_id})

    def ensure_for_identity(
        self, channel: str, channel_user_id: str, *, name: str | None = None, style: str = "guest"
    ) -> Row:
        """Return the user of an identity; without one create it. *style*: guest, admin, handle."""
        makers = {"guest": _guest_id, "admin": ids.user_id, "handle": ids.identity_id}
        if style not in makers:
            raise BadValue(f"the style of an id is one of {', '.join(makers)}, not {shown(style)}")
        done = self._store.submit(
            AgentsIdentify(
                channel=channel,
                channel_user_id=channel_user_id,
                user_id=makers[style](),
                name=name,
                now=self._now(),
            )
        )
        return {"user_id": done.user_id, "created": done.created}

    def link_identity(
        self,
        user_id: str,
        channel: str,
        channel_user_id: str,
        created_at: str | datetime | None = None,
    ) -> Row:
        """Give an identity to a user; a former user without any other is absorbed."""
        done = self._store.submit(
            AgentsLink(
                user_id=user_id,
                channel=channel,
                channel_user_id=channel_user_id,
                now=self._now(created_at),
            )
        )
        return {"moved_from": done.moved_from, "absorbed": done.absorbed}

    def unlink_identity(self, channel: str, channel_user_id: str) -> bool:
        """Remove an identity; the user stays."""
        key: Row = {"channel": channel, "channel_user_id": channel_user_id}
        return bool(self._store.submit(AgentsDelete(table="user_identities", key=key)))

    def resolve(self, channel: str, channel_user_id: str) -> str | None:
        """Return the user of an identity."""
        return self._store.ask(resolve, channel, channel_user_id)

    def identities(self, user_id: str) -> Records:
        """Return the identities of a user, the oldest first."""
        return self.identities_many([user_id]).get(user_id, [])

    def identities_many(self, user_ids: Sequence[str]) -> dict[str, Records]:
        """Return the identities of users that have some."""
        return self._store.ask(_of_users, "user_identities", list(user_ids))

    def merge(self, from_user_id: str, into_user_id: str) -> dict[str, int]:
        """Move everything of one user to another and delete it; returns what moved."""
        return self._store.submit(AgentsMerge(from_user_id=from_user_id, into_user_id=into_user_id))

    def assign_role(
        self, user_id: str, role: str, created_at: str | datetime | None = None
    ) -> None:
        """Give a user a role on the agent. Raises :class:`NotFound` for an unknown user."""
        row: Row = {"user_id": user_id, "role": role, "created_at": self._now(created_at)}
        self._store.submit(
            AgentsPut(table="user_agents", rows=[row], agent_id=self._agent, mode="upsert")
        )

    def promote_owner(self, user_id: str) -> None:
        """Make a user the owner. Raises :class:`Conflict` if another user is."""
        self._store.submit(AgentsPromote(agent_id=self._agent, user_id=user_id, now=self._now()))

    def remove_role(self, user_id: str) -> None:
        """Take the role on the agent away."""
        key: Row = {"user_id": user_id}
        self._store.submit(AgentsDelete(table="user_agents", key=key, agent_id=self._agent))

    def role(self, user_id: str) -> str | None:
        """Return the role of a user on the agent."""
        key = {"user_id": user_id}
        found = self._store.ask(fleet.find_row, "user_agents", self._agent, key)
        return None if found is None else found["role"]

    def members(self) -> Records:
        """Return the roles on the agent, the oldest first."""
        found = self._store.ask(fleet.list_rows, "user_agents", self._agent, {}, None)
        return [record(TABLES["user_agents"], row) for row in found]

    def roles_of(self, user_id: str) -> Records:
        """Return the roles of a user on all agents."""
        return self.roles_of_many([user_id]).get(user_id, [])

    def roles_of_many(self, user_ids: Sequence[str]) -> dict[str, Records]:
        """Return the roles of users that have some."""
        return self._store.ask(_of_users, "user_agents", list(user_ids))
