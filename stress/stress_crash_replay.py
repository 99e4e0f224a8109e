"""The power goes at every write and every sync of the real engine (G1, G2, R1).

A recording file system of apsw runs the engine on small workloads in a process of their own. After
each event of the disk the power goes, with everything unsynced lost, kept, or torn by sector; the
next owner must find what was promised. Each round draws other texts and other tears.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from disks.bench import record
from disks.mutations import break_of, over
from disks.power_cuts import Cut, cuts
from disks.recording import Promises, Recording
from disks.scratch import scratch
from disks.verdict import Broken, Judge, lay_out
from disks.workloads import WITHOUT_WAL, WORKLOADS, prepare
from harness.job import Job, run

TORN = 3
"""Ways in which unsynced sectors are torn at each point."""

_MARGIN = 1.02
"""A share is drawn by chance, and must not fall short of the goal by a few."""


def main(job: Job) -> None:
    only = job.options.get("workload")
    names = [only] if only else list(WORKLOADS)
    patch, turn = break_of(job.options), 0
    with scratch(job.folder) as folder:
        while job.more() and not over(job):
            seed = job.seed * 1000 + turn
            recorded = {name: _record(name, seed, folder, patch) for name in names}
            points = sum(len(run.events) for _, run in recorded.values()) * (2 + TORN)
            # What is left of the goal is a share of every workload, never a part of them.
            share = min(1.0, (job.goal - job.done) / points * _MARGIN)
            for name in names:
                if over(job):
                    break
                _replay(job, name, *recorded[name], seed, share, folder)
            job.count("workloads", len(names))
            turn += 1


def _record(
    name: str, seed: int, folder: Path, patch: Callable[[], None]
) -> tuple[dict[str, bytes], Recording]:
    path = lay_out({}, folder / "recorded", "state.db")
    start = prepare(name, path)
    with_wal = name not in WITHOUT_WAL
    return start, record(path, WORKLOADS[name], seed=seed, with_wal=with_wal, patch=patch)


def _replay(
    job: Job,
    name: str,
    start: dict[str, bytes],
    recording: Recording,
    seed: int,
    share: float,
    folder: Path,
) -> None:
    judge, promises = Judge(folder / "cut"), Promises(recording.events)
    for cut in cuts(recording.events, start=start, torn=TORN, seed=seed):
        if share < 1.0 and job.rng.random() >= share:
            continue
        job.count("cuts")
        try:
            judge.judge(cut.image, promises.advance(cut.position))
        except Broken as broken:
            _keep(job, name, cut, recording, broken)
        if over(job):
            break
    job.count("states", judge.states)


def _keep(job: Job, name: str, cut: Cut, recording: Recording, broken: Broken) -> None:
    event = recording.events[cut.position]
    what = " ".join(str(part) for part in event[:3] if not isinstance(part, bytes | list))
    job.violation(f"{name}: cut after event {cut.position} ({what}), {cut.mode}: {broken}")
    lay_out(cut.image, job.folder / f"cut-{len(job.violations)}", "state.db")


if __name__ == "__main__":
    sys.exit(run(main, "cuts", short=1_500, usual=60_000))
