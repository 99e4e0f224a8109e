"""Metrics: the text that Prometheus reads, at the command and at the loopback port."""

import http.client
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.fake_builds import command, serving

from hermes_actor import SessionDB
from hermes_actor.tools.metrics_text import METRICS, StoreState, metrics_text
from hermes_protocol.status import Status

LINE = re.compile(r'(hermes_actor_[a-z_]+)\{database="((?:[^"\\]|\\.)*)"(?:,[^}]*)?\} (\S+)')


def values(text):
    """Samples of every metric; each line is one, or a comment that stands before its samples."""
    found = {}
    for line in text.splitlines():
        if line.startswith("# "):
            _, word, name, _ = line.split(" ", 3)
            assert word in ("HELP", "TYPE")
            assert name not in found
        else:
            name, _, value = LINE.fullmatch(line).groups()
            found.setdefault(name, []).append(float(value))
    return found


def test_a_running_actor(path):
    with serving(path):
        db = SessionDB(path)
        db.create_session("s", "cli")
        for _ in range(4):
            db.append_message("s", "user", "x")
        done = command("metrics", "--db", path)
        db.close()
    assert done.returncode == 0, done.stderr
    found = values(done.stdout)
    assert found["hermes_actor_up"] == [1]
    assert found["hermes_actor_writes_total"] == [5]
    assert sum(found["hermes_actor_phase"]) == 1
    assert found["hermes_actor_clients"] == [2]
    assert found["hermes_actor_file_bytes"] == [path.stat().st_size]
    assert sum(found["hermes_actor_batches_total"]) >= 1


def test_no_actor_is_started(path):
    SessionDB(path, mode="embedded").close()
    found = values(command("metrics", "--db", path).stdout)
    assert found["hermes_actor_up"] == [0]
    assert "hermes_actor_writes_total" not in found
    assert values(command("metrics", "--db", path).stdout)["hermes_actor_up"] == [0]


def test_every_store_of_a_home(path, tmp_path):
    other = tmp_path / "other" / 'a "b"\\' / "kanban.db"
    other.parent.mkdir(parents=True)
    with serving(path), serving(other):
        text = command("metrics", "--all", HERMES_HOME=str(tmp_path)).stdout
    assert values(text)["hermes_actor_up"] == [1, 1]
    assert r"a \"b\"\\/kanban.db" in text


@pytest.fixture
def endpoint(path):
    """The command that answers scrapes, and its port."""
    words = [sys.executable, "-m", "hermes_actor", "metrics", "--db", str(path), "--listen", "0"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        try:
            (port,) = re.findall(r"http://127\.0\.0\.1:(\d+)/metrics", process.stderr.readline())
            yield process, int(port)
        finally:
            process.kill()


def get(port, url="/metrics", host=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", url, headers={"Host": host or f"127.0.0.1:{port}"})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer, text


def test_endpoint_asks_at_every_scrape(path, endpoint):
    process, port = endpoint
    assert values(get(port)[1])["hermes_actor_up"] == [0]
    with serving(path):
        answer, text = get(port)
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert values(text)["hermes_actor_up"] == [1]
        assert get(port, host=f"localhost:{port}")[0].status == 200
    assert get(port, "/")[0].status == 404
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0


def test_endpoint_is_not_for_pages_under_other_names(endpoint):
    answer, text = get(endpoint[1], host="evil.example")
    assert answer.status == 403
    assert "hermes_actor" not in text


def test_port_in_use_is_one_line(path, endpoint):
    done = command("metrics", "--db", path, "--listen", endpoint[1])
    where = f"port {endpoint[1]} of 127.0.0.1"
    assert (done.returncode, done.stderr) == (
        1, f"Error: cannot listen on {where}: Address already in use\n"
    )  # fmt: skip


OF_NO_METRIC = {
    "pid", "version", "protocol", "build", "database", "kind", "python", "sqlite", "commit_no",
    "epoch", "private_statements", "foreign_writers", "handoff",
}  # fmt: skip
"""Names and numbers that say who, and not how much."""


def test_every_figure_of_the_status_is_a_metric():
    shown = {key for metric in METRICS for key in metric.keys}
    keys = set(Status(pid=1, version="1", phase_text="serving").document())
    assert shown <= keys
    assert keys - shown == OF_NO_METRIC - shown


def test_page_has_every_metric():
    page = Path(__file__).parents[2] / "docs" / "how-to" / "metrics.md"
    rows = re.findall(
        r"^\| `hermes_actor_(\w+)` \| (\w+) \| (.+) \|$", page.read_text(), re.MULTILINE
    )
    expected = [(one.name, one.kind, one.help.rstrip(".")) for one in METRICS]
    assert rows[3:] == expected
    assert [name for name, _, _ in rows[:3]] == ["up", "file_bytes", "wal_bytes"]


def test_a_path_that_is_no_text_is_escaped():
    path = os.fsdecode(b"/caf\xe9/state.db")
    text = metrics_text([StoreState(path, None, 0, 0)])
    assert r'database="/caf\\xe9/state.db"' in text
    text.encode()
