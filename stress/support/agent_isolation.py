"""Programs of one agent against the rows of another: every operation, and every question.

A has a row of the key ``shared`` wherever B has one. What B has is compared as it is stored; what A
is answered must not hold the mark of B.
"""

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from msgspec import to_builtins

from hermes_actor import AgentStore
from hermes_actor.agents.tables import TABLES, Column, Form, Table
from hermes_actor.errors import RequestError
from hermes_protocol import agents as protocol
from hermes_protocol.agents import AGENT_OPERATIONS
from support.agent_stores import START, new_row, parents, value_for

__all__ = [
    "CALLS", "CHANGES", "CLASSES", "GLOBAL", "READS", "SAME", "SPECIAL", "check", "of", "questions",
]  # fmt: skip

SCOPED = [table for table in TABLES.values() if table.scoped]
END = "2030-01-01T00:00:00.000Z"


def _another(column: Column) -> Any:
    """A value of *column* that no row of B has."""
    if column.form is Form.FLAG:
        return False
    if column.form is Form.NUMBER:
        return 7
    if column.form is Form.TIME:
        return END
    return column.values[-1] if column.values else value_for(column, "only-A")


def on_table(kind: str) -> Callable[[Table], Any]:
    """A general operation of A on the row of a table that B has as well."""

    def make(table: Table) -> Any:
        key: dict[str, Any] = {name: 1 if name == table.serial else "shared" for name in table.key}
        row = new_row(table, "only-A")
        of: dict[str, Any] = {"table": table.name, "agent_id": "A"}
        named = {*table.key, *(name for link in table.foreign for name in link.columns)}
        columns = [c for c in table.columns if not c.once and c.name not in {*named, "agent_id"}]
        column = columns[0]
        changed = {column.name: _another(column)}
        made: dict[str, Any] = {
            "put": protocol.AgentsPut(rows=[row], mode="upsert", **of),
            "insert": protocol.AgentsPut(rows=[row], **of),
            "ignore": protocol.AgentsPut(rows=[row], mode="ignore", **of),
            "patch": protocol.AgentsPatch(key=key, set=changed, **of),
            "delete": protocol.AgentsDelete(key=key, **of),
            "replace": protocol.AgentsReplace(key=key, rows=[row], **of),
            "clear": protocol.AgentsReplace(key=key, rows=[], **of),
        }
        return made[kind]

    return make


SPECIAL: dict[str, dict[str, Any]] = {
    "provision": {"now": END, "agent": {"workspace_dir": "/w", "created_at": END,
                                        "updated_at": END}},
    "remove": {}, "own": {"user_id": "shared", "now": END},
    "document": {"document": "config", "path": "a", "value": "1", "now": END},
    "sweep": {"older_than": END},
    "append": {"session_id": "shared", "count": 1, "message_id": "m",
               "entries": [f'{{"role":"user","content":"only-A","ts":"{START}"}}']},
    "merge_memory": {"memory_key": "shared", "set": {"content": "only-A"}, "metadata": "{}"},
    "fanout": {"mode": "append", "key": "shared", "content": "only-A", "now": END},
    "promote": {"user_id": "shared", "now": END},
    "claim": {"now": END, "worker": "A", "expires_at": END},
    "renew": {"run_id": 1, "worker": "A", "now": END, "expires_at": END},
    "complete": {"run_id": 1, "worker": "A", "status": "completed", "now": END},
}  # fmt: skip
"""Operations of one agent that are more than one table, and their fields."""

CLASSES = {str(kind.__struct_config__.tag).partition(".")[2]: kind for kind in AGENT_OPERATIONS}
KINDS = ("put", "insert", "ignore", "patch", "delete", "replace", "clear")
CALLS = [(f"{kind} {table.name}", on_table(kind)(table)) for kind in KINDS for table in SCOPED]
CALLS += [(name, CLASSES[name](agent_id="A", **fields)) for name, fields in SPECIAL.items()]

_SAME: dict[str, dict[str, Any]] = {
    "sandboxes": {"id": "new", "alias": "only-B", "type": "docker"},
    "agent_policies": {"id": "new", "resource_type": "only-B", "resource_key": "only-B"},
    "agent_channels": {"id": "new", "namespace": "telegram", "revoked_at": None},
}
SAME = [
    (f"same in {name}", protocol.AgentsPut(
        table=name, rows=[{**new_row(TABLES[name], "only-A"), **same}], agent_id="A"))
    for name, same in _SAME.items()
]  # fmt: skip
"""Rows of A with what must be unique within an agent, as B has it."""


def of(store: AgentStore, agent_id: str) -> dict[str, list[Any]]:
    rows = {t.name: [r for r in store.rows(t.name) if r["agent_id"] == agent_id] for t in SCOPED}
    return {**rows, "skills": [r for r in store.rows("skills") if r["owner_agent_id"] == agent_id]}


MARKS = ("only-B", "'agent_id': 'B'")
"""What only rows of B hold."""


def shows_nothing(name: str, answer: Any) -> None:
    """Raise AssertionError if *answer* holds something of B."""
    assert not any(mark in str(answer) for mark in MARKS), (name, answer)


