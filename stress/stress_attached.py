"""An installed hermes-agent on an attached home, whole, its actor under attack.

Gateway with API server, cron jobs and command lines make turns against a model server on loopback,
while the actor of the home is handed over every two seconds and killed every five. Every turn that
was answered is stored once, question and answer, the logs of the program have no error, and the
file is whole.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import sqlite3
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping

from harness.job import Job, run
from support.actors import actor_pid, wait_for
from support.hosts import Host, is_installed
from support.model_server import model_server

from hermes_actor.client.control import request_handoff
from hermes_actor.errors import HermesActorError
from hermes_actor.paths import resolve_paths

VERSION = "0.19.0"
KEY = "0123456789abcdef0123456789abcdef"
KILL_SECONDS, HANDOFF_SECONDS = 5.0, 2.0
COMMAND_LINES, API_CLIENTS, CRON_JOBS = 6, 2, 1
SECONDS = 120.0
"""Of the usual form; it goes on until every client has made a turn, too."""

_STORE = re.compile(r"sqlite|database|session db|locked", re.IGNORECASE)
_JOB = re.compile(r"\b[0-9a-f]{12}\b")


def main(job: Job) -> None:
    if not is_installed(VERSION):
        job.cannot("the agent program is not installed", goal=0)
        return
    with model_server() as url:
        host = Host(VERSION, job.folder / "host", url)
        try:
            host.script("from hermes_state import SessionDB; SessionDB().close()")
            host.actor("attach")
            port = _free_port()
            variables = {
                "API_SERVER_ENABLED": "true", "API_SERVER_KEY": KEY, "API_SERVER_PORT": str(port),
            }  # fmt: skip
            log = job.folder / "gateway.log"
            with host.running("hermes", "gateway", "run", log=log, **variables):
                base = f"http://127.0.0.1:{port}/v1"
                wait_for(lambda: _ask(f"{base}/models") is not None, 120)
                turns = _Fire(job, host, base).run()
            judge(job, host, turns)
        finally:
            host.end()


class _Fire:
    """Clients that make turns, each in a thread of its own, and the attack beside them."""

    def __init__(self, job: Job, host: Host, base: str) -> None:
        self._job, self._host, self._base = job, host, base
        self._ends = time.monotonic() + (0.0 if job.form == "short" else SECONDS)
        self._turns: list[str] = []
        self._failures: list[str] = []
        self._lock = threading.Lock()

    def run(self) -> list[str]:
        """Attack for as long as any client is at work; return the turns that were answered."""
        few = self._job.form == "short"
        plan: list[tuple[str, int, Callable[[str], str]]] = [
            ("line", 2 if few else COMMAND_LINES, self._line),
            ("api", 1 if few else API_CLIENTS, self._api),
            ("cron", CRON_JOBS, self._cron),
        ]
        clients = [
            threading.Thread(target=self._client, args=(f"{kind}{number}", turn), daemon=True)
            for kind, count, turn in plan
            for number in range(count)
        ]
        for client in clients:
            client.start()
        self._attack(clients)
        for failure in self._failures:
            self._job.violation(failure)
        return self._turns

    def _client(self, name: str, turn: Callable[[str], str]) -> None:
        for number in range(10**6):
            text = f"turn {name} {number} end"
            try:
                answer = turn(text)
                fault = None if text in answer else f"{text} was answered by: {answer[-300:]}"
            except Exception as error:
                fault = f"{text}: {type(error).__name__}: {error}"
            with self._lock:
                if fault is None:
                    self._turns.append(text)
                    self._job.count("turns")
                else:
                    self._failures.append(fault)
            if time.monotonic() > self._ends:
                break

    def _line(self, text: str) -> str:
        done = self._host.run("hermes", "chat", "-Q", "-q", text)
        return done.stdout + done.stderr

    def _api(self, text: str) -> str:
        said = {"model": "any", "messages": [{"role": "user", "content": text}]}
        answer = _ask(f"{self._base}/chat/completions", said)
        return str(answer)

    def _cron(self, text: str) -> str:
        made = self._host.hermes("cron", "create", "30m", text, "--deliver", "local")
        name = _JOB.findall(made)[0]
        self._host.hermes("cron", "run", name)
        self._host.hermes("cron", "tick")
        written = sorted((self._host.home / "cron" / "output" / name).glob("*.md"))
        return "\n".join(one.read_text() for one in written)

    def _attack(self, clients: list[threading.Thread]) -> None:
        path, began = self._host.db, time.monotonic()
        next_kill, next_handoff = began + KILL_SECONDS, began + HANDOFF_SECONDS
        while any(client.is_alive() for client in clients):
            time.sleep(0.02)
            pid, now = actor_pid(path), time.monotonic()
            if pid is None:
                continue
            if now >= next_kill:
                next_kill = now + KILL_SECONDS
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                self._job.count("kills")
            elif now >= next_handoff:
                next_handoff = now + HANDOFF_SECONDS
                with contextlib.suppress(HermesActorError, OSError):
                    request_handoff(resolve_paths(path), str(self._host.python))
                    self._job.count("hand-offs")


def judge(job: Job, host: Host, turns: list[str]) -> None:
    sql = "SELECT COUNT(*) FROM messages WHERE role = ? AND instr(content, ?) > 0"
    with contextlib.closing(sqlite3.connect(f"file:{host.db}?mode=ro", uri=True)) as conn:
        for turn in turns:
            for role in ("user", "assistant"):
                (stored,) = conn.execute(sql, (role, turn)).fetchone()
                job.demand(stored == 1, f"{turn!r} of the {role} is stored {stored} times")
        (verdict,) = conn.execute("PRAGMA integrity_check").fetchone()
        job.demand(verdict == "ok", f"the file is damaged: {verdict}")
    for log in sorted((host.home / "logs").glob("*.log")):
        for line in log.read_text(errors="replace").splitlines():
            job.demand(not _is_fault(line), f"{log.name}: {line}")


def _is_fault(line: str) -> bool:
    """Whether it is an error of any kind, or a warning about the store."""
    return " ERROR " in line or (" WARNING " in line and _STORE.search(line) is not None)


def _ask(url: str, document: Mapping[str, object] | None = None) -> object:
    """The JSON that *url* answers; ``None`` while there is no server."""
    request = urllib.request.Request(
        url, data=None if document is None else json.dumps(document).encode(),
        headers={"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"},
    )  # fmt: skip
    try:
        with urllib.request.urlopen(request, timeout=240) as answer:
            found: object = json.load(answer)
            return found
    except ConnectionError:
        return None
    except urllib.error.URLError as error:
        if document is None:
            return None
        raise RuntimeError(f"{url}: {error}") from error


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


if __name__ == "__main__":
    sys.exit(run(main, "turns", short=4, usual=12, also={"kills": 15, "hand-offs": 15}))
