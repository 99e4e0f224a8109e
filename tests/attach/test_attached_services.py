"""Programs that stay: gateway, API server and dashboard of an attached home.

The actor is the only process that has a database open for writing, and stays it.
"""

import json
import re
import socket
import sqlite3
import urllib.error
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest
from support.actors import actor_pid, wait_for

from hermes_actor.system.lock_inspection import processes_with_write_fd

pytestmark = [pytest.mark.timeout(1200), pytest.mark.slow]

KEY = "0123456789abcdef0123456789abcdef"


def ask(url, key=None, document=None, header="Authorization"):
    """The JSON that *url* answers; ``None`` while there is no server."""
    request = urllib.request.Request(url, headers={"Content-Type": "application/json"})
    if key is not None:
        request.add_header(header, f"Bearer {key}" if header == "Authorization" else key)
    if document is not None:
        request.data = json.dumps(document).encode()
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)
    except urllib.error.HTTPError:
        raise
    except OSError:
        return None


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def writers(path):
    """Every process that has *path* open for writing.

    The WAL says nothing: SQLite opens it for writing in a connection that only reads, too.
    """
    return set(processes_with_write_fd(path))


def texts(path, role):
    sql = "SELECT content FROM messages WHERE role = ? ORDER BY id"
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as conn:
        return [content for (content,) in conn.execute(sql, (role,))]


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="looks at /proc")
def test_gateway_and_api_server_store_through_the_actor(host, tmp_path):
    host.hermes("chat", "-Q", "-q", "Before")
    host.actor("attach")
    port, log = free_port(), tmp_path / "gateway.log"
    variables = {
        "API_SERVER_ENABLED": "true", "API_SERVER_KEY": KEY, "API_SERVER_PORT": str(port),
    }  # fmt: skip
    base = f"http://127.0.0.1:{port}/v1"
    with host.running("hermes", "gateway", "run", log=log, **variables) as gateway:
        wait_for(lambda: ask(f"{base}/models", KEY), 180)
        for number in range(3):
            said = [{"role": "user", "content": f"Chat {number}"}]
            told = ask(f"{base}/chat/completions", KEY, {"model": "any", "messages": said})
            assert told["choices"][0]["message"]["content"] == f"Heard: Chat {number}"
        told = ask(f"{base}/responses", KEY, {"model": "any", "input": "Kept"})
        assert told["output"][-1]["content"][0]["text"] == "Heard: Kept"
        assert ask(f"{base}/responses/{told['id']}", KEY)["id"] == told["id"]
        host.hermes("chat", "-Q", "-q", "Beside it")

        names = {path.name for path in host.databases()}
        assert {"state.db", "response_store.db"} <= names
        for path in host.databases():
            owner = actor_pid(path)
            assert writers(path) <= {owner}, path
        assert writers(host.db) == {actor_pid(host.db)}

        # It would attach its files again: named, and nothing is changed.
        done = host.run("hermes-actor", "attach", "--undo", code=1)
        assert f"pid {gateway}" in done.stderr
        assert host.actor("attach", "--check").startswith("attached: ")
    said = [text for text in texts(host.db, "user") if not text.startswith("[")]
    assert sorted(said) == ["Before", "Beside it", "Chat 0", "Chat 1", "Chat 2", "Kept"]
    assert " ERROR " not in (host.home / "logs" / "errors.log").read_text()
    host.actor("attach", "--undo")
    assert sorted(said) == sorted(
        text for text in texts(host.db, "user") if not text.startswith("[")
    )


def test_dashboard_reads_and_writes_through_the_actor(newest, tmp_path):
    """0.14.0 does not start one: its package comes without the server that it needs."""
    newest.hermes("chat", "-Q", "-q", "Before")
    newest.actor("attach")
    port, log = free_port(), tmp_path / "dashboard.log"
    words = ("hermes", "dashboard", "--no-open", "--skip-build", "--port", str(port))
    with newest.running(*words, log=log):
        wait_for(lambda: b"READY" in log.read_bytes(), 180)

        def page():
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=120) as answer:
                return answer.read().decode()

        token = re.search(r"SESSION_TOKEN__\s*=\s*\"([^\"]+)\"", page())[1]
        (session,) = ask(f"http://127.0.0.1:{port}/api/sessions", token)["sessions"]
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/api/sessions/{session['id']}", method="DELETE",
            headers={"Authorization": f"Bearer {token}"},
        )  # fmt: skip
        assert writers(newest.db) <= {actor_pid(newest.db)}
        with urllib.request.urlopen(request, timeout=120) as answer:
            assert answer.status == 200
        assert ask(f"http://127.0.0.1:{port}/api/sessions", token)["sessions"] == []
        assert writers(newest.db) <= {actor_pid(newest.db)}
    assert texts(newest.db, "user") == []
    newest.actor("attach", "--undo")
