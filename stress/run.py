"""The verification programme as a whole: every job, some at a time, and one table at the end.

``make stress`` runs each job once with the counts of a release; ``make stress-long`` runs them
for ever, in turn and with new seeds. The exit code is 0 if every job has reached its goal and
found nothing. What the jobs have reported is in ``.stress/result.json`` afterwards, from which
``stress/figures.py`` writes the tables of the documentation.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent

RESULT = HERE.parent / ".stress" / "result.json"

SCRIPTS = sorted(file.stem.removeprefix("stress_") for file in HERE.glob("stress_*.py"))

ON_PLAIN_FILES = (
    "backlogs", "client_faults", "double_start", "failpoints", "forks", "fuzz_socket",
    "handoff_loop", "hostile", "io_errors", "kill_loop", "lock_loss", "long_readers",
    "quiet_clients", "restores", "soak", "stalls",
)  # fmt: skip
"""Jobs that run once more on plain files: their clients are programs with ``connect()``."""

ON_SESSIONS_ALONE = {
    "attached": "its programs are those of hermes-agent; kanban is about its plain files",
    "chats": "its program is the gateway of hermes-agent",
    "controls": "runs other jobs",
    "crash_replay": "has a workload on plain files",
    "endless_statements": "about leases of SessionDB; of programs: tests/process/test_lease_limits",
    "foreign": "a program keeps the file that it has opened, as with sqlite3: its reads are not"
    " judged when that is replaced",
    "fsync_policy": "the policy is below kinds; crash_replay and io_errors have plain files",
    "fuzz_frames": "about the messages of all kinds",
    "gateway": "about chats",
    "index_damage": "about full-text indexes",
    "kanban": "is about plain files",
    "large_rows": "about full-text indexes",
    "limits": "about the actor and its folder",
    "model": "simulates sessions",
    "power_cut_fs": "the file system does not know kinds; crash_replay cuts plain files",
    "providers": "about servers",
    "security": "about files and sockets of any kind",
    "selftest": "runs other jobs",
    "strace_replay": "the calls of the system are those of any kind; crash_replay cuts plain files",
    "transcripts": "about chats",
    "wal_reset": "about SQLite itself",
    "watchers": "about chats",
}
"""Jobs without such a form, and why."""

JOBS = sorted([*SCRIPTS, *(f"{job}:plain" for job in ON_PLAIN_FILES)])

LONGEST_FIRST = (
    "failpoints", "crash_replay", "controls", "kill_loop", "handoff_loop", "providers", "soak",
    "io_errors", "model", "security", "selftest", "fsync_policy", "foreign", "double_start",
    "restores", "backlogs", "index_damage", "large_rows", "client_faults", "endless_statements",
    "hostile", "fuzz_socket", "lock_loss", "stalls", "power_cut_fs", "strace_replay",
)  # fmt: skip
"""They decide how long the whole takes, so they do not begin last."""

CORES = len(os.sched_getaffinity(0))

END_SECONDS = 60.0
"""In which a job that is interrupted ends its processes and tells how far it is."""

LONG_TURN_SECONDS = 600.0
"""How long a job of ``make stress-long`` has the floor."""


def order(jobs: list[str]) -> list[str]:
    def rank(job: str) -> tuple[int, str]:
        return (LONGEST_FIRST.index(job) if job in LONGEST_FIRST else len(LONGEST_FIRST), job)

    return sorted(jobs, key=rank)


def command(job: str) -> list[str]:
    """Return what runs *job*, such as ``soak``, or ``soak:plain`` on plain files."""
    script, _, kind = job.partition(":")
    words = [sys.executable, str(HERE / f"stress_{script}.py")]
    return [*words, "--set", f"kind={kind}"] if kind else words


class Programme:
    """Jobs, as many at a time as there are lanes, and what they have reported."""

    def __init__(self, lanes: int, options: list[str]) -> None:
        self._lanes, self._options = lanes, options
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._threads: list[threading.Thread] = []
        self.reports: list[dict[str, Any]] = []
        self.ended = False

    def run(self, turns: list[tuple[str, int]]) -> None:
        """Run (job, seed) after (job, seed)."""
        waiting = list(reversed(turns))

        def lane() -> None:
            while not self.ended:
                with self._lock:
                    if not waiting:
                        return
                    job, seed = waiting.pop()
                self._run_one(job, seed)

        self._threads = [threading.Thread(target=lane, daemon=True) for _ in range(self._lanes)]
        for thread in self._threads:
            thread.start()
        for thread in self._threads:
            thread.join()

    def _run_one(self, job: str, seed: int) -> None:
        words = [*command(job), "--seed", str(seed)]
        # In a session of its own: Ctrl-C reaches it once, through us, and not in its cleaning up.
        process = subprocess.Popen(
            [*words, *self._options], stdout=subprocess.PIPE, text=True, cwd=HERE.parent,
            start_new_session=True,
        )  # fmt: skip
        self._running.add(process)
        out, _ = process.communicate()
        self._running.discard(process)
        try:
            report = json.loads(out.splitlines()[-1])
        except (IndexError, ValueError):
            report = {
                "job": job, "unit": "", "done": 0, "goal": None, "reached": False, "counts": {},
                "not_done": None, "violations": 1, "seconds": 0.0, "seed": seed,
                "examples": [f"it ended with {process.returncode} and no report"],
                "sqlite": "", "kept": None, "replay": " ".join(words),
            }  # fmt: skip
        self.reports.append(report)

    def end(self) -> None:
        """Have the jobs that run tell how far they are, and begin no other."""
        self.ended = True
        for process in list(self._running):
            process.send_signal(signal.SIGINT)
        give_up = time.monotonic() + END_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, give_up - time.monotonic()))


def prepare() -> None:
    """Compile what is started more than a thousand times, whatever the environment says of it."""
    for folder in ("hermes_actor", "protocol/hermes_protocol", "stress"):
        compileall.compile_dir(HERE.parent / folder, quiet=2)


def keep(reports: list[dict[str, Any]], seconds: float) -> None:
    """Write down what a whole run has reported."""
    RESULT.parent.mkdir(exist_ok=True)
    document = {"seconds": round(seconds), "cores": CORES, "reports": reports}
    RESULT.write_text(json.dumps(document, indent=1))


def good(report: dict[str, Any]) -> bool:
    return bool(report["reached"]) and not report["violations"]


def table(reports: list[dict[str, Any]], seconds: float) -> Table:
    shown = Table(title=f"verification programme, {seconds:.0f} s", title_justify="left")
    for column, justify in (
        ("job", "left"), ("done", "right"), ("goal", "right"), ("unit", "left"),
        ("also", "left"), ("seconds", "right"), ("seed", "right"), ("violations", "right"),
    ):  # fmt: skip
        shown.add_column(column, justify=justify)  # type: ignore[arg-type]
    for report in sorted(reports, key=lambda report: report["job"]):
        also = [f"{n:,} {what}" for what, n in report["counts"].items() if what != report["unit"]]
        style = "" if good(report) else "bold red"
        goal = "" if report["goal"] is None else f"{report['goal']:,}"
        if report["not_done"]:
            also.append(f"NOT DONE: {report['not_done']}")
            style = style or "yellow"
        shown.add_row(
            report["job"], f"{report['done']:,}", goal, report["unit"], ", ".join(also),
            f"{report['seconds']:.0f}", str(report["seed"]), str(report["violations"]),
            style=style,
        )  # fmt: skip
    return shown


def tell(console: Console, programme: Programme, seconds: float) -> int:
    reports = programme.reports
    console.print(table(reports, seconds))
    for report in reports:
        if not good(report):
            for text in report["examples"][:5]:
                console.print(f"{report['job']}: {text}", style="red", markup=False)
            console.print(f"  evidence: {report['kept']}", markup=False)
            console.print(f"  again: {report['replay']}", markup=False)
    found = sum(report["violations"] for report in reports)
    partly = sum(bool(report["not_done"]) for report in reports)
    versions = ", ".join(sorted({report["sqlite"] for report in reports} - {""}))
    console.print(
        f"{len(reports)} jobs, {sum(map(good, reports))} good, {found} violations;"
        + (f" {partly} only in part, see NOT DONE;" if partly else "")
        + f" SQLite {versions}"
    )
    return 0 if reports and all(map(good, reports)) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("jobs", nargs="*", metavar="JOB", help=f"of {', '.join(JOBS)}; default all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--lanes", type=int, default=2 * CORES, help="jobs at one time: two a core, as some wait"
    )
    parser.add_argument("--short", action="store_true", help="the counts of make test")
    parser.add_argument("--long", action="store_true", help="for ever, with new seeds; end: Ctrl-C")
    asked = parser.parse_args()
    unknown = set(asked.jobs) - set(JOBS)
    if unknown:
        parser.error(f"no such job: {', '.join(sorted(unknown))}; there are {', '.join(JOBS)}")
    jobs = order(asked.jobs or JOBS)
    options = ["--short"] if asked.short else []
    if asked.long:
        options = ["--long", "--budget", str(LONG_TURN_SECONDS)]
    prepare()
    programme, began = Programme(asked.lanes, options), time.monotonic()
    seeds = random.Random(asked.seed)
    try:
        programme.run([(job, asked.seed) for job in jobs])
        while asked.long and all(map(good, programme.reports)):
            programme.run([(job, seeds.randrange(10**6)) for job in jobs])
    except KeyboardInterrupt:
        programme.end()
    seconds = time.monotonic() - began
    if not (asked.short or asked.long or asked.jobs or programme.ended):
        keep(programme.reports, seconds)
    console = Console(width=None if sys.stdout.isatty() else 160)
    return tell(console, programme, seconds)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
