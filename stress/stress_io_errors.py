"""Every call to the disk fails, once and for good, with EIO and with ENOSPC (R2, G9).

The workload runs once for each position of open, read, write, sync, truncate and delete. Errors
must be typed and tell the truth about whether a change was executed; when the fault ends a writer
that has not stopped must serve again, and otherwise the next owner must; nothing that was
acknowledged may be lost.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

from disks.bench import Bench, record
from disks.mutations import break_of, over
from disks.plain_workload import plain_work
from disks.power_cuts import Image
from disks.recording import Promises, Recording
from disks.recording_vfs import KINDS, Fault
from disks.scratch import scratch
from disks.verdict import Broken, Judge, lay_out
from disks.workloads import append, create, prepare, steady
from harness.job import Job, run

from hermes_protocol.features import PLAIN, SESSIONS

NO_ROOM = ("open", "write", "sync", "truncate")
"""Calls that a full disk refuses."""


def work(bench: Bench) -> None:
    """A bit of everything; then the fault ends, and one more change is tried."""
    bench.open()
    steady(bench, 3, longest=900)
    bench.checkpoint()
    bench.do(append("ann", "after the checkpoint"))
    bench.index()
    bench.idle(5.0)
    bench.do(append("bob", "salt"), append("cyd", "pepper"))
    bench.end_of_fault()
    bench.do(create("eve"), append("eve", "when all is well again"))
    bench.close()


def first_opening(bench: Bench) -> None:
    """The same for a file that is just being made."""
    bench.open()
    bench.do(create("ann"), append("ann", "walrus"))
    bench.end_of_fault()
    bench.do(create("eve"), append("eve", "when all is well again"))
    bench.close()


WORK = {
    SESSIONS: ((work, "work"), (first_opening, "first commit")),
    PLAIN: ((plain_work, "plain"),),
}
"""Workloads, and the files that they begin with, by kind."""


def faults(counts: dict[str, int]) -> Iterator[Fault]:
    for kind in KINDS:
        for position in range(1, counts[kind] + 1):
            for error, sticky in itertools.product(("EIO", "ENOSPC"), (False, True)):
                if error == "EIO" or kind in NO_ROOM:
                    yield Fault(kind, position, error, sticky)


def main(job: Job) -> None:
    turn = 0
    with scratch(job.folder) as folder:
        while job.more() and not over(job):
            for workload, named in WORK[job.kind]:
                seed = job.seed * 1000 + turn
                path = lay_out({}, folder / "recorded", "state.db")
                start = prepare(named, path)
                counts = record(path, workload, seed=seed).counts
                chosen = list(faults(counts))
                if job.form == "short":
                    chosen = job.rng.sample(chosen, min(len(chosen), int(job.goal / 2)))
                for fault in chosen:
                    # The first turn is whole, whatever the goal: every position has its run.
                    if over(job) or (turn and not job.more()):
                        return
                    lay_out(start, folder / "recorded", "state.db")
                    _one(job, path, workload, seed, fault, start)
            turn += 1


def _one(job: Job, path: Path, workload: object, seed: int, fault: Fault, start: Image) -> None:
    what = f"{fault.kind} {fault.position} {fault.error}{' for good' if fault.sticky else ''}"
    try:
        done = record(path, workload, seed=seed, fault=fault, patch=break_of(job.options))  # type: ignore[arg-type]
        _judge(done, path)
    except (Broken, RuntimeError) as error:
        job.violation(f"{workload.__name__}, {what}: {error}")  # type: ignore[attr-defined]
        kept = job.folder / f"run-{len(job.violations)}"
        lay_out(start, kept / "before", "state.db")
    job.count("runs")


def _judge(done: Recording, path: Path) -> None:
    events = done.events
    promises = Promises(events).advance(len(events))
    for event in events:
        if event[0] == "failed" and not event[5]:
            raise Broken(f"an error without a type: {event[3]}")
    ended = [n for n, event in enumerate(events) if event[0] == "end of fault"]
    if ended and events[ended[0]][1]:
        later = [event for event in events[ended[0] :] if event[0] in ("failed", "ended")]
        if later:
            raise Broken(f"no way back: after the fault {later[0]}")
    Judge(path.parent).judge_files(path, promises)


if __name__ == "__main__":
    sys.exit(run(main, "runs", short=120, usual=2_500))
