"""Changes of users: identities, merge, roles."""

from __future__ import annotations

from hermes_actor.agents import verbs
from hermes_actor.agents.changes.registry import applies
from hermes_actor.agents.documents import dumps, loads
from hermes_actor.agents.rows import Rows
from hermes_actor.agents.tables import TABLES
from hermes_actor.errors import BadValue, Conflict
from hermes_protocol.agents import (
    AgentsIdentify,
    AgentsLink,
    AgentsMerge,
    AgentsPromote,
    Identified,
    Linked,
)

__all__ = ["resolve"]

_USERS, _IDENTITIES, _ROLES = TABLES["users"], TABLES["user_identities"], TABLES["user_agents"]

_STRENGTH = ("guest", "user", "owner")


def resolve(rows: Rows, channel: str, channel_user_id: str) -> str | None:
    """Return the user of an identity, or the one that it was merged into, one step only."""
    found = rows.one(
        "SELECT u.user_id AS user_id, u.merged_into AS merged_into FROM @user_identities i"
        " JOIN @users u ON u.user_id = i.user_id"
        " WHERE i.channel = :channel AND i.channel_user_id = :channel_user_id",
        {"channel": channel, "channel_user_id": channel_user_id},
    )
    return None if found is None else found["merged_into"] or found["user_id"]


@applies(AgentsIdentify)
def identify(rows: Rows, op: AgentsIdentify) -> Identified:
    """Resolve an identity, or create a user for it."""
    found = resolve(rows, op.channel, op.channel_user_id)
    if found is not None:
        return Identified(user_id=found)
    times = {"created_at": op.now, "updated_at": op.now}
    verbs.insert(rows, _USERS, None, {"user_id": op.user_id, "name": op.name, **times})
    link = {"channel": op.channel, "channel_user_id": op.channel_user_id, "created_at": op.now}
    _, new = verbs.upsert(rows, _IDENTITIES, None, {**link, "user_id": op.user_id}, keep=True)
    if not new:
        raise Conflict(f"the identity {op.channel}/{op.channel_user_id} was linked meanwhile")
    return Identified(user_id=op.user_id, created=True)


@applies(AgentsLink)
def link_identity(rows: Rows, op: AgentsLink) -> Linked:
    """Give an identity to a user; a former user without any other is absorbed."""
    if verbs.find(rows, _USERS, None, {"user_id": op.user_id}, lock=True) is None:
        raise verbs.missing(_USERS, {"user_id": op.user_id})
    key = {"channel": op.channel, "channel_user_id": op.channel_user_id}
    before = verbs.find(rows, _IDENTITIES, None, key, lock=True)
    verbs.upsert(rows, _IDENTITIES, None, {**key, "user_id": op.user_id, "created_at": op.now})
    if before is None or before["user_id"] == op.user_id:
        return Linked()
    left = rows.value(
        "SELECT COUNT(*) AS n FROM @user_identities WHERE user_id = :user_id",
        {"user_id": before["user_id"]},
    )
    if not left:
        _move(rows, before["user_id"], op.user_id)
    return Linked(moved_from=before["user_id"], absorbed=not left)


@applies(AgentsMerge)
def merge(rows: Rows, op: AgentsMerge) -> dict[str, int]:
    """Move everything of one user to another and delete it."""
    if op.from_user_id == op.into_user_id:
        raise BadValue("a user cannot be merged into itself")
    users = {}
    for user_id in sorted((op.from_user_id, op.into_user_id)):
        found = verbs.find(rows, _USERS, None, {"user_id": user_id}, lock=True)
        if found is None:
            raise verbs.missing(_USERS, {"user_id": user_id})
        users[user_id] = found
    source, target = users[op.from_user_id], users[op.into_user_id]
    if source["name"] and not target["name"]:
        values = {"name": source["name"]}
        verbs.update(rows, _USERS, None, {"user_id": op.into_user_id}, values)
    return _move(rows, op.from_user_id, op.into_user_id)


def _move(rows: Rows, source: str, target: str) -> dict[str, int]:
    """Re-point everything of *source* to *target*, then delete it; return what moved."""
    both = {"source": source, "target": target}
    counts = {
        "identities": rows.run(
            "UPDATE @user_identities SET user_id = :target WHERE user_id = :source", both
        ),
        "roles": _move_roles(rows, source, target),
        "events": rows.run(
            "UPDATE @session_events SET user_id = :target WHERE user_id = :source", both
        ),
        "schedules": rows.run(
            "UPDATE @schedules SET created_by = :target WHERE created_by = :source", both
        ),
        "sessions": _move_participants(rows, source, target),
    }
    verbs.delete(rows, _USERS, None, {"user_id": source})
    return counts


def _move_roles(rows: Rows, source: str, target: str) -> int:
    """Give the roles of *source* to *target*; where both have one, the stronger wins."""
    sql = "SELECT agent_id, role, created_at FROM @user_agents WHERE user_id = :user_id"
    ours = {row["agent_id"]: row["role"] for row in rows.all(sql, {"user_id": target})}
    theirs = rows.all(sql, {"user_id": source})
    for row in theirs:
        own = ours.get(row["agent_id"])
        role = max(row["role"], own or row["role"], key=_STRENGTH.index)
        given = {"user_id": target, "role": role, "created_at": row["created_at"]}
        verbs.upsert(rows, _ROLES, row["agent_id"], given)
        verbs.delete(rows, _ROLES, row["agent_id"], {"user_id": source})
    return len(theirs)


def _move_participants(rows: Rows, source: str, target: str) -> int:
    found = rows.all(
        "SELECT agent_id, session_id, user_ids FROM @sessions"
        f" WHERE {rows.list_has('user_ids', 'who')}",
        {"who": dumps(source)},
    )
    for row in found:
        people = [target if one == source else one for one in loads(row["user_ids"])]
        values = {"user_ids": dumps(list(dict.fromkeys(people)))}
        key = {"session_id": row["session_id"]}
        verbs.update(rows, TABLES["sessions"], row["agent_id"], key, values)
    return len(found)


@applies(AgentsPromote)
def promote(rows: Rows, op: AgentsPromote) -> None:
    """Make a user the only owner."""
    members = verbs.select(rows, _ROLES, op.agent_id, {}, lock=True)
    for member in members:
        if member["role"] == "owner" and member["user_id"] != op.user_id:
            raise Conflict(f"{member['user_id']} is the owner of {op.agent_id} already")
    role = {"user_id": op.user_id, "role": "owner", "created_at": op.now}
    verbs.upsert(rows, _ROLES, op.agent_id, role)
