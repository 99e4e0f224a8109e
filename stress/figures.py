"""Writes the tables of the verification programme into the documentation, from a whole run.

``make stress`` leaves ``.stress/result.json``; ``python stress/figures.py [FILE]`` writes what it
says between the marks of docs/figures.md and docs/design/verification.md. No figure there is
written by hand, and a run in which a job was not good is refused.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from run import JOBS, RESULT, good

ROOT = Path(__file__).resolve().parents[1]

BEGIN, END = "<!-- figures: stress -->", "<!-- /figures -->"

Reports = dict[str, dict[str, Any]]


def written(page: str, text: str) -> str:
    """*page* with *text* between its marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{BEGIN} or {END} is missing")
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"


def summary(result: dict[str, Any], by_job: Reports) -> str:
    """The short table of docs/figures.md: what happens, and how often it did in this run."""

    def done(*jobs: str) -> str:
        return f"{sum(by_job[job]['done'] for job in jobs):,}"

    def count(job: str, what: str) -> str:
        return f"{by_job[job]['counts'].get(what, 0):,}"

    rows = [
        ("the power goes at a write or sync of the engine, or of the unmodified actor",
         done("crash_replay", "fsync_policy", "strace_replay")),
        ("the power goes under a real ext4", done("power_cut_fs")),
        ("a call to the disk fails", done("io_errors")),
        ("`kill -9` of the actor under load", done("kill_loop")),
        ("a process ends at one of the named steps", done("failpoints")),
        ("hand-offs under load; of them with a kill of either side",
         f"{done('handoff_loop')}; {count('handoff_loop', 'kills')}"),
        ("changes acknowledged amid kills, drains, stops, failing syncs and jumping clocks",
         done("soak")),
        ("exceptions inside calls of clients", done("client_faults")),
        ("damages of a full-text index", done("index_damage")),
        ("`restore` and `repair --swap` beside writers; of them given up or with a kill",
         f"{done('restores')};"
         f" {count('restores', 'given up')} and {count('restores', 'disturbed')}"),
        ("simulated hours of whole programs with faults", count("model", "simulated hours")),
        ("hostile visits; mutated frames in process, over the socket",
         f"{done('hostile')}; {done('fuzz_frames')}; {done('fuzz_socket')}"),
        ("`kill -9` of PostgreSQL and MariaDB under load", done("providers")),
        ("commits in the window of SQLite's WAL-reset race; ways to lose locks and files",
         f"{count('wal_reset', 'commits in the window')}; {done('lock_loss')}"),
        ("checks against other users of the machine", done("security")),
        ("broken builds that are found",
         f"{done('selftest')} of {by_job['selftest']['goal']},"
         f" and {done('controls')} of {by_job['controls']['goal']}"),
    ]  # fmt: skip
    acknowledged = sum(
        number
        for report in by_job.values()
        for what, number in report["counts"].items()
        if what.startswith("acknowledged")
    )
    found = sum(report["violations"] for report in by_job.values())
    lines = ["| what happens | in one run |", "|---|---:|"]
    lines += [f"| {what} | {number} |" for what, number in rows]
    lines += [
        "",
        f"{_took(result)} {acknowledged:,} changes were acknowledged, {found} violations.",
    ]
    return "\n".join(lines)


def whole(result: dict[str, Any], by_job: Reports) -> str:
    """The table of docs/design/verification.md: every job."""
    lines = [f"{_took(result)}", ""]
    lines += ["| job | done | asked | what | also | seconds | violations |"]
    lines += ["|---|---:|---:|---|---|---:|---:|"]
    for job, report in sorted(by_job.items()):
        also = [f"{n:,} {what}" for what, n in report["counts"].items() if what != report["unit"]]
        if report["not_done"]:
            also.append(f"**not done: {report['not_done']}**")
        lines.append(
            f"| `{job}` | {report['done']:,} | {report['goal']:,} | {report['unit']} |"
            f" {', '.join(also)} | {report['seconds']:.0f} | {report['violations']} |"
        )
    return "\n".join(lines)


def _took(result: dict[str, Any]) -> str:
    versions = sorted({report["sqlite"] for report in result["reports"]})
    minutes = result["seconds"] / 60
    return (
        f"`make stress` took {minutes:.1f} minutes on {result['cores']} cores,"
        f" with SQLite {', '.join(versions)}."
    )


PAGES = {"docs/figures.md": summary, "docs/design/verification.md": whole}


def main() -> int:
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULT
    result = json.loads(file.read_text())
    by_job: Reports = {report["job"]: report for report in result["reports"]}
    bad = [job for job in JOBS if job not in by_job or not good(by_job[job])]
    if bad:
        print(f"nothing is written: {', '.join(sorted(bad))} did not end well", file=sys.stderr)
        return 1
    for name, text in PAGES.items():
        page = ROOT / name
        page.write_text(written(page.read_text(), text(result, by_job)))
        print(f"{name} is written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
