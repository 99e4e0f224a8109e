"""An update of the installed hermes-agent under an attached home, while programs write."""

import json
import sqlite3
import subprocess
import sys
from contextlib import ExitStack, closing

import pytest
from support.actors import wait_for
from support.hosts import WHEELS

pytestmark = [pytest.mark.timeout(1200), pytest.mark.slow]

OLD, NEW = "0.14.0", "0.19.0"

WRITER = """
import sys
from pathlib import Path
from hermes_state import SessionDB

name, stop = sys.argv[1], Path(sys.argv[2])
db = SessionDB()
db.create_session(session_id=name, source="cli")
number = 0
while not stop.exists():
    db.append_message(session_id=name, role="user", content=f"{name} {number}")
    print(f"{name} {number}", flush=True)
    number += 1
db.close()
print("ended", flush=True)
"""
ONCE = """
import sys
from hermes_state import SessionDB
db = SessionDB()
db.create_session(session_id=sys.argv[1], source="cli")
db.append_message(session_id=sys.argv[1], role="user", content=sys.argv[1])
print(type(db._conn).__module__)
db.close()
"""
LATER = """
import os
from hermes_later import sqlite3
print(type(sqlite3.connect(os.path.join(os.environ["HERMES_HOME"], "state.db"))).__module__)
"""


def install(*words):
    """The words that replace the release in place, without a network."""
    return [
        "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile",
        "--no-index", "--find-links", str(WHEELS), *words, f"hermes-agent=={NEW}",
    ]  # fmt: skip


def schema_version(path):
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as conn:
        return conn.execute("SELECT version FROM schema_version").fetchone()[0]


def acknowledged(logs):
    return [line for log in logs for line in log.read_text().splitlines()]


def test_update_in_place_while_programs_write(make_host, tmp_path):
    """Three programs of the old release go on through it, and beside the new one."""
    host = make_host(OLD)
    host.script(ONCE, "before")
    host.actor("attach")
    stop = tmp_path / "stop"
    logs = [tmp_path / f"writer{number}" for number in range(3)]
    with ExitStack() as running:
        for log in logs:
            words = ("python", "-u", "-c", WRITER, log.name, str(stop))
            running.enter_context(host.running(*words, log=log))
        for log in logs:
            wait_for(lambda log=log: len(acknowledged([log])) > 20, 120)
        told = host.run("hermes-actor", "update", "--", str(host.python), *install()).stdout
        assert f"backed up the store to {host.home}/backups/" in told
        assert f"attached: hermes-agent {NEW} stores {host.home} through the actor" in told
        assert host.script(ONCE, "new").stdout.startswith("hermes_actor.dbapi")
        assert schema_version(host.db) > 11
        marks = {log: len(acknowledged([log])) for log in logs}
        for log in logs:  # the old ones write to the file that the new one has migrated
            wait_for(lambda log=log: len(acknowledged([log])) > marks[log] + 20, 120)
        stop.touch()
        for log in logs:
            wait_for(lambda log=log: log.read_text().endswith("ended\n"))
    done = [line for line in acknowledged(logs) if line != "ended"]
    assert [line for line in done if not line.startswith("writer")] == []
    with closing(sqlite3.connect(f"file:{host.db}?mode=ro", uri=True)) as conn:
        sql = "SELECT content FROM messages WHERE content GLOB 'writer*' ORDER BY id"
        stored = [content for (content,) in conn.execute(sql)]
        assert conn.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert sorted(stored) == sorted(done)

    assert json.loads(host.actor("attach", "--check", "--json"))["release"] == NEW
    host.actor("attach", "--undo")
    assert host.script(ONCE, "after").stdout == "sqlite3\n"
    assert "before" in host.hermes("sessions", "list", "--limit", "50")


def test_a_plain_update_keeps_the_hook(make_host):
    """Nothing of ours runs: the hook binds the new release too, and commands say what to do."""
    host = make_host(OLD)
    host.script(ONCE, "before")
    host.actor("attach")
    host.run("python", *install("--no-deps"))
    assert host.script(ONCE, "new").stdout.startswith("hermes_actor.dbapi")
    # So it is with modules that the release before did not have.
    (host.purelib / "hermes_later.py").write_text("import sqlite3\n")
    with (host.purelib / f"hermes_agent-{NEW}.dist-info" / "RECORD").open("a") as record:
        record.write("hermes_later.py,,\n")
    assert host.script(LATER).stdout.startswith("hermes_actor.dbapi")

    said = f"hermes-agent has changed since, from {OLD} to {NEW}"
    assert said in host.actor("attach", "--check", code=1)
    findings = json.loads(host.actor("doctor", "--quick", "--json", code=1))["findings"]
    assert said in {one["text"] for one in findings}
    told = host.actor("update", "--", "true")
    assert f"attached: hermes-agent {NEW} stores {host.home} through the actor" in told
    host.actor("attach", "--check")
    host.actor("attach", "--undo")
    assert host.script(ONCE, "after").stdout == "sqlite3\n"


def test_an_update_that_drops_us_is_named(make_host):
    """``uv tool install --upgrade`` without ``--with`` does that."""
    host = make_host(NEW)
    host.script(ONCE, "before")
    host.actor("attach")
    drop = [str(host.python), "-m", "pip", "uninstall", "--quiet", "--yes", "hermes-actor"]
    done = subprocess.run(
        [sys.executable, "-m", "hermes_actor", "update", "--", *drop], cwd="/",
        env=host.variables, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert f"{host.home} is no longer attached as it was: " in done.stderr
    assert f"Install it there first: {host.python} -m pip install " in done.stderr
    assert host.script(ONCE, "after").stdout == "sqlite3\n"
