"""Commands of an agent store: from setup to a scheduled job."""

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest
from support.actors import end_actors, wait_for

from hermes_actor import AgentStore
from hermes_actor.agents.vault import KEY_VARIABLES
from hermes_actor.cli.output.formatting import width
from hermes_actor.errors import WrongKind


@pytest.fixture
def agents(home, monkeypatch):
    """A home with a store and a key."""
    for name in KEY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert home("agents", "setup").code == 0
    yield home
    end_actors(home.path / "agents.db")


def create(home, *names):
    for name in names:
        assert (
            home("agents", "create", name, "--workspace", "/srv", "--name", name.upper()).code == 0
        )


def test_setup_makes_store_and_key_once(agents):
    key = agents.path / "agents.key"
    assert key.stat().st_mode & 0o777 == 0o600
    before = key.read_text()
    again = agents("agents", "setup", "--json").json
    assert again == {"store": str(agents.path / "agents.db"), "key": str(key), "made": False}
    assert key.read_text() == before
    key.chmod(0o644)
    refused = agents("agents", "setup")
    assert (refused.code, "chmod 600" in refused.err) == (1, True)


def test_unknown_store_is_an_error(home):
    done = home("agents", "list")
    assert (done.code, "hermes-actor agents setup" in done.err) == (1, True)
    assert not (home.path / "agents.db").exists()
    assert home("agents", "list", "--store", "nowhere://x").code == 1


def test_file_of_another_program_does_not_become_an_agent_store(home):
    """The library is asked the same as the commands: see test_cli_matrix.py."""
    file = home.path / "places.db"
    with closing(sqlite3.connect(file)) as conn:
        conn.execute("CREATE TABLE bookmarks (x)")
    before = file.read_bytes()
    with pytest.raises(WrongKind, match="'plain', and 'agents' is needed"), AgentStore("a", file):
        pass
    end_actors(file)
    assert file.read_bytes() == before


def test_detached_store_is_an_agent_store_again(agents):
    create(agents, "a")
    file = str(agents.path / "agents.db")
    assert agents("stop", "--db", file).code == 0
    done = agents("detach", "--db", file, "--yes")
    assert done.code == 0, done.err
    with closing(sqlite3.connect(file)) as conn:
        assert not conn.execute(
            "SELECT 1 FROM sqlite_master WHERE name GLOB 'hermes_actor*'"
        ).fetchall()
    assert [one["agent_id"] for one in agents("agents", "list", "--json").json] == ["a"]


def test_lines_of_the_seed_work_literally(agents):
    """A11: enabled for all, agents of later included; an agent can opt out."""
    assert agents("skills", "add", "my-skill", "--path", "/srv/s").code == 0
    assert agents("mcp", "add", "my-mcp-server", "--url", "https://example.org").code == 0
    assert agents("skills", "enable", "my-skill", "--all").out == "my-skill is on for all agents.\n"
    done = agents("mcp", "enable", "my-mcp-server", "--all", "--json").json
    assert done == {"enabled": "my-mcp-server", "affected": "*"}
    create(agents, "later")
    assert agents("skills", "disable", "my-skill", "--agent", "out").code == 0
    with AgentStore("later", agents.path / "agents.db") as later:
        assert [one["id"] for one in later.skills.list_enabled()] == ["my-skill"]
        assert [one["id"] for one in later.mcp.list_enabled()] == ["my-mcp-server"]
        assert later.of("out").skills.list_enabled() == []
    for group, item in (("skills", "my-skill"), ("mcp", "my-mcp-server")):
        assert agents(group, "enable", item).code == 2
        assert agents(group, "enable", item, "--all", "--agent", "a").code == 2
        assert agents(group, "enable", "missing", "--all").code == 1
        assert item in agents(group, "list").out
        assert agents(group, "show", item, "--json").json["id"] == item
        assert agents(group, "remove", item).code == 0
        assert agents(group, "remove", item).code == 1
        assert agents(group, "show", item).code == 1


def test_header_values_are_never_printed(agents):
    agents("mcp", "add", "m", "--url", "u", "--header", "Authorization=Bearer hunter2")
    for words in (("list", "--json"), ("list",), ("show", "m"), ("show", "m", "--json")):
        done = agents("mcp", *words)
        assert "hunter2" not in done.out + done.err
    assert agents("mcp", "show", "m", "--json").json["headers"] == ["Authorization"]
    assert agents("mcp", "add", "m", "--url", "u", "--header", "bad").code == 2


