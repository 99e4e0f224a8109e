"""Whole programs of clients, operations, faults and time, in simulated time.

Hypothesis draws programs. They run against the product's two ends of the protocol, request tracker,
mailbox, engine loop and writer, with SQLite on real files, under a clock that jumps and a scheduler
that a seed decides. A program that breaks a rule of the history is made as small as it can be and
kept (``--set shrink=no`` keeps the first); ``--set program=FILE`` runs it again.
"""

from __future__ import annotations

import sys
from pathlib import Path

from disks.scratch import scratch
from harness.entry import keep_receipts
from harness.job import Job, run
from hypothesis import HealthCheck, Phase, given, seed, settings
from simulation.mutations import break_model
from simulation.programs import Program, programs
from simulation.world import Verdict, simulate

AT_ONCE = 20
"""Programs between two looks at the budget."""

HOUR = 3600.0

_PHASES = [Phase.generate, Phase.shrink]


def main(job: Job) -> None:
    keep_receipts()
    break_model(job.options.get("break"))
    with scratch(job.folder) as folder:
        if "program" in job.options:
            program = Program.from_json(Path(job.options["program"]).read_text())
            _tell(job, program, simulate(program, folder / "run"))
            job.goal, job.also = 1, {}
            job.count("programs")
            return
        turn = 0
        while job.more() and not job.violations:
            _some(job, job.seed * 1000 + turn, folder / "run")
            turn += 1


def _some(job: Job, number: int, folder: Path) -> None:
    """Draw and run some programs; the smallest one that fails is reported."""
    smallest: list[tuple[Program, Verdict]] = []
    seconds = 0.0

    @seed(number)
    @settings(
        max_examples=AT_ONCE,
        deadline=None,
        database=None,
        phases=[Phase.generate] if job.options.get("shrink") == "no" else _PHASES,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @given(programs())
    def one(program: Program) -> None:
        nonlocal seconds
        found = simulate(program, folder)
        if not smallest:
            job.count("programs")
            job.count("acknowledged", found.acknowledged)
            job.count("actors", found.lives)
            seconds += found.seconds
        if found.violations:
            smallest[:] = [(program, found)]
            raise AssertionError(found.violations[0])

    try:
        one()
    except Exception:
        if not smallest:
            raise
        program, verdict = smallest[0]
        _tell(job, program, verdict)
    job.count("simulated hours", int(seconds / HOUR))


def _tell(job: Job, program: Program, verdict: Verdict) -> None:
    for text in verdict.violations:
        job.violation(f"{text}; program: {program.to_json()}")
    if verdict.violations:
        (job.folder / "program.json").write_text(program.to_json())


if __name__ == "__main__":
    sys.exit(run(main, "programs", short=25, usual=300, also={"simulated hours": 1_000}))
