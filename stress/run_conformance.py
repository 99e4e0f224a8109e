"""Suites of others through ``hermes_actor.dbapi``, beside the same suites on ``sqlite3``.

``make conformance`` runs all of them, ``SUITE ...`` some. The exit code is 0 if every test that
passes on the standard module passes through us or is in ``conformance/differences.toml``, and every
test of that list fails. Without SUITE, programs of docs/how-to/sqlite3.md are run as well: those
that need the packages of this environment.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor

from conformance import page_programs
from conformance.stand_in import CONTROL, OURS
from conformance.suites import CPYTHON, NEWER, THIRD_PARTY, Suite, run
from conformance.verdict import Listed, Verdict, by_reason, judge, listed
from rich.console import Console
from rich.table import Table

SUITES = {suite.name: suite for suite in (CPYTHON, *NEWER, *THIRD_PARTY)}


def known(suite: Suite) -> dict[str, Listed]:
    """Return the list of *suite*: newer interpreters have that of 3.11, one for all of them, and
    one of their own."""
    if suite in NEWER:
        newer = {**listed(CPYTHON.name), **listed("cpython-newer")}
        return {**newer, **listed(suite.name)}
    return listed(suite.name)


def both_sides(suite: Suite) -> Verdict:
    with ThreadPoolExecutor(2) as sides:
        control = sides.submit(run, suite, CONTROL)
        ours = sides.submit(run, suite, OURS)
    passed = {test for test, end in control.result().items() if end.outcome == "passed"}
    reasons = by_reason(suite.name, ours.result())
    expected = {test: reason for test, reason in reasons.items() if test in passed} | known(suite)
    return judge(suite.name, ours.result(), control.result(), expected)


def table(verdicts: list[Verdict]) -> Table:
    shown = Table(title="suites through hermes_actor.dbapi", title_justify="left")
    shown.add_column("suite")
    for column in ("tests", "pass on sqlite3", "applicable", "pass through us", "share", "faults"):
        shown.add_column(column, justify="right")
    for verdict in verdicts:
        shown.add_row(
            verdict.suite, str(verdict.tests), str(verdict.control), str(verdict.applicable),
            str(verdict.ours), f"{verdict.share:.1%}", str(len(verdict.faults)),
            style="bold red" if verdict.faults else "",
        )  # fmt: skip
    return shown


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"of {', '.join(SUITES)}")
    asked = parser.parse_args()
    unknown = set(asked.suites) - set(SUITES)
    if unknown:
        parser.error(f"no such suite: {', '.join(sorted(unknown))}; there are {', '.join(SUITES)}")
    console = Console(width=None if sys.stdout.isatty() else 160)
    verdicts = []
    for name in asked.suites or SUITES:
        console.print(f"{name}: on sqlite3, and through hermes_actor.dbapi", markup=False)
        verdicts.append(both_sides(SUITES[name]))
        for fault in verdicts[-1].faults:
            console.print(f"{name}: {fault}", style="red", markup=False)
    console.print(table(verdicts))
    wrong = [] if asked.suites else list(page_programs.faults())
    for fault in wrong:
        console.print(fault, style="red", markup=False)
    if not asked.suites:
        programs = len(page_programs.programs())
        console.print(f"programs of the how-to: {programs}, faults: {len(wrong)}", markup=False)
    return 1 if wrong or any(verdict.faults for verdict in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