def test_agents_and_their_config(agents):
    create(agents, "main", "other")
    assert agents("agents", "create", "main", "--workspace", "/x").code == 1
    assert "MAIN" in agents("agents", "list").out
    assert agents("agents", "show", "main", "--json").json["name"] == "MAIN"
    assert agents("agents", "show", "nope").code == 1
    assert agents("agents", "config", "set", "main", "a.b", "[1, 2]").code == 0
    assert agents("agents", "config", "set", "main", "a.c", "plain text").code == 0
    assert agents("agents", "config", "get", "main", "a").json == {"b": [1, 2], "c": "plain text"}
    assert agents("agents", "config", "get", "main", "a.c").out == "plain text\n"
    assert agents("agents", "config", "get", "main", "nope").code == 1
    assert agents("agents", "config", "set", "nope", "a", "1").code == 1
    assert agents("agents", "check").out == "nothing found\n"
    assert agents("agents", "delete", "other").code == 2
    deleted = agents("agents", "delete", "other", "--yes", "--json").json["deleted"]
    assert deleted["agents"] == 1
    assert agents("agents", "delete", "other", "--yes").code == 1


def test_instructions_of_one_agent_and_of_all(agents):
    create(agents, "a", "b")
    assert (
        agents("instructions", "set", "rules", "One.", "--all").out
        == "Changed rules of 2 agents.\n"
    )
    assert agents("instructions", "append", "rules", "Two.", "--agent", "a").code == 0
    shown = agents("instructions", "show", "rules", "--agent", "a", "--json").json
    assert shown["content"] == "One.\nTwo."
    assert (
        agents("instructions", "show", "rules", "--agent", "b", "--json").json["content"] == "One."
    )
    assert agents("instructions", "remove", "rules", "--all").code == 0
    assert agents("instructions", "show", "rules", "--agent", "a").code == 1
    assert agents("instructions", "set", "rules", "x").code == 2
    assert "identity" in agents("instructions", "list", "--agent", "a").out


def test_memories(agents):
    """73."""
    put = ("memories", "put", "project/deploys", "Deploys happen on Tuesdays.", "--agent", "main")
    assert agents(*put).out == "Stored project/deploys.\n"
    assert "Tuesdays" in agents("memories", "search", "deployed", "--agent", "main").out
    assert agents("memories", "search", "nothing", "--agent", "main").out == "nothing found\n"
    assert agents("memories", "list", "--agent", "other").out == "no memories\n"
    shown = agents("memories", "show", "project/deploys", "--agent", "main", "--json").json
    assert shown["content"] == "Deploys happen on Tuesdays."
    assert agents("memories", "delete", "project/deploys", "--agent", "main").code == 0
    assert agents("memories", "delete", "project/deploys", "--agent", "main").code == 1
    missing = agents("memories", "show", "project/deploys", "--agent", "main")
    assert missing.code == 1
    assert "project/deploys" in missing.err
    assert agents("memories", "list", "--agent", "*").code == 1


def typed(home, text, *words):
    """Run a command with *text* on its standard input."""
    return subprocess.run(
        [sys.executable, "-m", "hermes_actor", *words], input=text, text=True, capture_output=True,
        env={**os.environ, "HERMES_HOME": str(home.path)},
    )  # fmt: skip


def test_secrets_come_from_standard_input_and_are_never_printed(agents):
    done = typed(agents, "hunter2hunter2\n", "secrets", "set", "TOKEN", "--agent", "main")
    assert (done.returncode, done.stdout) == (0, "Stored TOKEN.\n")
    listed = agents("secrets", "list", "--agent", "main")
    assert "hunt********ter2" in listed.out
    assert "hunter2hunter2" not in listed.out
    assert agents("secrets", "list", "--agent", "main", "--json").json["undecryptable"] == []
    assert typed(agents, "", "secrets", "set", "TOKEN", "--agent", "main").returncode == 2
    assert typed(agents, "x", "secrets", "set", "no blank", "--agent", "main").returncode == 1
    assert agents("secrets", "delete", "TOKEN", "--agent", "main").code == 0
    assert agents("secrets", "delete", "TOKEN", "--agent", "main").code == 1


