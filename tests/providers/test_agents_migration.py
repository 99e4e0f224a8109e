"""Moves of an agent store between providers, and the import of another program's database."""

import threading
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine.cursor import BufferedRowCursorFetchStrategy
from support import servers
from support.agent_stores import KEY, START, open_agents, session

from hermes_actor.agent_store.migration import move
from hermes_actor.agents.questions.pages import page
from hermes_actor.agents.tables import TABLES
from hermes_actor.agents.vault import Vault
from hermes_actor.errors import CannotMigrate
from hermes_actor.providers.agents import import_database


def fill(store):
    for name in ("a", "b"):
        agent = store.of(name)
        agent.agents.provision("/w", name=name, owner="u1", channels=[{"channel_type": "telegram"}],
                               sandbox={"type": "docker"})  # fmt: skip
        session(agent, user_ids=["u1"], metadata={"z": 1, "a": [True, None, 0.5]})
        agent.events.append_many(
            "s1", [{"role": "user", "content": f"{n} 北京"} for n in range(250)]
        )
        agent.memories.put("Deploys happen on Tuesdays", key="k")
        agent.secrets.set("TOKEN", f"value of {name}")
        agent.schedules.create("cron", "p", cron_expression="@daily", schedule_id="s")
        agent.schedules.start_run("s", None, "p")
        agent.approvals.create("s1", "u1", "tool", "rm")
    store.skills.upsert({"id": "pdf", "name": "PDF", "path": "/p"})
    store.skills.enable("pdf", agent="*")
    store.meta.set_json("gateway.config", {"x": 1})


@pytest.mark.parametrize("target_kind", ["embedded", "postgresql"])
def test_whole_store_moves_and_is_compared(kind, target_kind, tmp_path):
    told = []
    with (
        open_agents(kind, tmp_path / "a.db") as source,
        open_agents(target_kind, tmp_path / "b.db") as target,
    ):
        fill(source)
        counts = move(source, target, lambda done, total: told.append((done, total)))
        assert counts == source.agents.counts() == target.agents.counts()
        assert told[-1][0] == told[-1][1]
        ours, theirs = source.of("a"), target.of("a")
        assert theirs.secrets.get("TOKEN") == "value of a"
        assert theirs.memories.search("deployed") == ours.memories.search("deployed")
        assert theirs.events.history("s1") == ours.events.history("s1")
        assert [one["id"] for one in target.of("new").skills.list_enabled()] == ["pdf"]
        last = ours.events.cursors("s1")["latest_id"]
        assert theirs.events.append("s1", {"role": "user", "content": "next"}) > last
        with pytest.raises(CannotMigrate, match="choose an empty target"):
            move(source, target, lambda *_: None)


NEWER = (Path(__file__).parents[1] / "data/openhermit.sql").read_text()
CHANGES = {
    "metadata jsonb DEFAULT '{}'": "metadata_json text DEFAULT '{}'",
    "user_ids jsonb DEFAULT '[]'": "user_ids_json text DEFAULT '[]'",
    "payload jsonb": "payload_json text",
    "delivery jsonb": "delivery_json text DEFAULT '\"silent\"'",
    "policy jsonb": "policy_json text DEFAULT '{}'",
}
OLDER = NEWER
for newer, older in CHANGES.items():
    OLDER = OLDER.replace(newer, older)


def peer_database(schema):
    """A database with the tables of the peer, filled."""
    url = servers.new_store("postgresql")
    older = schema is OLDER
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://", 1))
    sealed = Vault(KEY).encrypt("hunter2")
    suffix = "_json" if older else ""
    with engine.begin() as conn:
        for statement in filter(str.strip, schema.partition("\n")[2].split(";")):
            conn.execute(text(statement))
        lines = [
            ("INSERT INTO agents VALUES"
             " ('a','Max','/w','{\"x\": 1}',NULL,NULL,'active',:t,:t)", {}),
            ("INSERT INTO sessions (agent_id, session_id, source_kind, interactive, created_at,"
             f" last_activity_at, user_ids{suffix})"
             " VALUES ('a','s1','cli',1,:t,:t,'[\"u1\"]')", {}),
            (f"INSERT INTO session_events (agent_id,session_id,ts,event_type,payload{suffix},"
             "content) VALUES ('a','s1',:t,'user',:p,'hi')",
             {"p": '{"role":"user","content":"hi","messageId":"m1"}'}),
            (f"INSERT INTO session_events (agent_id,session_id,ts,event_type,payload{suffix})"
             " VALUES ('a','s1',:t,'channel_message_sent',:p)",
             {"p": '{"role":"assistant","channel":"telegram","to":"7","text":"sent"}'}),
            (f"INSERT INTO session_events (agent_id,session_id,ts,event_type,payload{suffix})"
             " VALUES ('a','gone',:t,'user',:p)", {"p": '{"role":"user"}'}),
            ("INSERT INTO memories (agent_id,memory_key,content,updated_at)"
             " VALUES ('a','k','Deploys on Tuesdays','2026-01-01T02:00:00+02:00')", {}),
            ("INSERT INTO schedules (agent_id,schedule_id,type,status,cron_expression,prompt,"
             "session_mode,created_at,updated_at) VALUES"
             " ('a','s','cron','active','@daily','p','ephemeral',:t,:t)", {}),
            ("INSERT INTO agent_secrets VALUES ('a','TOKEN',:c,:t,:t)", {"c": sealed}),
            ("INSERT INTO sandboxes VALUES"
             " ('x','a','default','docker',NULL,'active','{}','{}',:t,:t,NULL)", {}),
        ]  # fmt: skip
        for statement, values in lines:
            conn.execute(text(statement), {"t": START, **values})
    engine.dispose()
    return url


