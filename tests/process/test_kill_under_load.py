"""``kill -9`` of the actor under load: nothing acknowledged is lost, nothing is doubled."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path

from support.actors import actor_pid, stop_actor, wait_for

from hermes_actor.client.control import ask_status
from hermes_actor.errors import HermesActorError
from hermes_actor.paths import resolve_paths
from hermes_actor.sqlite import connect_reader

CLIENTS = 8
KILLS = 10

CLIENT = """
import json, sys
from pathlib import Path
from hermes_actor import SessionDB

path, name = Path(sys.argv[1]), sys.argv[2]
db = SessionDB(path, mode="actor")
db.create_session(name, "cli")
print("ready", flush=True)
acknowledged = []
n = 0
while not path.with_name("stop").exists():
    acknowledged.append((n, db.append_message(name, "user", str(n))))
    n += 1
db.close()
print(json.dumps(acknowledged), flush=True)
"""


def start(path: Path, name: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", CLIENT, str(path), name], stdout=subprocess.PIPE, text=True
    )


def serves(path: Path) -> bool:
    with suppress(HermesActorError, OSError):
        found = ask_status(resolve_paths(path))
        return found is not None and found.is_serving
    return False


def rows(path: Path, session: str) -> list[tuple[int, int]]:
    with closing(connect_reader(path)) as conn:
        sql = "SELECT content, id FROM messages WHERE session_id = ? ORDER BY id"
        return [(int(content), number) for content, number in conn.execute(sql, (session,))]


def test_acknowledged_writes_survive_exactly_once_and_in_order(tmp_path):
    path = tmp_path / "state.db"
    clients = {name: start(path, name) for name in (f"c{n}" for n in range(CLIENTS))}
    for client in clients.values():
        assert client.stdout.readline() == "ready\n"
    killed = set()
    while len(killed) < KILLS:
        time.sleep(0.15)
        if len(killed) % 2:
            # Every other one dies at work. If all died while they came up, clients would give up.
            wait_for(lambda: serves(path))
        pid = actor_pid(path)
        if pid is not None and pid not in killed:
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
    time.sleep(0.3)
    path.with_name("stop").touch()
    told = {}
    for name, client in clients.items():
        out, _ = client.communicate(timeout=60)
        assert client.returncode == 0
        told[name] = [tuple(pair) for pair in json.loads(out)]
    stop_actor(path)
    for name, acknowledged in told.items():
        assert len(acknowledged) > KILLS
        assert rows(path, name) == acknowledged
    with closing(connect_reader(path)) as conn:
        assert conn.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        counters = dict(conn.execute("SELECT id, message_count FROM sessions"))
        assert counters == {name: len(acknowledged) for name, acknowledged in told.items()}


def test_client_finds_or_starts_the_next_actor_by_itself(tmp_path):
    from hermes_actor import SessionDB

    path = tmp_path / "state.db"
    db = SessionDB(path, mode="actor")
    db.create_session("s", "cli")
    first = actor_pid(path)
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
        stop_actor(path, number)
        assert db.append_message("s", "user", number.name) > 0
    assert actor_pid(path) not in (None, first)
    assert [m["content"] for m in db.get_messages("s")] == ["SIGKILL", "SIGTERM", "SIGINT"]
    db.close()
