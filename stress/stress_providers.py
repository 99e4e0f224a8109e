"""Stores on servers: PostgreSQL and MariaDB are killed again and again while many write.

The servers are private ones, on sockets in a temporary folder. ``kill -9`` hits every process of a
server at once; it is started again on the same data. Writers are processes of their own, alone and
in pipelines. In the end what was acknowledged must be there once, with the id of the answer, in the
order of its client, and nothing that was refused or never sent.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import zlib
from pathlib import Path
from typing import Any, NamedTuple, cast

from harness.job import Job, run
from harness.sandbox import Sandbox
from harness.workload import Workload
from support import servers

from hermes_actor import SessionDB
from hermes_actor.testing.history import Row, check
from hermes_actor.testing.records import load

WRITERS = 6
DEPTH = 24
KILLS_PER_SERVER = 25
WRITES_PER_KILL = 800
SHORT_WRITES_PER_KILL = 150
KINDS = {"postgresql": servers.PostgreSQL, "mysql": servers.MariaDB}
PROGRAMS = {"postgresql": ("postgres",), "mysql": ("mariadbd", "mysqld")}

_START_TRIES = 20
_TIMEOUT_SECONDS = 60.0


class Site(NamedTuple):
    """What clients need to know of a store."""

    folder: Path
    path: str
    kind: str = "sessions"
    python: str = sys.executable


def main(job: Job) -> None:
    kinds = [
        kind for kind in KINDS
        if job.options.get("kind", kind) == kind and servers.find(*PROGRAMS[kind])
    ]  # fmt: skip
    if "kind" in job.options:
        job.goal *= len(kinds) / len(KINDS)
    missing = sorted(KINDS.keys() - set(kinds))
    if missing and "kind" not in job.options:
        job.cannot(f"not installed: {', '.join(missing)}", goal=job.goal * len(kinds) / len(KINDS))
    while job.more():
        for kind in kinds:
            kills = KILLS_PER_SERVER if job.form != "short" else int(job.goal) // len(kinds)
            play(job, kind, int(job.options.get("sandbox", kills)))


def play(job: Job, kind: str, kills: int) -> None:
    server = KINDS[kind]()
    folder = job.folder / f"{kind}-{job.done}"
    folder.mkdir()
    site = Site(folder, server.new_store())
    try:
        clients = Workload(
            cast("Sandbox", site), job.rng.randrange(2**32), writers=WRITERS, depth=DEPTH
        )
        try:
            clients.ready()
            kill_often(job, server, site, kills)
            clients.stop_faults()
            time.sleep(0.2)
        finally:
            code = clients.stop()
        job.demand(code == 0, f"{kind}: clients have ended with {code}")
        judge(job, kind, site, clients.calm)
    finally:
        server.remove()


def kill_often(job: Job, server: Any, site: Site, kills: int) -> None:
    each = SHORT_WRITES_PER_KILL if job.form == "short" else WRITES_PER_KILL
    for turn in range(1, kills + 1):
        wait_for_writes(site, turn * each)
        if job.left <= 0:
            return
        time.sleep(job.rng.random() * 0.02)
        kill(server)
        start(server)
        job.count("kills")
    wait_for_writes(site, kills * each + 1)


def acknowledged(site: Site) -> int:
    """So far, by what the writers have written down."""
    return sum(
        file.read_bytes().count(b"\no ") for file in (site.folder / "history").iterdir()
    )  # fmt: skip


def wait_for_writes(site: Site, number: int) -> None:
    give_up, last = time.monotonic() + _TIMEOUT_SECONDS, 0
    while (now := acknowledged(site)) < number:
        if now > last:
            give_up, last = time.monotonic() + _TIMEOUT_SECONDS, now
        if time.monotonic() > give_up:
            raise TimeoutError(f"nothing is acknowledged for {_TIMEOUT_SECONDS:g} s")
        time.sleep(0.05)


def kill(server: Any) -> None:
    """Every process of the server, at once: none tidies up after the others."""
    first = server.process.pid
    children = [
        int(pid)
        for task in Path(f"/proc/{first}/task").iterdir()
        for pid in (task / "children").read_text().split()
    ]
    for pid in (first, *children):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    server.process.wait()
    server.process = None


def start(server: Any) -> None:
    """Again on the same data; while a killed process is still going, the server refuses to."""
    for tried in range(1, _START_TRIES + 1):
        try:
            server.start()
            return
        except AssertionError:
            if tried == _START_TRIES:
                raise
            time.sleep(0.1)


def judge(job: Job, kind: str, site: Site, calm: float | None) -> None:
    """Compare client by client: one client has one session, in which ids grow."""
    recorded = load(site.folder / "history")
    names = {write.client for write in recorded.writes}
    with contextlib.closing(SessionDB(site.path)) as db:
        for name in sorted(names):
            rows = [
                Row(row["id"], name, int(row["content"].split(" ", 2)[1]),
                    zlib.crc32(row["content"].encode()), row["id"])
                for row in db.get_messages(name)
            ]  # fmt: skip
            counted = (db.get_session(name) or {}).get("message_count")
            writes = [write for write in recorded.writes if write.client == name]
            wrong = [] if counted == len(rows) else [f"{name} counts {counted} of {len(rows)}"]
            for found in check(writes, rows, structure=wrong, calm=calm, timeout=30.0):
                job.violation(f"{kind}: {found}")
    for text in recorded.refusals:
        job.violation(f"{kind}: refused: {text}")
    told = sum(write.outcome == "ok" for write in recorded.writes)
    job.count(f"acknowledged by {kind}", told)


if __name__ == "__main__":
    sys.exit(run(main, "kills", short=2, usual=2 * KILLS_PER_SERVER))
