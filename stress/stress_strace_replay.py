"""The power goes at every write and every sync of the unmodified actor under load.

The actor of the product runs under ``strace``, clients write to it, and from the log of its system
calls the files are made again as a disk may have held them at each moment. Nothing but the log is
believed: it tells what was asked of the actor, what it answered, and in which order that stands
between the writes and syncs of its files.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from disks.mutations import over
from disks.power_cuts import cuts
from disks.recording import Promises
from disks.scratch import scratch
from disks.syscall_log import CALLS, SystemCalls
from disks.verdict import Broken, Judge, lay_out
from harness.job import Job, run
from support.actors import wait_for
from support.wire import Wire, append, create, request

CLIENTS = 8
WRITES = {"short": 6, "usual": 40, "long": 40}
"""Of each client in one recording."""

INDEXING_SECONDS = 0.4
"""Quiet time in which the actor indexes, before it is drained."""


_BROKEN = """
import sys
sys.path.append({!r})
from disks.mutations import BREAKS
BREAKS[{!r}]()
from hermes_actor.__main__ import main
sys.exit(main())
"""


def main(job: Job) -> None:
    if shutil.which("strace") is None:
        raise RuntimeError("strace is not installed: apt-get install strace")
    turn = 0
    with scratch(job.folder) as folder:
        while job.more() and not over(job):
            seed = job.seed * 1000 + turn
            home = folder / f"home-{turn}"
            home.mkdir()
            calls = _record(job, home, seed)
            job.count("recordings")
            job.count("syncs", calls.syncs)
            _replay(job, calls.events, seed, folder)
            if job.violations:
                shutil.copy(home / "calls", job.folder / f"calls-{turn}")
            shutil.rmtree(home)
            turn += 1


@contextlib.contextmanager
def _traced(path: Path, log: Path, broken: str | None) -> Iterator[None]:
    words = ["strace", "-f", "-qq", "-y", "-xx", "-s", "1000000", "--seccomp-bpf"]
    words += ["-e", f"trace={CALLS}", "-e", "signal=none", "-o", str(log)]
    actor = ["-m", "hermes_actor"]
    if broken is not None:
        actor = ["-c", _BROKEN.format(str(Path(__file__).parent), broken)]
    words += [sys.executable, *actor, "serve", "--plain", "--db", str(path)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line.startswith("serving"):
            raise RuntimeError(f"the traced actor does not serve: {line!r}; may strace trace here?")
        yield
    finally:
        # The actor gets the signal, not the tracer: it drains, and its tracer ends with it.
        pid = wait_for(lambda: _child(process.pid))
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        process.wait(60)
        process.stdout.close()


def _child(pid: int) -> int:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(text[0]) if text else 0


def _record(job: Job, home: Path, seed: int) -> SystemCalls:
    path, log, writes = home / "state.db", home / "calls", WRITES[job.form]
    with _traced(path, log, job.options.get("break")):
        clients = [
            threading.Thread(target=_client, args=(path, f"c{n}", random.Random(seed + n), writes))
            for n in range(CLIENTS)
        ]
        for thread in clients:
            thread.start()
        for thread in clients:
            thread.join()
        threading.Event().wait(INDEXING_SECONDS)
    with log.open() as lines:
        return SystemCalls(path).feed(lines)


def _client(path: Path, name: str, chance: random.Random, writes: int) -> None:
    """Writes with up to four requests under way, or each time in a transaction of its own."""
    with Wire(path, name.encode().ljust(16, b"-")) as wire:
        wire.do(1, create(name))
        seq = 2
        while seq < writes + 2 and chance.random() < 0.7:
            _transaction(wire, seq, name, f"{name} {seq} " + "walrus " * chance.randrange(200))
            seq += 1
        while seq < writes + 2:
            window = range(seq, min(seq + chance.randrange(1, 5), writes + 2))
            texts = {n: f"{name} {n} " + "walrus " * chance.randrange(200) for n in window}
            wire.send(*(request(n, append(name, texts[n])) for n in window))
            for n in window:
                wire.answer(n)
            seq = window[-1] + 1


def _transaction(wire: Wire, seq: int, session: str, content: str) -> None:
    """Take the write lock, insert a message, and commit."""
    sql = "INSERT INTO messages (session_id, content, role, timestamp) VALUES (?, ?, 'user', 1.0)"
    run = {"op": "sql.run", "steps": [{"sql": sql, "parameters": [session, content]}]}
    wire.send({"t": "lease.open", "ask": -seq, "lease": seq, "patience": 60.0, "first": run})
    wire.answer(-seq)
    wire.send({"t": "lease.commit", "seq": seq, "lease": seq})
    answer = wire.answer(seq)
    assert answer["t"] == "ok", answer


def _replay(job: Job, events: list[tuple[object, ...]], seed: int, folder: Path) -> None:
    judge, promises = Judge(folder / "cut"), Promises(events)
    job.count("acknowledged", sum(event[0] == "ack" for event in events))
    for cut in cuts(events, torn=1, seed=seed, folder_syncs=True):
        job.count("cuts")
        try:
            judge.judge(cut.image, promises.advance(cut.position))
        except Broken as broken:
            job.violation(f"cut after event {cut.position}, {cut.mode}: {broken}")
            lay_out(cut.image, job.folder / f"cut-{len(job.violations)}", "state.db")
        if over(job) or job.done >= job.goal:
            break
    job.count("states", judge.states)


if __name__ == "__main__":
    sys.exit(run(main, "cuts", short=600, usual=6_000))
