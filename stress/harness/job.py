"""The frame of a job: options, a scratch folder, progress, the verdict, the evidence.

A job is a script ``stress/stress_NAME.py`` with one function ``main(job)`` and as its last line
``sys.exit(run(main, "unit", short=..., usual=...))``. The function works for as long as
:meth:`Job.more` says so, counts what it has done and reports every violation that it finds::

    def main(job: Job) -> None:
        while job.more():
            ...
            job.count("kills")

The first count is the *unit*: the goal is so many of it, and of other counts if *also* names some.
``--short`` is the form inside ``make test``, ``--long`` has no goal, ``--budget SECONDS`` ends any
form early. The last line on standard output is one JSON document. Whatever a violation needs to be
understood, the scratch folder with histories, database and WAL, is kept in a folder that is named
there, beside the command that runs the very same plan again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import shutil
import sqlite3
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["Job", "run"]

ROOT = Path(__file__).resolve().parents[2]

EVIDENCE = ROOT / ".stress"
"""Where the evidence of failures is kept, unless ``--evidence`` names another folder."""

_PROGRESS_SECONDS = 2.0

_SHOWN_VIOLATIONS = 20
"""On the way and in the JSON line; all of them are in the evidence."""


class Job:
    """One run of a job."""

    def __init__(
        self,
        name: str,
        unit: str,
        goal: float,
        *,
        seed: int,
        budget: float = float("inf"),
        form: str = "usual",
        also: dict[str, int] | None = None,
        options: dict[str, str] | None = None,
    ) -> None:
        self.name = name
        self.unit = unit
        self.goal = goal
        self.also = also or {}
        """Other counts that must be reached, and how many of each."""
        self.seed = seed
        self.form = form
        """``short``, ``usual`` or ``long``."""
        self.options = options or {}
        """What ``--set NAME=VALUE`` says: knobs of one job."""
        self.rng = random.Random(seed)
        self.folder = Path(tempfile.mkdtemp(prefix=f"hermes-stress-{name}-")).resolve()
        self.counts: dict[str, int] = {unit: 0}
        self.violations: list[str] = []
        self.not_done: str | None = None
        """What this machine does not allow, if anything: it is in the report and in the table."""
        self._began = time.monotonic()
        self._ends = self._began + budget
        self._reported = self._began

    # --- what a job asks ---------------------------------------------------------------------

    @property
    def long(self) -> bool:
        return self.form == "long"

    @property
    def kind(self) -> str:
        """The kind of files that it works on: ``--set kind=plain``, by default ``sessions``."""
        return self.options.get("kind", "sessions")

    @property
    def title(self) -> str:
        """Its name in the table, with the kind of files if that was chosen."""
        return f"{self.name}:{self.options['kind']}" if "kind" in self.options else self.name

    @property
    def done(self) -> int:
        return self.counts[self.unit]

    @property
    def reached(self) -> bool:
        """Whether everything that was asked for is done."""
        return self.done >= self.goal and all(
            self.counts.get(what, 0) >= number for what, number in self.also.items()
        )

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    @property
    def left(self) -> float:
        """Seconds of the budget that are left."""
        return self._ends - time.monotonic()

    def more(self) -> bool:
        """Whether to do another one: the goal is not reached, the budget not used up.

        A job goes on after a violation, unless there are so many that more would tell nothing:
        a hundred, or ``--set enough=NUMBER``.
        """
        self._progress()
        enough = int(self.options.get("enough", 100))
        return not self.reached and self.left > 0 and len(self.violations) < enough

    # --- what a job tells --------------------------------------------------------------------

    def count(self, what: str, number: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + number
        self._progress()

    def violation(self, what: str) -> None:
        """Something that was promised is not so. The evidence is kept at the end."""
        self.violations.append(what)
        if len(self.violations) <= _SHOWN_VIOLATIONS:
            print(f"{self.name}: VIOLATION {what[:300]}", file=sys.stderr, flush=True)

    def demand(self, fact: bool, what: str) -> None:
        """A violation unless *fact*."""
        if not fact:
            self.violation(what)

    def cannot(self, why: str, *, goal: float) -> None:
        """A part cannot be done on this machine. *goal* is what is left to be reached."""
        self.not_done, self.goal = why, goal
        print(f"{self.name}: NOT DONE: {why}", file=sys.stderr, flush=True)

    def _progress(self) -> None:
        now = time.monotonic()
        if now - self._reported < _PROGRESS_SECONDS:
            return
        self._reported = now
        goal = "" if self.goal == float("inf") else f" of {int(self.goal):,}"
        others = "".join(f", {n:,} {what}" for what, n in self.counts.items() if what != self.unit)
        print(
            f"{self.name}: {now - self._began:.0f} s, {self.done:,}{goal} {self.unit}{others},"
            f" {len(self.violations)} violations",
            file=sys.stderr,
            flush=True,
        )

    # --- the end -----------------------------------------------------------------------------

    def command(self) -> list[str]:
        """What runs the same plan again."""
        words = [sys.executable, f"stress/stress_{self.name}.py", "--seed", str(self.seed)]
        words += [] if self.form == "usual" else [f"--{self.form}"]
        for name, value in self.options.items():
            words += ["--set", f"{name}={value}"]
        if self.long:
            # The long form goes on until it is stopped; a replay need not go further than this.
            words += ["--budget", str(round(self.seconds + 10))]
        return words

    def report(self, kept: Path | None) -> dict[str, Any]:
        """The document of the last line."""
        return {
            "job": self.title,
            "unit": self.unit,
            "done": self.done,
            "goal": None if self.goal == float("inf") else int(self.goal),
            "also": self.also,
            "reached": self.reached or self.long,
            "counts": self.counts,
            "not_done": self.not_done,
            "violations": len(self.violations),
            "examples": self.violations[:_SHOWN_VIOLATIONS],
            "seconds": round(self.seconds, 1),
            "seed": self.seed,
            "sqlite": sqlite3.sqlite_version,
            "kept": None if kept is None else str(kept),
            "replay": shlex.join(self.command()),
        }

    def keep(self, evidence: Path) -> Path:
        """Copy the scratch folder to where it stays."""
        kept = evidence / f"{self.name}-{self.seed}"
        number = 1
        while kept.exists():
            number += 1
            kept = evidence / f"{self.name}-{self.seed}-{number}"
        shutil.copytree(self.folder, kept, symlinks=True, ignore=_no_sockets)
        text = "\n".join(self.violations)
        (kept / "violations.txt").write_text(f"{shlex.join(self.command())}\n\n{text}\n")
        return kept


def _no_sockets(folder: str, names: list[str]) -> set[str]:
    paths = {name: Path(folder) / name for name in names}
    return {name for name, path in paths.items() if path.is_socket() or path.is_fifo()}


def run(
    main: Callable[[Job], None],
    unit: str,
    *,
    short: int,
    usual: int,
    also: dict[str, int] | None = None,
    arguments: list[str] | None = None,
    name: str | None = None,
) -> int:
    """Run a job as its command line says. The exit code: 0 good, 1 violations, 2 goal missed.

    A budget that ends a job before its goal is no fault of it; without one the goal must be
    reached.
    """
    name = name or Path(sys.argv[0]).stem.removeprefix("stress_")
    asked = _parser(name, unit, short, usual).parse_args(arguments)
    form = "long" if asked.long else "short" if asked.short else "usual"
    goal = {"short": float(short), "usual": float(usual), "long": float("inf")}[form]
    seed = asked.seed if asked.seed is not None else random.SystemRandom().randrange(10**6)
    # Whatever the tests that run us have set: jobs end their actors themselves.
    os.environ["HERMES_ACTOR_IDLE_EXIT"] = "20"
    if "break" in asked.set:
        # A deliberate fault of the selftest, for every process of the job.
        os.environ["HERMES_STRESS_BREAK"] = asked.set["break"]
    job = Job(
        name, unit, goal, seed=seed, budget=asked.budget, form=form, options=asked.set,
        also=also if form == "usual" else None,
    )  # fmt: skip
    try:
        main(job)
    except KeyboardInterrupt:
        print(f"{name}: ended by hand", file=sys.stderr)
    except Exception as error:
        traceback.print_exc()
        job.violation(f"the job itself has failed: {type(error).__name__}: {error}")
    kept = job.keep(asked.evidence) if job.violations else None
    shutil.rmtree(job.folder, ignore_errors=True)
    report = job.report(kept)
    if kept is not None:
        print(f"{name}: evidence in {kept}; again: {report['replay']}", file=sys.stderr)
    print(json.dumps(report), flush=True)
    if job.violations:
        return 1
    return 0 if report["reached"] or asked.budget != float("inf") else 2


def _parser(name: str, unit: str, short: int, usual: int) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"stress_{name}",
        description=f"{usual:,} {unit}; {short:,} in the short form; no end in the long one.",
    )
    parser.add_argument("--seed", type=int, help="the plan; drawn and told if it is not given")
    parser.add_argument(
        "--budget", type=float, default=float("inf"), metavar="SECONDS", help="end after this time"
    )
    forms = parser.add_mutually_exclusive_group()
    forms.add_argument("--long", action="store_true", help="go on until the budget is over")
    forms.add_argument("--short", action="store_true", help="the counts of make test")
    parser.add_argument(
        "--evidence", type=Path, default=EVIDENCE, help="where the evidence of a failure is kept"
    )
    parser.add_argument(
        "--set", type=_setting, action=_Settings, default={}, metavar="NAME=VALUE",
        help="a knob of this job",
    )  # fmt: skip
    return parser


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


class _Settings(argparse.Action):
    def __call__(self, _parser: Any, namespace: Any, values: Any, _option: Any = None) -> None:
        setattr(namespace, self.dest, {**getattr(namespace, self.dest), values[0]: values[1]})
