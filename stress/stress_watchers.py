"""Two expiry watchers of one home are killed and started again while sessions expire.

The memory hook is called for each session, again only if a watcher was killed before it could say
that it was called. The end of a session is said once at most, and not said only where a watcher
was killed right after it. A conversation with a turn is left alone until the turn has ended.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

from harness import PYTHONPATH
from harness.job import Job, run
from harness.sandbox import Sandbox
from harness.watcher_worker import IDLE

from hermes_actor import SessionDB
from hermes_actor.gateway import Hooks, SessionSource, SessionStore

SESSIONS = 6
KILLS_OF_A_HOME = 25
DEADLINE_SECONDS = 120.0


def main(job: Job) -> None:
    while job.more():
        sandbox = Sandbox(job.folder / f"home-{job.done}")
        log = sandbox.folder / "hooks.log"
        with sandbox.open(), worker(sandbox, log) as one, worker(sandbox, log) as other:
            sandbox.serves()  # the build under test, started by a watcher
            with SessionDB(sandbox.path, timeout=60) as db:
                one_home(job, db, log, [one, other])


@contextlib.contextmanager
def worker(sandbox: Sandbox, log: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a process whose child watches."""
    words = [sys.executable, "-P", "-m", "harness.watcher_worker", str(sandbox.path)]
    process = subprocess.Popen(
        [*words, str(sandbox.python), str(log)],
        env={**os.environ, "PYTHONPATH": PYTHONPATH, "HERMES_HOME": str(sandbox.folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        tell(process, "start")
        yield process
        tell(process, "stop")
    finally:
        process.kill()
        process.communicate()


def tell(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{word}\n")
    process.stdin.flush()
    process.stdout.readline()


def one_home(job: Job, db: SessionDB, log: Path, workers: list[subprocess.Popen[str]]) -> None:
    ago = datetime.now() - timedelta(days=30)
    past = SessionStore(config=IDLE, db=db, clock=lambda: ago, hooks=Hooks(entry_points=False))
    killed = number = 0
    while killed < KILLS_OF_A_HOME and job.more():
        number += 1
        busy = expired(past, f"{number}-busy")
        with db.turn(busy, holder="answering", wait=60):
            # The watcher may have come to it before the turn was taken.
            before = lines_of(log)[("before", busy)]
            ids = {expired(past, f"{number}-{one}") for one in range(SESSIONS)}
            for _ in range(2):
                time.sleep(job.rng.uniform(0.0, 0.1))
                victim = job.rng.choice(workers)
                tell(victim, "kill")
                tell(victim, "start")
                killed += 1
                job.count("restarts")
            wait_for(job, past, log, ids)
            if not is_finalized(past, busy):
                job.demand(
                    lines_of(log)[("before", busy)] == before,
                    f"the memory hook was called for {busy}, which has a turn",
                )
        wait_for(job, past, log, {busy})
        job.count("sessions", len(ids) + 1)
        if job.violations:
            return
    judge(job, past, log, killed)


def expired(past: SessionStore, name: str) -> str:
    """Return a session that has expired, long enough for the memory hook."""
    entry = past.get_or_create_session(SessionSource(platform="telegram", chat_id=name))
    for number in range(4):
        message = {"role": "user", "content": str(number), "timestamp": past.clock().isoformat()}
        past.append_to_transcript(entry.session_id, message)
    return entry.session_id


def finalized(past: SessionStore) -> set[str]:
    entries = [route.entry for route in past.routes()]
    return {entry["session_id"] for entry in entries if entry.get("expiry_finalized")}


def is_finalized(past: SessionStore, session_id: str) -> bool:
    return session_id in finalized(past)


def wait_for(job: Job, past: SessionStore, log: Path, ids: set[str]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not ids <= finalized(past):
        twice = [one for (word, one), count in lines_of(log).items() if word == "end" and count > 1]
        if twice or time.monotonic() > deadline:
            job.demand(not twice, f"the end of {twice} was said twice")
            job.demand(bool(twice), f"{ids - finalized(past)} are not finished")
            return
        time.sleep(0.02)


def lines_of(log: Path) -> Counter[tuple[str, str]]:
    lines = log.read_text().splitlines() if log.exists() else []
    return Counter((word, one) for word, one in map(str.split, lines))


def judge(job: Job, past: SessionStore, log: Path, killed: int) -> None:
    counts = lines_of(log)
    ids = finalized(past)
    before = sum(counts["before", one] for one in ids)
    ends = [counts["end", one] for one in ids]
    for one in ids:
        # Those that expired before a watcher came to them have four messages, or fewer.
        job.demand(counts["end", one] <= 1, f"the end of {one} was said twice")
    job.demand(before <= len(ids) + killed, f"{before} memory hooks of {len(ids)} sessions")
    job.demand(sum(ends) >= len(ids) - killed, f"{sum(ends)} ends of {len(ids)} sessions")
    reasons = {past.db.get_session(one)["end_reason"] for one in ids}  # type: ignore[index]
    job.demand(reasons == {"idle"}, f"sessions have ended because of {reasons}")


if __name__ == "__main__":
    sys.exit(run(main, "restarts", short=6, usual=100))
