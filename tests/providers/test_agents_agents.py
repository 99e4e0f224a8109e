"""Agents, their documents, sandboxes and extras, on every provider."""

import json
import threading

import pytest
from support.agent_stores import START, session, unique

from hermes_actor.agents.tables import TABLES
from hermes_actor.agents.times import after
from hermes_actor.errors import BadValue, Conflict, NotFound
from hermes_protocol.agents import AgentsDelete, AgentsPatch, AgentsPut


def test_agent_is_registered_updated_and_disabled(store, agents):
    made = store.agents.create("/work", name="Max")
    assert made == store.agents.get()
    assert made["status"] == "active"
    with pytest.raises(Conflict, match="Agent exists already"):
        store.agents.create("/work")
    assert "name" not in store.agents.update(name=None)
    assert store.agents.update(workspace_dir="/other")["workspace_dir"] == "/other"
    assert store.agents.set_status("disabled")["status"] == "disabled"
    with pytest.raises(BadValue):
        store.agents.set_status("asleep")
    assert agents.new().agents.update(name="x") is None
    assert store.agent_id in [one["agent_id"] for one in agents.all.agents.list()]


def test_provision_is_whole_or_nothing(store, agents):
    """60, 62, 63; and the composite."""
    owner, box = unique("u"), {"type": "docker", "config": {"image": "x"}}
    store.agents.provision(
        "/w", name="Max", sandbox=box, owner=owner,
        channels=[{"channel_type": "telegram", "config": {"token": "${{TOKEN}}"}}],
    )  # fmt: skip
    assert store.config.get()["memory"]["introspection"]["enabled"] is True
    assert store.config.get_path("workspace_root") == "/w"
    assert store.security.get() == {}
    assert store.sessions.get("inbox")["source"]["kind"] == "inbox"
    assert [one["key"] for one in store.instructions.list()] == ["identity", "rules", "soul"]
    assert "Max" in store.instructions.get("identity")["content"]
    assert store.users.role(owner) == "owner"
    assert store.sandboxes.get_by_alias("default")["status"] == "pending"
    (channel,) = store.channels.list()
    assert (channel["enabled"], channel["kind"]) == (False, "builtin")
    document = {**store.config.get(), "extra": 1}
    store.config.set(document)
    assert store.config.get() == document
    other = agents.new()
    with pytest.raises(Conflict):
        other.agents.provision("/w", channels=[{"channel_type": "x"}, {"channel_type": "x"}])
    assert other.agents.get() is None
    assert other.sessions.list(include_inactive=True) == other.instructions.list() == []


def test_config_for_use_needs_a_document(store):
    """61."""
    with pytest.raises(BadValue, match=r"config of agent .* is missing"):
        store.config.resolved()


def test_dotted_paths(store):
    """185, 186, 187; D22, D24."""
    with pytest.raises(NotFound, match="Agent not found"):
        store.config.set_path("a", 1)
    with pytest.raises(NotFound):
        store.config.set({})
    store.agents.create("/w")
    assert store.config.get() is None
    store.config.set_path("a.b.c", 1)
    store.config.set_path("a.x", [{"y": 2}])
    assert store.config.get() == {"a": {"b": {"c": 1}, "x": [{"y": 2}]}}
    assert store.config.get_path("a.x.0.y") == 2
    assert store.config.get_path("a.b.c.d") is None
    assert store.config.get_path("") == store.config.get()
    with pytest.raises(BadValue, match="x is a list"):
        store.config.set_path("a.x.0.y", 3)
    with pytest.raises(BadValue, match="must be an object"):
        store.config.set_path("", 3)
    store.config.set_path("", {"new": True})
    assert store.config.get() == {"new": True}
    for text in ("[1]", "{broken"):
        put = AgentsPatch(
            table="agents", key={}, set={"config_json": text}, agent_id=store.agent_id
        )
        store.submit(put)
        assert store.config.get() is None


