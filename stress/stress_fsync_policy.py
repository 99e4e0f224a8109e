"""A process dies in a sync, or the disk refuses one; the next owner goes on; then the power goes.

The dangerous moment is not the failing sync but the start after it (R1, R2): the page cache shows
what the disk does not have. At every sync of a workload the process is killed, or the sync fails
and the kernel marks the pages clean. The next owner opens what the cache shows, clients send again
what has no answer, some of it is answered from receipts, and after every sync and every answer the
power is cut. Every third time the next owner is killed in a sync of its own opening, too.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from disks.bench import Bench, record
from disks.mutations import break_of, over
from disks.power_cuts import Image, cuts
from disks.recording import Promises, Recording, Sent
from disks.recording_vfs import Fault
from disks.scratch import scratch
from disks.verdict import Broken, Judge, lay_out
from disks.workloads import append, prepare, steady
from harness.job import Job, run

CLASSES = ("KILL", "EIO")
MOMENTS = frozenset({"ack", "sync", "refused"})


def before(bench: Bench) -> None:
    """What runs when the sync fails: commits, checkpoints, index slices."""
    bench.open()
    for turn in range(4):
        steady(bench, 2, seed=turn, longest=900)
        bench.checkpoint()
        bench.index()
    bench.close()


class Afterwards:
    """The next owner: clients send again what has no answer, and go on."""

    def __init__(self, again: list[Sent]) -> None:
        self._again = again

    def __call__(self, bench: Bench) -> None:
        bench.open()
        for sent in self._again:
            bench.send([sent])
        chance = random.Random(bench.seed)
        for number in range(6):
            bench.do(append("dan", f"after {number} {chance.random()}", session="ann"))
            if number == 3:
                bench.checkpoint()
        bench.close()


def main(job: Job) -> None:
    patch, turn = break_of(job.options), 0
    with scratch(job.folder) as folder:
        while job.more() and not over(job):
            seed = job.seed * 1000 + turn
            path = lay_out({}, folder / "recorded", "state.db")
            start = prepare("", path)
            syncs = record(path, before, seed=seed, patch=patch).counts["sync"]
            positions = [(cls, n) for n in range(1, syncs + 1) for cls in CLASSES]
            if job.form == "short":
                job.rng.shuffle(positions)
            for cls, position in positions:
                if not job.more() or over(job):
                    break
                _one(job, cls, position, seed, start, folder, patch)
            turn += 1


def _one(
    job: Job, cls: str, position: int, seed: int, start: Image, folder: Path, patch: object
) -> None:
    lay_out(start, folder / "recorded", "state.db")
    path = folder / "recorded" / "state.db"
    lives: list[Recording] = []
    faults: list[Fault | None] = [Fault("sync", position, cls)]
    if position % 3 == 0:
        faults.append(Fault("sync", 1 + position % 4, cls))
    events: list[tuple[object, ...]] = []
    for fault in [*faults, None]:
        again = Promises(events).advance(len(events)).unanswered
        workload = before if not lives else Afterwards(again)
        life = record(path, workload, seed=seed, fault=fault, patch=patch)  # type: ignore[arg-type]
        events += life.events
        lives.append(life)
    job.count("failed syncs", sum(event[0] == "refused" for event in events))
    _judge(job, f"{cls} at sync {position}", events, len(lives[0].events), seed, start, folder)


def _judge(
    job: Job,
    what: str,
    events: list[tuple[object, ...]],
    first: int,
    seed: int,
    start: Image,
    folder: Path,
) -> None:
    judge, promises = Judge(folder / "cut"), Promises(events)
    answered = len(promises.advance(first - 1).acks)
    for cut in cuts(events, start=start, torn=1, seed=seed, at=MOMENTS):
        if cut.position < first:
            continue
        job.count("cuts")
        try:
            judge.judge(cut.image, promises.advance(cut.position))
        except Broken as broken:
            job.violation(f"{what}, cut after event {cut.position}, {cut.mode}: {broken}")
            lay_out(cut.image, job.folder / f"cut-{len(job.violations)}", "state.db")
            return
    job.count("answers afterwards", len(promises.acks) - answered)


if __name__ == "__main__":
    sys.exit(run(main, "cuts", short=400, usual=10_000))
