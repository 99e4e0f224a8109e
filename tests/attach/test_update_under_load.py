"""An update of hermes-agent in place while its gateway, cron jobs and command lines make turns, and
the way back."""

import re
import sqlite3
import subprocess
import threading
from contextlib import closing
from functools import partial

import pytest
from support.actors import wait_for
from support.host_turns import api_turn, cron_turn, gateway, is_store_fault, line_turn
from support.hosts import WHEELS, tree_of

pytestmark = [pytest.mark.timeout(1500), pytest.mark.slow]

OLD, NEW = "0.14.0", "0.19.0"
INSTALL = [
    "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile", "--no-index",
    "--find-links", str(WHEELS), f"hermes-agent=={NEW}",
]  # fmt: skip
REPLACED = re.compile(r"No module named|cannot import name|No such file or directory|has no attr")
"""What a program says that starts, or loads a module, while the installer replaces its files."""


class Client(threading.Thread):
    """Makes turns by one way until it is ended; keeps what was answered, and what went wrong."""

    def __init__(self, name, turn, is_replacing):
        super().__init__(name=name)
        self._turn, self._is_replacing = turn, is_replacing
        self._ends = threading.Event()
        self.answered, self.faults, self._number = [], [], 0

    def run(self):
        while not self._ends.is_set():
            self._number += 1
            text, began = f"turn {self.name} {self._number} end", self._is_replacing()
            try:
                answer = self._turn(text)
            except (AssertionError, RuntimeError, OSError, IndexError) as error:
                answer = f"{type(error).__name__}: {error}"
            if f"Heard: {text}" in answer or (self.name.startswith("cron") and text in answer):
                self.answered.append(text)
            elif not ((began or self._is_replacing()) and REPLACED.search(answer)):
                self.faults.append((text, answer[-1000:]))

    def end(self):
        self._ends.set()
        self.join()


def rows(host, role):
    with closing(sqlite3.connect(f"file:{host.db}?mode=ro", uri=True)) as conn:
        assert conn.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        sql = "SELECT content FROM messages WHERE role = ? AND content LIKE '%turn %'"
        return [content for (content,) in conn.execute(sql, (role,))]


def version(host):
    with closing(sqlite3.connect(f"file:{host.db}?mode=ro", uri=True)) as conn:
        return conn.execute("SELECT version FROM schema_version").fetchall()


def hook_files(tree):
    return {name for name in tree if "hermes_actor_boot" in name or "hermes_actor_attach" in name}


def test_everything_that_was_answered_is_stored_once_through_an_update_and_back(
    make_host, tmp_path
):
    host = make_host(OLD)
    host.hermes("chat", "-Q", "-q", "Before")
    host.actor("attach")
    replacing, clients = threading.Event(), []

    def begin(base, period):
        ways = {"line": partial(line_turn, host), "cron": partial(cron_turn, host)}
        ways["api"] = partial(api_turn, base)
        made = [Client(f"{way}{period}", turn, replacing.is_set) for way, turn in ways.items()]
        for client in made:
            client.start()
        clients.extend(made)
        return made

    def each_has_answered(made, more):
        marks = {one: len(one.answered) + more for one in made}
        wait_for(lambda: all(len(one.answered) >= marks[one] or one.faults for one in made), 400)

    with gateway(host, tmp_path / "old.log") as base:
        old = begin(base, "old")
        try:
            each_has_answered(old, 1)
            replacing.set()
            host.run("hermes-actor", "update", "--", str(host.python), *INSTALL)
            each_has_answered(old, 1)  # the old gateway beside new commands
            replacing.clear()
        finally:
            for client in old:
                client.end()
    with gateway(host, tmp_path / "new.log") as base:
        new = begin(base, "new")
        try:
            each_has_answered(new, 1)
        finally:
            for client in new:
                client.end()
    assert [fault for client in clients for fault in client.faults] == []
    assert version(host) == [(22,)]

    answered = {text for client in clients for text in client.answered}
    for role in ("user", "assistant"):
        stored = rows(host, role)
        assert {text: sum(text in one for one in stored) for text in answered} == dict.fromkeys(
            answered, 1
        ), role
    logs = (host.home / "logs").glob("*.log")
    lines = [line for log in logs for line in log.read_text(errors="replace").splitlines()]
    assert [line for line in lines if is_store_fault(line)] == []

    told = host.actor("attach", "--check")
    assert told.startswith(f"attached: hermes-agent {NEW} ")
    attached, kept = tree_of(host.prefix), sorted(rows(host, "user"))
    host.actor("attach", "--undo")
    back = tree_of(host.prefix)
    assert set(attached) - set(back) == hook_files(attached) != set()
    assert back == {name: attached[name] for name in back}
    assert hook_files(back) == set()
    for path in host.databases():
        with closing(sqlite3.connect(path)) as conn:
            assert conn.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            own = "SELECT name FROM sqlite_master WHERE name LIKE 'hermes~_actor~_%' ESCAPE '~'"
            assert conn.execute(own).fetchall() == [], path
    assert sorted(rows(host, "user")) == kept
    # The plain program goes on with it.
    assert "Heard: After" in host.hermes("chat", "-Q", "-q", "After")
    done = subprocess.run(
        [str(host.python), "-c", "import hermes_state, sys; print(sys.meta_path)"],
        env=host.variables, cwd="/", capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert "hermes_actor" not in done.stdout
