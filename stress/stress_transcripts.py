"""A follower of transcripts is killed at each of its steps, over and over.

At every moment each file is a prefix of the messages of its session, however torn its last line is,
and what is loaded of a session is right. Whenever a follower comes through, the files equal the
rows. Sessions grow, and are replaced now and then.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from harness import PYTHONPATH
from harness.follower_worker import STEPS
from harness.job import Job, run
from harness.sandbox import Sandbox

from hermes_actor import SessionDB
from hermes_actor.gateway import GatewayConfig, Hooks, SessionSource, SessionStore

CHATS = 3
ROUNDS_OF_A_HOME = 150


def main(job: Job) -> None:
    while job.more():
        sandbox = Sandbox(job.folder / f"home-{job.done}")
        opened = SessionDB(sandbox.path, timeout=60)
        with sandbox.open(), worker(sandbox) as follower, opened as db:
            hooks = Hooks(entry_points=False)
            one_home(job, SessionStore(config=GatewayConfig(), db=db, hooks=hooks), follower)


@contextlib.contextmanager
def worker(sandbox: Sandbox) -> Iterator[subprocess.Popen[str]]:
    """Start the process whose children follow."""
    words = [sys.executable, "-P", "-m", "harness.follower_worker", str(sandbox.path)]
    process = subprocess.Popen(
        [*words, str(sandbox.python)],
        env={**os.environ, "PYTHONPATH": PYTHONPATH, "HERMES_HOME": str(sandbox.folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.communicate()


def one_home(job: Job, store: SessionStore, follower: subprocess.Popen[str]) -> None:
    sources = [SessionSource(platform="echo", chat_id=str(number)) for number in range(CHATS)]
    ids = [store.get_or_create_session(source).session_id for source in sources]
    replaced: set[str] = set()
    for number in range(ROUNDS_OF_A_HOME):
        if not job.more():
            break
        for one in ids:
            # Not through the gateway: nothing follows but the process under test.
            for part in range(job.rng.randrange(1, 4)):
                text = f"{number}.{part} ü 北京 {'x' * job.rng.randrange(200)}"
                store.db.append_message(one, "user", text)
        if job.rng.random() < 0.15:
            one = job.rng.choice(ids)
            store.db.replace_messages(one, store.db.get_messages_as_conversation(one)[2:])
            replaced.add(one)
        said = follow(follower, job.rng.randrange(1, STEPS + 1))
        job.demand(said in ("killed", "done"), f"a follower has {said}")
        if said == "killed":
            job.count("kills")
        else:
            replaced.clear()
        judge(job, store, ids, replaced, whole=said == "done")


def follow(follower: subprocess.Popen[str], last: int) -> str:
    """Run one child, which is killed at step *last*; return how it has ended."""
    assert follower.stdin is not None
    assert follower.stdout is not None
    follower.stdin.write(f"{last}\n")
    follower.stdin.flush()
    return follower.stdout.readline().strip()


def judge(
    job: Job, store: SessionStore, ids: list[str], replaced: set[str], *, whole: bool
) -> None:
    for one in ids:
        stored = [row["content"] for row in store.db.get_messages(one)]
        written = whole_lines(job, store.get_transcript_path(one))
        # A session that was replaced since has lines of rows that are gone.
        if one not in replaced:
            job.demand(written == stored[: len(written)], f"{one}: the file is no prefix")
        if whole:
            job.demand(written == stored, f"{one}: the file differs from its rows")
        loaded = [message["content"] for message in store.load_transcript(one)]
        job.demand(loaded == stored, f"{one}: what is loaded differs from its rows")


def whole_lines(job: Job, path: Path) -> list[str]:
    """Return the contents of the lines of a file that are not torn."""
    found: list[str] = []
    if not path.exists():
        return found
    for line in path.read_bytes().splitlines(keepends=True):
        if not line.endswith(b"\n"):
            continue
        try:
            message = json.loads(line)
        except ValueError:
            job.violation(f"{path.name}: no prefix: a line is not JSON: {line[:40]!r}")
            continue
        if message["role"] != "session_meta":
            found.append(message["content"])
    return found


if __name__ == "__main__":
    sys.exit(run(main, "kills", short=12, usual=500))
