"""A home that is attached answers as one that is not: the same commands, the same words, and rows.

Each command is the released program in a process of its own, against a model server on loopback.
"""

import json
import re
import sqlite3
from contextlib import closing

import pytest
from support.actors import actor_pid

pytestmark = [pytest.mark.timeout(1200), pytest.mark.slow]

SESSION = re.compile(r"\b\d{8}_\d{6}_[0-9a-f]{6}\b")
JOB = re.compile(r"\b[0-9a-f]{12}\b")
VARYING = [
    (re.compile(r"\bcron_[0-9a-f]{12}_\d{8}_\d{6}\b"), "CRON-SESSION"),
    (re.compile(r"\b\d{8}_\d{6}_[0-9a-f]{0,6}"), "SESSION"),
    (re.compile(r"\bt_[0-9a-f]{8}\b"), "TASK"),
    (JOB, "JOB"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?(\+\d\d:\d\d)?"), "TIME"),
    (re.compile(r"\b(just now|\d+[smh] ago)"), "AGO"),
    (re.compile(r"\b1[789]\d{8}(\.\d+)?\b"), "STAMP"),
    (re.compile(r"~?[\d.]+ ?(ms|s|m|h|sec|min)\b( [\d.]+ ?(s|m|sec|min)\b)*"), "DURATION"),
    (re.compile(r"(Mon|Tue|Wed|Thu|Fri|Sat|Sun|\d* ?(AM|PM)|\d?\d:\d\d)\b.*"), "CALENDAR"),
    (re.compile(r"· \w{3} \d\d \d\d:\d\d"), "· DAY"),
    (re.compile(r"[ ─]{2,}"), "  "),
]


def same(text, home):
    """*text* without what differs between any two runs."""
    text = text.replace(str(home), "HOME")
    for pattern, word in VARYING:
        text = pattern.sub(word, text)
    return text


def use(host):
    """Use the program as a person does; every answer, and what the store keeps in the end."""
    seen = []

    def hermes(*words, code=0):
        told = host.hermes(*words, code=code)
        seen.append((words[:2], same(told, host.home)))
        return told

    assert "Heard: One" in hermes("chat", "-Q", "-q", "One")
    assert "Heard: Two" in hermes("chat", "-Q", "-q", "Two", "-c")
    (first,) = set(SESSION.findall(host.hermes("sessions", "list")))
    hermes("sessions", "rename", first, "A title")
    assert "Heard: Three" in hermes("chat", "-Q", "-q", "Three", "-r", first)
    assert "Heard: Four" in hermes("chat", "-Q", "-q", "Four", "-c", "A title")
    assert "Heard: Other" in hermes("chat", "-Q", "-q", "Other")
    listed = hermes("sessions", "list")
    exported = json.loads(host.hermes("sessions", "export", "-", "--session-id", first))
    seen.append(sorted(exported))
    seen.append([(one["role"], one["content"]) for one in exported["messages"]])
    assert [text for role, text in seen[-1] if role == "user"] == ["One", "Two", "Three", "Four"]
    hermes("insights")
    hermes("sessions", "prune", "--older-than", "100", "--yes")
    (other,) = set(SESSION.findall(listed)) - {first}
    hermes("sessions", "delete", other, "--yes")

    hermes("cron", "create", "30m", "Wake up", "--name", "job", "--deliver", "local")
    job = JOB.search(host.hermes("cron", "list"))[0]
    hermes("cron", "run", job)
    hermes("cron", "tick")
    hermes("kanban", "init")
    hermes("kanban", "create", "A task", "--json")
    hermes("kanban", "list")
    hermes("sessions", "list")

    with closing(sqlite3.connect(f"file:{host.db}?mode=ro", uri=True)) as conn:
        rows = "SELECT source, title, message_count FROM sessions ORDER BY started_at"
        # A job without a title gets the minute of its run.
        seen.append([(s, t and same(t, host.home), n) for s, t, n in conn.execute(rows)])
        rows = "SELECT role, substr(content, -40) FROM messages ORDER BY id"
        seen.append([(role, same(text, host.home)) for role, text in conn.execute(rows)])
        assert conn.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    errors = (host.home / "logs" / "errors.log").read_text()
    return seen, [line for line in errors.splitlines() if " ERROR " in line]


def test_every_command_answers_as_without_us(host, model_url):
    attached, host.home = host.home, host.user / "plain"
    host.make_home(host.home, model_url)
    plain, plain_errors = use(host)

    host.home = attached
    host.actor("attach")
    seen, errors = use(host)
    assert (len(errors), errors) == (len(plain_errors), errors)
    for ours, theirs in zip(seen, plain, strict=True):
        assert ours == theirs
    # It was the actor that wrote: each file has had one.
    owned = [path for path in host.databases() if (path.parent / f".{path.name}.actor").is_dir()]
    assert owned == host.databases()
    assert actor_pid(host.db) is not None

    host.actor("attach", "--undo")
    assert "A title" in host.hermes("sessions", "list")
