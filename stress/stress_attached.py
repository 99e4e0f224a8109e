"""An installed hermes-agent on an attached home, whole, its actor under attack.

Gateway with API server, cron jobs and command lines make turns against a model server on loopback,
while the actor of the home is handed over every two seconds and killed every five. Every turn that
was answered is stored once, question and answer, the logs of the program have no error, and the
file is whole.
"""

from __future__ import annotations

import contextlib
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from functools import partial

from harness.attack import attack_actor
from harness.job import Job, run
from support.host_turns import api_turn, cron_turn, gateway, is_store_fault, line_turn
from support.hosts import Host, is_installed
from support.model_server import model_server

VERSION = "0.19.0"
KILL_SECONDS, HANDOFF_SECONDS = 5.0, 2.0
COMMAND_LINES, API_CLIENTS, CRON_JOBS = 6, 2, 1
SECONDS = 120.0
"""Of the usual form; it goes on until every client has made a turn, too."""


def main(job: Job) -> None:
    if not is_installed(VERSION):
        job.cannot("the agent program is not installed", goal=0)
        return
    with model_server() as url:
        host = Host(VERSION, job.folder / "host", url)
        try:
            host.script("from hermes_state import SessionDB; SessionDB().close()")
            host.actor("attach")
            with gateway(host, job.folder / "gateway.log") as base:
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
            ("line", 2 if few else COMMAND_LINES, partial(line_turn, self._host)),
            ("api", 1 if few else API_CLIENTS, partial(api_turn, self._base)),
            ("cron", CRON_JOBS, partial(cron_turn, self._host)),
        ]
        clients = [
            threading.Thread(target=self._client, args=(f"{kind}{number}", turn), daemon=True)
            for kind, count, turn in plan
            for number in range(count)
        ]
        for client in clients:
            client.start()
        attack_actor(
            self._job, self._host.db, self._host.python, clients,
            kills=KILL_SECONDS, handoffs=HANDOFF_SECONDS,
        )  # fmt: skip
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
            job.demand(not (" ERROR " in line or is_store_fault(line)), f"{log.name}: {line}")


if __name__ == "__main__":
    sys.exit(run(main, "turns", short=4, usual=12, also={"kills": 15, "hand-offs": 15}))