def check(store: AgentStore, program: Iterable[tuple[str, Any]]) -> None:
    """Run *program* as A. Raises AssertionError if anything of B changes or shows."""
    before = of(store, "B")
    assert all(before.values())
    # Where A has no row of a key yet, that of B would be found.
    for name, answer in everything(store.of("A")):
        shows_nothing(name, answer)
    parents(store, "A")
    for name, operation in program:
        answer = None
        with contextlib.suppress(RequestError):
            answer = store.submit(operation)
        shows_nothing(name, to_builtins(answer))
        assert of(store, "B") == before, name
    for name, answer in everything(store.of("A")):
        shows_nothing(name, answer)
    assert "worker='A'" not in str(of(store, "B"))
    assert str(of(store, "B")).count("only-B") >= len(SCOPED)


# --- what A can ask for --------------------------------------------------------------------------

GLOBAL = {
    "agents": {"list", "counts", "check", "fleet_stats", "fleet_usage"},
    "users": {"list", "get", "described", "resolve", "identities", "identities_many", "roles_of",
              "roles_of_many"},
    "skills": {"list", "get", "list_assignments"}, "mcp": {"list", "get", "list_assignments"},
    "schedules": {"list_all", "all_due", "unplanned_cron"}, "sandboxes": {"list_all",
    "find_agent_by_type"}, "channels": {"load_active"}, "secrets": {"undecryptable"},
    "meta": {"get", "get_json"},
}  # fmt: skip
"""Questions over all agents, or about what belongs to none, as their names say."""

ARGUMENTS = {
    "session_id": "shared", "key": "shared", "query": "only-B shared", "after_id": 0, "limit": 50,
    "message_id": "m", "user_id": "shared", "role": "owner", "path": "", "id_": "shared",
    "channel_type": "shared", "profile": "shared", "name": "shared", "schedule_id": "shared",
    "alias": "only-B", "resource_type": "only-B", "resource_key": "only-B", "principal": None,
    "requester_id": "only-B", "short_id": 1,
}  # fmt: skip

READS = {
    "agents": {"get", "backend_state", "usage_detail"}, "config": {"get", "get_path"},
    "security": {"get", "get_path"},
    "sessions": {"list", "get", "visible", "working_memory"},
    "events": {"history", "entries", "messages_since", "recent_messages", "find_by_message_id",
               "entries_since_compaction", "cursors", "compaction_summary"},
    "memories": {"list", "get", "search", "context_block"}, "instructions": {"list", "get"},
    "users": {"members", "role"}, "skills": {"list_enabled"}, "mcp": {"list_enabled", "headers"},
    "channels": {"list", "get", "find_builtin", "settings"}, "credentials": {"list", "get"},
    "secrets": {"names", "masked", "entries", "values", "get"},
    "schedules": {"list", "get", "runs", "due"}, "sandboxes": {"list", "get", "get_by_alias"},
    "policies": {"list", "get", "evaluate"},
    "approvals": {"list", "get", "get_by_short_id", "find_approved"},
    "attachments": {"list", "get"},
}  # fmt: skip
"""Questions of one agent."""


def questions(store: AgentStore) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Every question that A can ask."""
    for subject, names in READS.items():
        for name in sorted(names):
            method = getattr(getattr(store, subject), name)
            needed = [
                ARGUMENTS[one.name]
                for one in inspect.signature(method).parameters.values()
                if one.default is one.empty
            ]
            yield f"{subject}.{name}", partial(method, *needed)
    for words in ({"include_inactive": True}, {"user_id": "only-B"}, {"limit": 1}):
        yield f"sessions.list {words}", partial(store.sessions.list, **words)
    for query in ("kept thing", "kept", "hared", "only"):
        yield f"memories.search {query}", partial(store.memories.search, query)
    yield "memories.list", partial(store.memories.list, "s")
    yield "events.history, a page", partial(store.events.history, "shared", after_id=1, limit=3)
    yield "attachments.list", partial(store.attachments.list, "shared")
    yield "attachments of a user", partial(store.attachments.list, kind="user", user_id="only-B")
    yield "fleet_stats", partial(store.agents.fleet_stats, ["A"])
    yield "fleet_usage", partial(store.agents.fleet_usage, ["A"], all_time=True)


def everything(store: AgentStore) -> Iterator[tuple[str, Any]]:
    """Every question that A can ask, with its answer."""
    for name, ask in questions(store):
        with contextlib.suppress(RequestError):
            yield name, ask()


CHANGES = {
    "create", "provision", "update", "set_status", "remove", "assign_owner", "set_backend_state",
    "set", "set_path", "resolved", "upsert", "set_description", "delete", "mark_stale_inactive",
    "set_working_memory", "wait_for_idle", "append", "append_many", "append_once",
    "record_message", "session_started", "set_compaction_summary", "put", "reindex", "seed",
    "change", "fan_out", "ensure_for_identity", "link_identity", "unlink_identity", "merge",
    "assign_role", "promote_owner", "remove_role", "enable", "disable", "new_row",
    "create_external", "create_builtin", "revoke", "record_error", "record_success",
    "clear_error", "replace", "clear", "of", "set_pass_through", "replace_all", "resolve",
    "import_file", "rekey", "mark_run", "set_next_run", "trigger", "start_run", "finish_run",
    "plan", "claim", "renew", "complete", "put_off", "expire_old", "set_materialization",
    "set_json",
}  # fmt: skip
"""Methods that change something, or that only put together what questions answer."""
