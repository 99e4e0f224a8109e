"""A secret in plain text is nowhere: not in files, commands, pages, copies or errors.

Two agents have the marker wherever a secret can be. Everything that a program of the project writes
or shows about such a store is looked through, also after the key was replaced and secrets deleted.
"""

import os
import re
import signal
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
from support.actors import end_actors, stop_actor, wait_for
from support.agent_stores import KEY, OTHER_KEY, open_agents, session
from support.web import TOKEN, opened

from hermes_actor.agents.vault import Secret, Vault
from hermes_actor.engine.kinds.agents import AGENTS
from hermes_actor.errors import HermesActorError

MARK = "walrus-under-the-pier"

COMMANDS = (
    "agents list", "agents show a", "agents config get a", "agents check", "secrets list --agent a",
    "channels list --agent a", "mcp list", "mcp show m", "schedules list --agent a",
    "sandboxes list --agent a", "users list", "skills list", "status --all", "ps", "doctor --all",
    "metrics", "logs", "migrate --agents --to {home}/copy.db", "backup --all",
    "secrets show NOPE --agent a", "secrets show KEY --agent a",
    "secrets rekey --new-key-file {home}/agents.key",
)  # fmt: skip


@pytest.fixture
def home(tmp_path, monkeypatch, long_lived):
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("HERMES_HOME", str(home))
    monkeypatch.setenv("HERMES_ACTOR_SECRETS_KEY", KEY)
    yield home
    for name in ("agents.db", "copy.db"):
        end_actors(home / name)


def fill(home):
    """Put the marker wherever a secret can be; return the token of a channel."""
    with open_agents("actor", home / "agents.db") as store:
        for name in ("a", "b"):
            one = store.of(name)
            one.agents.provision("/w", channels=[{"channel_type": "telegram"}])
            one.config.set({"model": {"key": "${{KEY}}"}})
            one.secrets.set("KEY", MARK, pass_through=True)
            one.secrets.replace_all({f"KEY{n}": f"{MARK} {n}" for n in range(30)})
            one.secrets.set("KEY", Secret(MARK))
            one.credentials.replace("whatsapp", "default", {"creds": MARK, "more": MARK})
            session(one)
        store.mcp.upsert({"id": "m", "name": "m", "url": "http://x", "headers": {"A": "${{KEY}}"}})
        store.mcp.enable("m", agent="*")
        assert store.of("a").config.resolved() == {"model": {"key": MARK}}
        assert store.of("a").mcp.headers("m") == {"A": MARK}
        return store.of("a").channels.create_external("shop")["token"]


def shown_by_commands(home):
    for words in COMMANDS:
        for form in ([], ["--json"]):
            line = words.format(home=home).split()
            done = subprocess.run(
                [sys.executable, "-m", "hermes_actor", *line, *form], capture_output=True,
                text=True, env=dict(os.environ), timeout=120,
            )  # fmt: skip
            yield f"{words} {form}", done.stdout + done.stderr


def shown_by_pages(home):
    paths = ("agents", "agent?id=a", "actor")
    with opened(home) as pages:
        pages.headers["Authorization"] = f"Bearer {TOKEN}"
        for start in ("/s/agents.db", "/api/stores/agents.db"):
            for path in paths:
                answer = pages.get(f"{start}/{path}")
                yield f"{start}/{path}", answer.text
        yield "/", pages.get("/").text


def shown_by_errors(home):
    with open_agents("actor", home / "agents.db") as store:
        one = store.of("a")
        calls = (
            lambda: one.secrets.set("no name", MARK),
            lambda: one.secrets.set("X" * 192, MARK),
            lambda: one.secrets.set("KEY", f"{MARK}\ud800"),
            lambda: one.secrets.replace_all({"A": MARK, "B" * 192: MARK}),
            lambda: one.credentials.set("w" * 65, "p", "k", MARK),
            lambda: one.credentials.replace("w", "p" * 129, {"k": MARK}),
            lambda: one.secrets.set_pass_through("MISSING", True),
            lambda: store.secrets.rekey(Vault("short")),
        )
        for number, call in enumerate(calls):
            with pytest.raises(HermesActorError) as caught:
                call()
            told = traceback.TracebackException.from_exception(caught.value)
            yield f"error {number}", f"{caught.value!r} {''.join(told.format())}"
        yield "representations", f"{store!r} {one.secrets!r} {one.vault!r} {vars(one.vault)}"