def test_paths_that_many_set_at_once_are_all_there(store):
    """188."""
    store.agents.create("/w")
    threads = [
        threading.Thread(target=store.config.set_path, args=(f"leaves.l{n}", n)) for n in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.config.get() == {"leaves": {f"l{n}": n for n in range(6)}}


def test_backend_state_is_kept(store):
    store.agents.create("/w")
    assert store.agents.backend_state() is None
    store.agents.set_backend_state({"a": [1]})
    assert store.agents.backend_state() == {"a": [1]}


def full(store):
    """Something in every table that belongs to agents."""
    owner, item = unique("u"), unique("item")
    store.agents.provision("/w", sandbox={"type": "docker"}, owner=owner,
                           channels=[{"channel_type": "telegram"}])  # fmt: skip
    session(store)
    store.events.append("s1", {"role": "user", "content": "x"}, message_id="m")
    store.memories.put("text", key="k")
    for subject, rest in ((store.skills, {"path": "/p"}), (store.mcp, {"url": "u"})):
        subject.upsert({"id": item, "name": item, **rest})
        subject.enable(item)
    own = {"id": unique("own"), "name": "own", "path": "/p", "source": "user"}
    store.skills.upsert({**own, "owner_agent_id": store.agent_id})
    store.credentials.set("whatsapp", "default", "creds", "v")
    store.secrets.set("NAME", "value")
    store.schedules.create("cron", "p", cron_expression="@daily", schedule_id="s")
    store.schedules.start_run("s", "x", "p")
    store.policies.upsert("tool", "grep")
    store.approvals.create("s1", owner, "tool", "grep")
    store.attachments.create("s1", original_name="a", safe_name="a", mime_type="text/plain",
                             size_bytes=1, sha256="0" * 64, storage_provider="local",
                             storage_key="k")  # fmt: skip
    return owner, item


def test_removed_agent_leaves_nothing(store, agents):
    """189: by the columns of the registry, which a test compares with the tables themselves."""
    owner, item = full(store)
    agents.all.skills.enable(item, agent="*")
    before = {
        name: [row for row in agents.all.rows(name) if store.agent_id in row.values()]
        for name in TABLES
    }
    assert [name for name, table in TABLES.items() if table.scoped and not before[name]] == []
    counts = store.agents.remove()
    assert set(counts) == {name for name, rows in before.items() if rows}
    assert not any(
        store.agent_id in row.values() for name in TABLES for row in agents.all.rows(name)
    )
    assert store.users.get(owner)["user_id"] == owner
    assert [one["agent_id"] for one in agents.all.skills.list_assignments(item)] == ["*"]


def test_fleet_numbers(store, agents):
    """193, D15, D28."""
    quiet, item = agents.new(), unique("item")
    store.skills.upsert({"id": item, "name": item, "path": "/p"})
    store.skills.enable(item)
    session(store, last_activity_at=after(START, 100))
    session(store, "old", last_activity_at=after(START, -100))
    store.events.append("s1", {"role": "error", "message": "m", "ts": after(START, 1)})
    usage = {"input": 10, "output": 5, "cacheRead": 1, "cost": {"total": 0.25}}
    for model in ("m1", "m1", None):
        entry = {"role": "assistant", "content": "x", "usage": usage, "ts": after(START, 2)}
        store.events.append("s1", {**entry, **({"model": model, "provider": "p"} if model else {})})
    ids = [store.agent_id, quiet.agent_id]
    found = store.agents.fleet_stats(ids, since=START)
    every = sum(one["enabled"] for one in store.skills.list_assignments()
                if one["agent_id"] == "*")  # fmt: skip
    assert found[store.agent_id] == {
        "sessions_24h": 1, "errors_24h": 1, "skills_count": 1 + every,
        "mcp_count": found[quiet.agent_id]["mcp_count"], "last_activity": after(START, 100),
    }  # fmt: skip
    assert (found[quiet.agent_id]["sessions_24h"], found[quiet.agent_id]["errors_24h"]) == (0, 0)
    assert "last_activity" not in found[quiet.agent_id]
    assert store.agents.fleet_stats([]) == {}
    agents.clock.move(10)
    used = store.agents.fleet_usage(ids, all_time=True)
    assert set(used) == {store.agent_id}
    assert used[store.agent_id]["window_24h"] == used[store.agent_id]["all_time"] == {
        "input_tokens": 30, "output_tokens": 15, "cache_read_tokens": 3, "cache_write_tokens": 0,
        "cost_usd": 0.75,
    }  # fmt: skip
    detail = store.agents.usage_detail()
    assert [(one["model"], one["calls"]) for one in detail["by_model"]] == [
        ("m1", 2),
        ("(unknown)", 1),
    ]
    assert [one["day"] for one in detail["daily"]] == [START[:10]]
    assert detail["totals"]["cost_usd"] == 0.75


def test_check_names_what_is_dangling(store):
    session(store)
    before = store.agents.check()["dangling"].get("session_events.user_id", 0)
    store.events.append("s1", {"role": "user", "content": "x", "userId": unique("gone")})
    assert store.agents.check()["dangling"]["session_events.user_id"] == before + 1


# --- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "agent_id", ["*", "", "a" * 192, "nul\0"], ids=["*", "empty", "long", "nul"]
)
def test_scopes_that_cannot_be(agents, agent_id):
    """153, D25."""
    with pytest.raises(BadValue):
        agents.all.of(agent_id)


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        (AgentsPut(table="nope", rows=[]), "there is no table 'nope'"),
        (AgentsPut(table="memories", rows=[{"memory_key": "k"}]), "belongs to agents"),
        (AgentsPut(table="memories", rows=[{"memory_key": "k"}], agent_id="*"), "knows no agent"),
        (AgentsPut(table="meta", rows=[{"key": "k", "value": "v"}], agent_id="a"), "no agent"),
        (AgentsPut(table="meta", rows=[{"key": "k", "no": 1}]), "has no column 'no'"),
        (AgentsPut(table="meta", rows=[{"key": 1, "value": "v"}]), "meta.key is a text"),
        (AgentsPut(table="meta", rows=[{"value": "v"}], mode="upsert"), "key is missing"),
        (
            AgentsPut(table="instructions", agent_id="a",
                      rows=[{"agent_id": "b", "key": "k", "content": "", "updated_at": START}]),
            "agent_id is the scope",
        ),
        (
            AgentsPut(table="instructions", agent_id="a",
                      rows=[{"key": "k", "content": "", "updated_at": "2026-01-01 00:00"}]),
            "is a time such as",
        ),
        (AgentsDelete(table="meta", key={}), "name the rows"),
        (AgentsDelete(table="memories", key={"content": "x"}, agent_id="a"), "not deleted by"),
        (AgentsPatch(table="memories", key={}, set={}, agent_id="a"), "named by memory_key"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_bad_operations_are_refused_by_the_writer(agents, operation, message):
    with pytest.raises(BadValue, match=message):
        agents.all.submit(operation)


# --- sandboxes, meta, extras ---------------------------------------------------------------------


def test_life_of_a_sandbox(store, agents):
    """171, 172, 173."""
    made = store.sandboxes.create("default", "docker", config={"image": "x"})
    assert (made["status"], made["last_seen_at"], made["external_id"]) == ("pending", None, None)
    with pytest.raises(Conflict, match="has a sandbox default already"):
        store.sandboxes.create("default", "docker")
    seen = store.sandboxes.update(
        made["id"], status="provisioned", external_id="c1", last_seen_at=START
    )
    assert (seen["status"], seen["external_id"], seen["last_seen_at"]) == (
        "provisioned",
        "c1",
        START,
    )
    assert store.sandboxes.update(made["id"], external_id=None)["external_id"] is None
    assert store.sandboxes.find_agent_by_type("docker") is not None
    store.sandboxes.delete(made["id"])
    assert store.sandboxes.get(made["id"])["status"] == "deleted"
    assert store.sandboxes.list() == []
    again = store.sandboxes.create("default", "docker")
    assert again["id"] in [one["id"] for one in agents.all.sandboxes.list_all()]
    assert agents.new().sandboxes.get(made["id"]) is None
    host, other = store.sandboxes.create("host", "host"), agents.new()
    with pytest.raises(Conflict, match=f"agent {store.agent_id} has the host sandbox"):
        other.sandboxes.create("host", "host")
    assert store.sandboxes.find_agent_by_type("host", exclude=store.agent_id) is None
    store.sandboxes.delete(host["id"])
    other.sandboxes.delete(other.sandboxes.create("host", "host")["id"])


def test_meta(agents):
    """194."""
    key = unique("key")
    assert agents.all.meta.get(key) is None
    agents.all.meta.set(key, "{broken")
    assert (agents.all.meta.get(key), agents.all.meta.get_json(key)) == ("{broken", None)
    agents.all.meta.set_json(key, {"a": [1]})
    assert agents.all.meta.get_json(key) == {"a": [1]}
    agents.all.meta.delete(key)
    assert agents.all.meta.get(key) is None


def test_policies_decide(store):
    """108."""
    user = ("u1", "user")
    assert store.policies.evaluate("tool", "grep", user) == "allow"
    store.policies.upsert("tool", "gr*", grants=[{"type": "any"}])
    assert store.policies.evaluate("tool", "grep", user) == "allow"
    kept = store.policies.upsert(
        "tool", "grep", effect="deny", grants=[{"type": "user", "value": "u2"}]
    )
    assert store.policies.evaluate("tool", "grep", ("u2", "user")) == "deny"
    assert store.policies.evaluate("tool", "grep", user) == "allow"
    store.policies.upsert("tool", "gr*", effect="require_approval", grants=[{"type": "any"}])
    assert store.policies.evaluate("tool", "grep", user) == "require_approval"
    again = store.policies.upsert("tool", "grep", effect="deny", grants=[], scope={"x": 1})
    assert (again["id"], again["created_at"]) == (kept["id"], kept["created_at"])
    store.policies.delete("tool", "gr*")
    store.policies.upsert("tool", "grep", effect="deny", grants=[{"type": "user", "value": "u2"}])
    assert store.policies.evaluate("tool", "grep", user) == "deny"


def test_approvals(store, agents):
    asked = store.approvals.create("s1", "u1", "tool", "rm", ttl_minutes=1)
    assert store.approvals.get_by_short_id(asked["short_id"]) == store.approvals.get(asked["id"])
    done = store.approvals.resolve(asked["id"], "approved", "u2")
    assert (done["status"], done["resolution"]) == ("approved", "once")
    with pytest.raises(Conflict):
        store.approvals.resolve(asked["id"], "rejected", "u2")
    assert store.approvals.find_approved("u1", "tool", "rm")["id"] == asked["id"]
    late = store.approvals.create("s1", "u1", "tool", "mv", ttl_minutes=1)
    agents.clock.move(120)
    assert store.approvals.find_approved("u1", "tool", "rm") is None
    assert store.approvals.expire_old() >= 1
    assert store.approvals.get(late["id"])["status"] == "expired"
    assert [one["id"] for one in store.approvals.list("approved")] == [asked["id"]]


FILE = {"original_name": "a b", "safe_name": "a_b", "mime_type": "text/plain", "size_bytes": 1,
        "sha256": "0" * 64, "storage_provider": "local", "storage_key": "k"}  # fmt: skip


def test_attachments(store, agents):
    """101 to 107."""
    other = agents.new()
    for one in (store, other):
        session(one, "a")
        session(one, "b")
    first = store.attachments.create("a", uploader_user_id="u1", **FILE)
    assert store.attachments.get(first["id"]) == first
    assert (first["id"][:4], first["materialization_state"]) == ("att_", "pending")
    assert {**FILE, **first} == first
    second = store.attachments.create("b", uploader_user_id="u1", **FILE)
    store.attachments.create("b", uploader_user_id="u2", **FILE)
    other.attachments.create("a", uploader_user_id="u1", **FILE)
    assert [one["id"] for one in store.attachments.list("a")] == [first["id"]]
    mine = store.attachments.list(kind="user", user_id="u1")
    assert [one["id"] for one in mine] == [second["id"], first["id"]]
    with pytest.raises(BadValue):
        store.attachments.list(kind="user")
    copied = store.attachments.set_materialization(first["id"], "copied", sandbox_id="x")
    assert (copied["materialization_state"], copied["sandbox_id"]) == ("copied", "x")
    failed = store.attachments.set_materialization(first["id"], "failed", error="no room")
    assert failed["materialization_error"] == "no room"
    with pytest.raises(BadValue):
        store.attachments.set_materialization(first["id"], "lost")
    assert store.attachments.delete(first["id"])


def test_token_is_used_once(agents):
    """195."""
    jti = unique("jti")
    assert agents.all.tokens.try_consume(jti, 100)
    assert not agents.all.tokens.try_consume(jti, 100)
    assert agents.all.tokens.sweep_expired(101) >= 1
    assert agents.all.tokens.try_consume(jti, 10**12)


def test_documents_hold_any_text(store):
    store.agents.create("/w")
    document = {"text": "北京 🦭 \U0010ffff \x7f", "n": [1, 0.5, None, True], "": {"": ""}}
    store.config.set(document)
    assert json.dumps(store.config.get()) == json.dumps(document)