@pytest.mark.parametrize("schema", [NEWER, OLDER], ids=["newer", "older"])
def test_database_of_the_peer_is_taken_over(kind, schema, tmp_path):
    url = peer_database(schema)
    with open_agents(kind, tmp_path / "agents.db") as target:
        dry = import_database(url, target, dry_run=True)
        assert dry["session_events"].new == 3
        assert not any(target.agents.counts().values())
        done = import_database(url, target, dry_run=False)
        assert {name: one.new for name, one in done.items()} == {
            "agents": 1, "sessions": 1, "session_events": 2, "memories": 1, "schedules": 1,
            "agent_secrets": 1, "sandboxes": 1,
        }  # fmt: skip
        assert len(done["session_events"].left_out) == 1
        assert not any(one.left_out for name, one in done.items() if name != "session_events")
        a = target.of("a")
        assert (a.agents.get()["name"], a.config.get()) == ("Max", {"x": 1})
        assert [one["content"] for one in a.events.history("s1")] == ["hi", "sent"]
        assert a.events.history("s1")[1]["metadata"]["source"] == "session_send"
        assert a.events.find_by_message_id("s1", "m1") == 1
        assert a.sessions.list(user_id="u1")[0]["source"]["interactive"] is True
        (memory,) = a.memories.search("deployed")
        assert memory["created_at"] == memory["updated_at"] == START
        schedule = a.schedules.get("s")
        assert (schedule["session_mode"], schedule["delivery"]) == (
            {"kind": "ephemeral"}, {"kind": "silent"},
        )  # fmt: skip
        assert a.secrets.get("TOKEN") == "hunter2"
        assert a.sandboxes.get("x")["status"] == "provisioned"
        again = import_database(url, target, dry_run=False)
        assert not any(one.new for one in again.values())
        assert target.agents.counts() == {**dict.fromkeys(TABLES, 0), **{
            name: one.new for name, one in done.items()}}  # fmt: skip


def test_other_databases_are_refused(tmp_path):
    with open_agents("embedded", tmp_path / "agents.db") as target:
        with pytest.raises(CannotMigrate, match="no tables of OpenHermit"):
            import_database(servers.new_store("postgresql"), target, dry_run=False)
        assert not any(target.agents.counts().values())


HOSTILE = """
INSERT INTO agents VALUES ('*','x','/w',NULL,NULL,NULL,'active',:t,:t);
INSERT INTO agents VALUES (repeat('a', 192),'x','/w',NULL,NULL,NULL,'active',:t,:t);
INSERT INTO agents VALUES ('odd','x','/w','[]',NULL,NULL,'exploded',:t,:t);
INSERT INTO agents VALUES (E'esc \\x1b]0;owned\\x07','x','/w',NULL,NULL,NULL,'active','never',:t);
INSERT INTO agents VALUES ('fine','x','/w',NULL,NULL,NULL,'active',:t,:t);
INSERT INTO memories (agent_id,memory_key,content,updated_at)
 VALUES ('fine','huge',repeat('x', 17 * 1024 * 1024),:t);
INSERT INTO memories (agent_id,memory_key,content,updated_at) VALUES ('fine','ok','y',:t);
INSERT INTO memories (agent_id,memory_key,content,metadata,updated_at)
 VALUES ('fine','deep','y',CAST(repeat('[', 200) || repeat(']', 200) AS jsonb),:t);
INSERT INTO memories (agent_id,memory_key,content,updated_at)
 VALUES ('fine','infinite','y','infinity');
INSERT INTO agent_secrets VALUES ('fine','TOKEN','no ciphertext at all',:t,:t)
"""


def filled_with(statements):
    """A database of the peer with these rows, and no others."""
    url = servers.new_store("postgresql")
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://", 1))
    with engine.begin() as conn:
        for statement in filter(str.strip, NEWER.partition("\n")[2].split(";")):
            conn.execute(text(statement))
        for statement in statements:
            conn.execute(text(statement), {"t": START} if ":t" in statement else {})
    engine.dispose()
    return url