def files(home):
    return {file: file.read_bytes() for file in home.rglob("*") if file.is_file()}


@pytest.mark.slow
def test_nothing_shows_or_keeps_a_secret(home):
    token = fill(home)
    hidden = (MARK, token[12:])
    seen = [*shown_by_commands(home), *shown_by_pages(home), *shown_by_errors(home)]
    assert sum(bool(text.strip()) for _, text in seen) > 40
    for name, text in seen:
        # Some of the source of the tests is in tracebacks: a marker by its name only.
        assert not any(word in text for word in hidden), name
    held = files(home)
    assert {"agents.db", "agents.db-wal", "copy.db", "log"} <= {file.name for file in held}
    for file, content in held.items():
        assert not any(word.encode() in content for word in hidden), file


def ciphertexts(store):
    return {row["value_ciphertext"].encode() for row in store.rows("agent_secrets")}


def test_nothing_is_left_of_replaced_and_deleted_ciphertexts(home):
    """Who has the old key and a later copy of the file reads nothing with it."""
    fill(home)
    path = home / "agents.db"
    stop_actor(path)
    with open_agents("actor", path) as store:
        gone = ciphertexts(store)
        assert all(any(one in content for content in files(home).values()) for one in gone)
        store.secrets.rekey(Vault(OTHER_KEY))
    stop_actor(path)
    with open_agents("actor", path, vault=Vault(OTHER_KEY)) as store:
        before = ciphertexts(store)
        for number in range(30):
            store.of("a").secrets.delete(f"KEY{number}")
        store.of("b").agents.remove()
        gone |= before - ciphertexts(store)
    stop_actor(path)
    for file, content in files(home).items():
        assert not any(one in content for one in gone), file


def test_deleted_bytes_are_overwritten_whatever_the_build_does():
    assert AGENTS.settings["secure_delete"] == 1


def raised(*words, **options):
    """Start a command whose soft limit of core files is the hard one."""
    line = 'ulimit -S -c "$(ulimit -H -c)"; exec "$0" -m hermes_actor "$@"'
    return subprocess.Popen(["sh", "-c", line, sys.executable, *words], **options)


@pytest.mark.skipif(not Path("/proc/self/limits").exists(), reason="looks at /proc")
def test_crashed_command_leaves_no_core_file(home, tmp_path):
    with open_agents("embedded", home / "agents.db"):
        pass
    waiting = raised("secrets", "set", "KEY", "--agent", "a", stdin=subprocess.PIPE, cwd=tmp_path)
    limits = Path(f"/proc/{waiting.pid}/limits")
    wait_for(lambda: re.search(r"core file size\s+0 ", limits.read_text()) is not None, 60)
    waiting.stdin.write(MARK.encode())
    waiting.stdin.flush()
    waiting.send_signal(signal.SIGSEGV)
    waiting.communicate()
    assert waiting.returncode == -signal.SIGSEGV
    assert not list(tmp_path.glob("core*"))


def test_commands_of_schedules_keep_their_limit(home, tmp_path):
    with open_agents("embedded", home / "agents.db") as store:
        store.of("a").schedules.create("once", "p", run_at="2026-01-01", schedule_id="s")
    said = tmp_path / "limits"
    command = ("sh", "-c", f"ulimit -S -c > {said}; ulimit -H -c >> {said}")
    assert raised("schedules", "run", "--once", "--", *command).wait(120) == 0
    soft, hard = said.read_text().split()
    assert soft == hard
