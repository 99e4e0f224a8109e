"""Changes of agents: provision, remove, own, documents; fan-out of instructions; approvals."""

from __future__ import annotations

from hermes_actor.agents import verbs
from hermes_actor.agents.changes.registry import applies
from hermes_actor.agents.documents import (
    check_depth,
    dumps,
    loads,
    object_or_none,
    set_path,
)
from hermes_actor.agents.rows import Row, Rows
from hermes_actor.agents.tables import TABLES
from hermes_actor.agents.times import after
from hermes_actor.agents.values import checked_row, scope_of
from hermes_actor.errors import BadValue
from hermes_protocol.agents import (
    AgentsDocument,
    AgentsExpire,
    AgentsFanout,
    AgentsOwn,
    AgentsProvision,
    AgentsRemove,
)

__all__ = ["own"]

_AGENTS = TABLES["agents"]


@applies(AgentsProvision)
def provision(rows: Rows, op: AgentsProvision) -> Row:
    """Create an agent and everything that belongs to a new one."""
    verbs.insert(rows, _AGENTS, op.agent_id, op.agent)
    for name, some in (
        ("sessions", op.sessions),
        ("sandboxes", op.sandboxes),
        ("agent_channels", op.channels),
    ):
        for row in some:
            verbs.insert(rows, TABLES[name], op.agent_id, row)
    for row in op.instructions:
        verbs.upsert(rows, TABLES["instructions"], op.agent_id, row, keep=True)
    if op.owner is not None:
        own(rows, AgentsOwn(agent_id=op.agent_id, user_id=op.owner, now=op.now))
    found = verbs.find(rows, _AGENTS, op.agent_id, {})
    assert found is not None
    return found


@applies(AgentsRemove)
def remove(rows: Rows, op: AgentsRemove) -> Row:
    """Delete the rows of an agent in every table that has agents, and the skills that it owns."""
    scope = scope_of(_AGENTS, op.agent_id)
    counts = {}
    # Children first: what goes with a parent would not be counted.
    for table in reversed(TABLES.values()):
        if table.scoped:
            counts[table.name] = rows.run(
                f"DELETE FROM @{table.name} WHERE agent_id = :agent_id", scope
            )
        elif table.column("owner_agent_id") is not None:
            counts[table.name] = rows.run(
                f"DELETE FROM @{table.name} WHERE owner_agent_id = :agent_id", scope
            )
    return {name: count for name, count in counts.items() if count}


@applies(AgentsOwn)
def own(rows: Rows, op: AgentsOwn) -> None:
    """Make a user an owner."""
    person = {"user_id": op.user_id, "created_at": op.now, "updated_at": op.now}
    verbs.upsert(rows, TABLES["users"], None, person, keep=True)
    role = {"user_id": op.user_id, "role": "owner", "created_at": op.now}
    verbs.upsert(rows, TABLES["user_agents"], op.agent_id, role)


@applies(AgentsDocument)
def set_document(rows: Rows, op: AgentsDocument) -> None:
    """Set a value in a document, its siblings kept; a whole document with an empty path."""
    column = f"{op.document}_json"
    found = verbs.find(rows, _AGENTS, op.agent_id, {}, lock=True)
    if found is None:
        raise verbs.missing(_AGENTS, {"agent_id": op.agent_id})
    document = set_path(object_or_none(found[column]), op.path, loads(op.value))
    check_depth(document)
    values = {column: dumps(document), "updated_at": op.now}
    verbs.update(rows, _AGENTS, op.agent_id, {}, values)


@applies(AgentsFanout)
def fan_out(rows: Rows, op: AgentsFanout) -> list[str]:
    """Set, append to, or remove one instruction of every registered agent."""
    table, key = TABLES["instructions"], op.key.strip()
    if op.mode not in ("set", "append", "remove"):
        raise BadValue(f"a fan-out sets, appends or removes; not {op.mode[:60]!r}")
    if not key:
        raise BadValue("a fan-out needs the key of an instruction")
    if op.mode != "remove" and not op.content:
        raise BadValue("a fan-out that sets or appends needs a text")
    checked_row(table, {"key": key, "content": op.content or "-", "updated_at": op.now})
    ids = [op.agent_id] if op.agent_id is not None else _registered(rows)
    for agent_id in ids:
        if op.mode == "remove":
            verbs.delete(rows, table, agent_id, {"key": key})
            continue
        content = op.content or ""
        before = verbs.find(rows, table, agent_id, {"key": key}, lock=True)
        if op.mode == "append" and before is not None and before["content"]:
            content = f"{before['content'].rstrip()}\n{content}"
        row = {"key": key, "content": content, "updated_at": op.now}
        verbs.upsert(rows, table, agent_id, row)
    return ids


def _registered(rows: Rows) -> list[str]:
    return [row["agent_id"] for row in rows.all("SELECT agent_id FROM @agents ORDER BY agent_id")]


@applies(AgentsExpire)
def expire(rows: Rows, op: AgentsExpire) -> int:
    """Expire pending approvals whose time is over."""
    expired = 0
    sql = "SELECT agent_id, id, created_at, ttl_minutes FROM @approval_requests"
    for row in rows.all(f"{sql} WHERE status = 'pending'{rows.lock}"):
        if after(row["created_at"], 60 * row["ttl_minutes"]) < op.now:
            values = {"status": "expired", "resolved_at": op.now}
            verbs.update(
                rows, TABLES["approval_requests"], row["agent_id"], {"id": row["id"]}, values
            )
            expired += 1
    return expired
