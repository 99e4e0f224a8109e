"""Policies, approvals, attachments, and tokens that can be used once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hermes_actor.agent_store.subject import Records, Subject, counted, given
from hermes_actor.agents import ids, times
from hermes_actor.agents.documents import dumps
from hermes_actor.agents.questions.memories import Principal, visible
from hermes_actor.agents.rows import Row
from hermes_actor.errors import BadValue
from hermes_protocol.agents import AgentsDelete, AgentsExpire

__all__ = ["Approvals", "Attachments", "Policies", "Tokens"]

_EFFECTS = ("deny", "require_approval", "allow")
"""The strongest first."""


class Policies(Subject):
    """Rules on the use of resources: who may, who may not, and who must ask."""

    table = "agent_policies"

    def list(self, resource_type: str | None = None) -> Records:
        """Return the policies of the agent."""
        return self._list(given(resource_type=resource_type))

    def get(self, resource_type: str, resource_key: str, effect: str | None = None) -> Row | None:
        """Return the first policy for a resource."""
        key = {"resource_type": resource_type, "resource_key": resource_key}
        return next(iter(self._list({**key, **given(effect=effect)})), None)

    def upsert(
        self,
        resource_type: str,
        resource_key: str,
        *,
        effect: str = "allow",
        grants: Sequence[Row] = (),
        scope: Row | None = None,
    ) -> Row:
        """Set grants and scope of a policy; one that exists keeps its id."""
        now = self._now()
        values = {"grants": dumps(list(grants)), "scope": dumps(scope or {}), "updated_at": now}
        found = self.get(resource_type, resource_key, effect)
        if found is not None:
            return self._patched({"id": found["id"]}, values)
        row = {"resource_type": resource_type, "resource_key": resource_key, "effect": effect}
        return self._stored({"id": ids.random_id(), "created_at": now, **row, **values}, "insert")

    def delete(self, resource_type: str, resource_key: str, effect: str | None = None) -> None:
        """Delete the policies for a resource."""
        key = {"resource_type": resource_type, "resource_key": resource_key}
        self._delete({**key, **given(effect=effect)})

    def evaluate(
        self, resource_type: str, resource_key: str, principal: Principal, default: str = "allow"
    ) -> str:
        """Return the effect for a caller: *default* without a policy, deny if none fits."""
        rules = [one for one in self.list(resource_type) if _matches(one, resource_key)]
        if not rules:
            return default
        fitting = {
            one["effect"] for one in rules if not one["grants"] or visible(one["grants"], principal)
        }
        return next((effect for effect in _EFFECTS if effect in fitting), "deny")


def _matches(policy: Row, resource_key: str) -> bool:
    pattern = policy["resource_key"]
    if pattern.endswith("*"):
        return resource_key.startswith(pattern[:-1])
    return bool(pattern == resource_key)


class Approvals(Subject):
    """Questions to a person, before something is done."""

    table = "approval_requests"

    def create(
        self,
        session_id: str,
        requester_id: str,
        resource_type: str,
        resource_key: str,
        *,
        scope: Row | None = None,
        ttl_minutes: int = 60,
    ) -> Row:
        """Ask; the record has a short number for people."""
        row = {
            "id": ids.random_id(), "session_id": session_id, "requester_id": requester_id,
            "resource_type": resource_type, "resource_key": resource_key,
            "scope": dumps(scope or {}), "ttl_minutes": ttl_minutes, "created_at": self._now(),
        }  # fmt: skip
        return self._stored(row, "insert")

    def get(self, id_: str) -> Row | None:
        """Return an approval."""
        return self._get({"id": id_})

    def get_by_short_id(self, short_id: int) -> Row | None:
        """Return an approval by its short number."""
        return next((one for one in self._list() if one["short_id"] == short_id), None)

    def list(self, status: str | None = None) -> Records:
        """Return the approvals of the agent, the newest first."""
        return self._list(given(status=status))

    def find_approved(self, requester_id: str, resource_type: str, resource_key: str) -> Row | None:
        """Return the newest approval that still holds."""
        key = {"requester_id": requester_id, "resource_type": resource_type}
        found = self._list({**key, "resource_key": resource_key, "status": "approved"}, 1)
        if not found:
            return None
        ends = times.after(found[0]["created_at"], 60 * found[0]["ttl_minutes"])
        holds = found[0].get("resolution") == "persistent" or ends >= self._now()
        return found[0] if holds else None

    def resolve(
        self,
        id_: str,
        status: str,
        resolved_by: str,
        *,
        resolution: str | None = None,
        reason: str | None = None,
    ) -> Row:
        """Approve or reject. Raises :class:`Conflict` if it is not pending any more."""
        if status not in ("approved", "rejected"):
            raise BadValue("an approval is approved or rejected")
        values = {
            "status": status, "resolved_by": resolved_by, "reason": reason,
            "resolution": resolution or ("once" if status == "approved" else None),
            "resolved_at": self._now(),
        }  # fmt: skip
        return self._patched({"id": id_}, values, expect={"status": "pending"})

    def expire_old(self) -> int:
        """Expire pending approvals of all agents whose time is over; returns how many."""
        return self._store.submit(AgentsExpire(now=self._now()))


class Attachments(Subject):
    """Files of sessions; their bytes are kept elsewhere."""

    table = "session_attachments"

    def create(self, session_id: str, **fields: Any) -> Row:
        """Note a file; fields as in the table. Raises :class:`NotFound` without the session."""
        row = {"id": ids.attachment_id(), "session_id": session_id, "created_at": self._now()}
        return self._stored({**row, **fields}, "insert")

    def get(self, id_: str) -> Row | None:
        """Return an attachment."""
        return self._get({"id": id_})

    def list(
        self,
        session_id: str | None = None,
        *,
        kind: str = "session",
        user_id: str | None = None,
        limit: int = 100,
    ) -> Records:
        """Return attachments of a session, or with ``kind="user"`` of a user; newest first."""
        if kind == "user":
            if user_id is None:
                raise BadValue("attachments of a user need the user")
            return self._list({"uploader_user_id": user_id}, limit)
        if session_id is None:
            raise BadValue("attachments of a session need the session")
        return self._list({"session_id": session_id}, limit)

    def set_materialization(
        self,
        id_: str,
        state: str,
        *,
        sandbox_id: str | None = None,
        sandbox_path: str | None = None,
        error: str | None = None,
    ) -> Row:
        """Note whether the file is in its sandbox. Raises :class:`BadValue` for another state."""
        values = {"materialization_state": state, "materialization_error": error}
        return self._patched(
            {"id": id_}, {**values, **given(sandbox_id=sandbox_id, sandbox_path=sandbox_path)}
        )

    def delete(self, id_: str) -> bool:
        """Forget an attachment."""
        return bool(self._delete({"id": id_}))


class Tokens(Subject):
    """Tokens that can be used once."""

    table = "consumed_jtis"

    def try_consume(self, jti: str, expires_at: int) -> bool:
        """Use a token; returns True the first time and False ever after."""
        row = {"jti": jti, "expires_at": expires_at, "consumed_at": self._now()}
        return self._put(row, mode="ignore").inserted == 1

    def sweep_expired(self, now_seconds: int) -> int:
        """Forget tokens that have expired; returns how many."""
        now = counted(now_seconds, "now_seconds", None)
        found = self._all("expires_at < :now", {"now": now})
        for one in found:
            self._store.submit(AgentsDelete(table=self.table, key={"jti": one["jti"]}))
        return len(found)