def test_hostile_database_leaves_out_what_it_must(kind, tmp_path):
    """Rows that no store holds are named; every other one is taken, and nothing else happens."""
    url = filled_with(HOSTILE.split(";\n"))
    with open_agents(kind, tmp_path / "agents.db") as target:
        done = import_database(url, target, dry_run=False)
        assert [one["agent_id"] for one in target.agents.list()] == ["fine"]
        assert len(done["agents"].left_out) == 4
        assert sorted(one["memory_key"] for one in target.rows("memories")) == ["ok"]
        reasons = " ".join(done["memories"].left_out)
        assert all(word in reasons for word in ("huge", "deep", "infinite"))
        assert len(reasons) < 1000
        assert target.of("fine").secrets.get("TOKEN") is None
        assert target.agents.check()["undecryptable"] == {"agent_secrets": 1}


def test_source_that_fails_in_the_middle_is_named(tmp_path):
    url = filled_with([
        "ALTER TABLE memories RENAME TO hidden",
        "CREATE VIEW memories AS SELECT *, 1 / (length(content) - 1) AS broken FROM hidden",
        f"INSERT INTO agents VALUES ('a','x','/w',NULL,NULL,NULL,'active','{START}','{START}')",
        "INSERT INTO hidden (agent_id,memory_key,content,updated_at) VALUES ('a','k','y','')",
    ])  # fmt: skip
    with open_agents("embedded", tmp_path / "agents.db") as target:
        done = import_database(url, target, dry_run=False)
        assert "memories" not in done  # a view is no table of the peer
        with pytest.raises(CannotMigrate, match=r"cannot be read.*can be run again"):
            import_database("postgresql://127.0.0.1:9/none", target, dry_run=False)


def test_two_importers_at_once_take_each_row_once(kind, tmp_path):
    url = filled_with([
        f"INSERT INTO agents SELECT 'a' || n,'x','/w',NULL,NULL,NULL,'active','{START}','{START}'"
        " FROM generate_series(1, 900) n",
        "INSERT INTO memories (agent_id,memory_key,content,updated_at)"
        f" SELECT 'a' || n, 'k', 'text', '{START}' FROM generate_series(1, 900) n",
    ])  # fmt: skip
    with open_agents(kind, tmp_path / "agents.db") as target:
        found = []
        threads = [
            threading.Thread(
                target=lambda: found.append(import_database(url, target, dry_run=False))
            )
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        for name in ("agents", "memories"):
            assert sum(one[name].new for one in found) == 900
            assert not any(one[name].left_out for one in found)
            assert target.agents.counts()[name] == 900


class Watched:
    """A store whose questions are measured: the longest answer, in characters."""

    def __init__(self, store, monkeypatch):
        self.longest, plain = 0, store.ask

        def ask(question, *args, **kwargs):
            found = plain(question, *args, **kwargs)
            if question is page:
                size = sum(len(v) for row in found for v in row.values() if isinstance(v, str))
                self.longest = max(self.longest, size)
            return found

        monkeypatch.setattr(store, "ask", ask)


def test_rows_of_many_megabytes_are_moved_a_few_at_a_time(kind, tmp_path, monkeypatch):
    """Two hundred rows at once would be gigabytes (G8)."""
    with (
        open_agents(kind, tmp_path / "a.db") as source,
        open_agents("embedded", tmp_path / "b.db") as target,
    ):
        one = source.of("a")
        session(one)
        for number in range(6):
            one.events.append("s1", {"role": "system", "content": "x" * 3_000_000, "n": number})
        one.instructions.set("huge", "北" * 3_000_000)
        one.events.append_many("s1", [{"role": "user", "content": str(n)} for n in range(300)])
        pages = [Watched(store, monkeypatch) for store in (source, target)]
        counts = move(source, target, lambda *_: None)
        assert counts["session_events"] == 306
        assert target.of("a").instructions.get("huge")["content"] == "北" * 3_000_000
        for watched in pages:
            assert 6_000_000 <= watched.longest < 2**23
        assert len(target.ask(page, "session_events", None, 200, 2**23)) == 2
        assert len(target.ask(page, "session_events", [6], 200, 2**23)) == 200


def test_import_holds_few_of_large_rows(tmp_path, monkeypatch):
    url = filled_with([
        f"INSERT INTO agents VALUES ('a','x','/w',NULL,NULL,NULL,'active','{START}','{START}')",
        "INSERT INTO memories (agent_id,memory_key,content,updated_at)"
        f" SELECT 'a', 'k' || n, repeat('x', 8 * 1024 * 1024), '{START}'"
        " FROM generate_series(1, 6) n",
    ])  # fmt: skip
    held, plain = [], BufferedRowCursorFetchStrategy._buffer_rows

    def buffer(self, result, dbapi_cursor):
        plain(self, result, dbapi_cursor)
        held.append(sum(len(v) for row in self._rowbuffer for v in row if isinstance(v, str)))

    monkeypatch.setattr(BufferedRowCursorFetchStrategy, "_buffer_rows", buffer)
    with open_agents("embedded", tmp_path / "agents.db") as target:
        assert import_database(url, target, dry_run=False)["memories"].new == 6
    assert 2**23 <= max(held) <= 2**25 + 1000
