"""Runs a job against a deliberately broken build: it must say what is wrong."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

from harness import ROOT
from harness.job import Job

__all__ = ["Fault", "find_all"]


class Fault(NamedTuple):
    """A deliberate fault of the product."""

    what: str
    job: str
    name: str
    finds: str
    """A pattern of what the job must say."""
    options: tuple[str, ...] = ()
    budget: float = 60.0


def find_all(job: Job, faults: Sequence[Fault]) -> None:
    """Each of *faults* once, in the long form again and again with other seeds."""
    turn = 0
    while job.more() and not job.violations:
        for fault in faults:
            if not job.more() or (job.form == "short" and job.violations):
                return
            if _find(job, fault, job.seed + turn):
                job.count(job.unit)
        turn += 1


def _find(job: Job, fault: Fault, seed: int) -> bool:
    """Run a job against a broken build; whether it says what is wrong."""
    words = [
        sys.executable, str(ROOT / "stress" / f"stress_{fault.job}.py"), "--seed", str(seed),
        "--budget", str(min(fault.budget, max(1.0, job.left))), "--set", f"break={fault.name}",
        "--set", "enough=1", "--evidence", str(job.folder / "evidence"),
    ]  # fmt: skip
    for option in fault.options:
        words += ["--set", option]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        report = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        job.violation(f"{fault.job} gives no report against {fault.name}")
        return False
    said = [text for text in report["examples"] if re.search(fault.finds, text)]
    if said:
        with (job.folder / "found.txt").open("a") as file:
            file.write(f"{fault.what}: {fault.job}: {said[0][:200]}\n")
        return True
    job.violation(
        f"{fault.what}: {fault.job} has not found it; done {report['done']} {report['unit']},"
        f" said {report['examples'][:2]}"
    )
    return False