def test_a_secret_is_shown_by_its_mask(agents):
    create(agents, "a")
    assert agents("secrets", "set", "KEY", "--agent", "a", stdin="walrus-under-the-pier").code == 0
    shown = agents("secrets", "show", "KEY", "--agent", "a")
    assert "walr********pier" in shown.out
    assert "walrus" not in shown.out
    assert agents("secrets", "show", "KEY", "--agent", "a", "--json").json["pass_through"] is False
    missing = agents("secrets", "show", "NOPE", "--agent", "a")
    assert (missing.code, "secret 'NOPE' not found" in missing.err) == (1, True)


LONG = "a-name-that-goes-on-and-on-北京-for-a-very-long-while"
SCOPED = ("instructions", "memories", "secrets", "schedules", "channels", "sandboxes")


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_every_list_fits_the_terminal(agents, columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    create(agents, LONG)
    with AgentStore(LONG, agents.path / "agents.db") as store:
        store.skills.upsert({"id": LONG, "name": LONG, "path": f"/{LONG}"})
        store.mcp.upsert({"id": LONG, "name": LONG, "url": f"http://x/{LONG}"})
        store.memories.put(LONG, key=LONG)
        store.instructions.set(LONG, LONG)
        store.secrets.set("LONG_" * 20, LONG)
        store.schedules.create("cron", LONG, cron_expression="@daily", schedule_id=LONG)
        store.users.upsert({"user_id": LONG, "name": LONG})
        store.channels.create_external(LONG, label=LONG)
        store.sandboxes.create(LONG, "docker", external_id=LONG)
    for group in (*SCOPED, "agents", "skills", "mcp", "users"):
        words = (group, "list", *(("--agent", LONG) if group in SCOPED else ()))
        listed = agents(*words)
        assert listed.code == 0
        lines = listed.out.splitlines()
        assert len(lines) >= 2, group
        assert max(map(width, lines)) <= columns, (group, listed.out)


def test_another_key_takes_over_after_the_store_has_followed(agents):
    typed(agents, "hunter2", "secrets", "set", "TOKEN", "--agent", "main")
    key, new = agents.path / "agents.key", agents.path / "new.key"
    old = key.read_text()
    done = agents("secrets", "rekey", "--new-key-file", str(new), "--json").json
    assert done == {"values": 1, "key": str(key)}
    assert key.read_text() == new.read_text() != old
    assert (agents.path / "agents.key.previous").read_text() == old
    assert key.stat().st_mode & 0o777 == new.stat().st_mode & 0o777 == 0o600
    with AgentStore("main", agents.path / "agents.db") as store:
        assert store.secrets.get("TOKEN") == "hunter2"
    key.write_text(old)
    assert "the key cannot open: TOKEN" in agents("secrets", "list", "--agent", "main").out
    assert agents("agents", "check").code == 1
    refused = agents("secrets", "rekey", "--new-key-file", str(agents.path / "third.key"))
    assert (refused.code, "cannot open" in refused.err) == (1, True)
    assert key.read_text() == old
    assert agents("secrets", "rekey", "--new-key-file", str(key)).code == 1


def test_users(agents):
    create(agents, "main")
    with AgentStore("main", agents.path / "agents.db") as store:
        for user in ("u1", "u2"):
            store.users.upsert({"user_id": user})
    assert agents("users", "link", "u1", "telegram", "7").code == 0
    assert agents("users", "link", "nope", "telegram", "7").code == 1
    assert agents("users", "role", "u2", "owner", "--agent", "main").code == 0
    assert agents("users", "role", "u1", "owner", "--agent", "main").code == 1
    assert agents("users", "merge", "u2", "u1").code == 2
    assert agents("users", "merge", "u2", "u1", "--yes", "--json").json["roles"] == 1
    shown = agents("users", "show", "u1", "--json").json
    assert [one["role"] for one in shown["roles"]] == ["owner"]
    assert [one["channel_user_id"] for one in shown["identities"]] == ["7"]
    assert agents("users", "role", "u1", "none", "--agent", "main").code == 0
    assert "u2" not in agents("users", "list").out


def test_channels_and_sandboxes_are_shown_without_tokens(agents):
    with AgentStore("main", agents.path / "agents.db") as store:
        channel = store.channels.create_external("shop")
        box = store.sandboxes.create("default", "docker")
    for words in (("list",), ("show", channel["id"]), ("show", channel["id"], "--json")):
        done = agents("channels", *words, "--agent", "main")
        assert channel["token_prefix"] in done.out
        assert channel["token"] not in done.out
    assert "docker" in agents("sandboxes", "list", "--agent", "main").out
    assert agents("sandboxes", "show", box["id"], "--agent", "main").code == 0
    assert agents("sandboxes", "show", box["id"], "--agent", "other").code == 1


def test_schedules_are_planned_and_run_with_a_command(agents):
    """40, 41."""
    create(agents, "main")
    assert agents("schedules", "list", "--agent", "main").out == "no schedules\n"
    added = agents("schedules", "add", "Say hello", "--cron", "0 9 * * *", "--id", "report",
                   "--agent", "main", "--json").json  # fmt: skip
    assert added["next_run_at"].endswith("T09:00:00.000Z")
    assert agents("schedules", "add", "x", "--agent", "main").code == 2
    assert agents("schedules", "add", "x", "--cron", "nonsense", "--agent", "main").code == 1
    assert agents("schedules", "pause", "report", "--agent", "main").out == "Paused report.\n"
    listed = agents("schedules", "list", "--agent", "main").out
    assert "paused" in listed
    second = ("schedules", "add", "x", "--cron", "@daily", "--id", "second", "--agent", "main")
    assert agents(*second).code == 0
    shown = agents("schedules", "list", "--agent", "main").out
    assert "report" in shown
    assert "second" in shown
    assert agents("schedules", "delete", "second", "--agent", "main").code == 0
    assert agents("schedules", "resume", "report", "--agent", "main").code == 0
    assert agents("schedules", "trigger", "report", "--agent", "main").code == 0
    assert agents("schedules", "trigger", "nope", "--agent", "main").code == 1
    script = "import os,sys; print(sys.stdin.read(), os.environ['HERMES_SESSION_ID'])"
    done = typed(agents, "", "schedules", "run", "--once", "--", sys.executable, "-c", script)
    assert done.returncode == 0, done.stderr
    assert "Say hello schedule:report" in done.stdout
    assert "main/report run 1 completed" in done.stdout
    (run,) = agents("schedules", "runs", "report", "--agent", "main", "--json").json
    assert run["status"] == "completed"
    agents("schedules", "trigger", "report", "--agent", "main")
    fail = "import sys; sys.exit('no model')"
    done = typed(agents, "", "schedules", "run", "--once", "--", sys.executable, "-c", fail)
    assert "failed: no model" in done.stdout
    assert "no model" in agents("schedules", "runs", "report", "--agent", "main").out
    assert agents("schedules", "delete", "report", "--agent", "main").code == 0
    assert agents("schedules", "delete", "report", "--agent", "main").code == 1
    assert agents("schedules", "runs", "report", "--agent", "main").code == 1


def test_worker_ends_at_a_signal(agents):
    worker = subprocess.Popen(
        [sys.executable, "-m", "hermes_actor", "schedules", "run", "--", "cat"],
        env={**os.environ, "HERMES_HOME": str(agents.path)}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    agents("schedules", "add", "Say hello", "--at", "2026-01-01T00:00:00Z", "--id", "once",
           "--agent", "main")  # fmt: skip
    read = ("schedules", "show", "once", "--agent", "main", "--json")
    try:
        wait_for(lambda: agents(*read).json["status"] == "completed")
    finally:
        worker.send_signal(signal.SIGTERM)
        out, _ = worker.communicate(timeout=60)
    assert worker.returncode == 0
    assert "main/once run 1 completed" in out
    assert out.startswith("Say hello")


def test_store_is_moved_and_a_wrong_source_is_refused(agents):
    create(agents, "main")
    copy = agents.path / "copy.db"
    counted = agents("migrate", "--agents", "--to", str(copy), "--dry-run", "--json").json
    assert (counted["agents"], copy.exists()) == (1, False)
    moved = agents("migrate", "--agents", "--to", str(copy), "--json").json
    assert moved == {"rows": counted, "verified": True}
    again = agents("migrate", "--agents", "--to", str(copy))
    assert (again.code, "choose an empty target" in again.err) == (1, True)
    refused = agents("agents", "import", "--from", str(copy))
    assert (refused.code, "not the URL" in refused.err) == (1, True)
    end_actors(copy)
