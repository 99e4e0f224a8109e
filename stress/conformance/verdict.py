"""The comparison of both sides with the written list of differences."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from conformance.suites import Outcome

__all__ = ["Listed", "Verdict", "judge", "listed"]

FILE = Path(__file__).with_name("differences.toml")

GROUPS = ("not applicable", "difference")


class Listed(NamedTuple):
    """A test that is known not to pass, its group and the reason."""

    group: str
    why: str


class Verdict(NamedTuple):
    """One suite on both sides. *faults* are sentences; the run is good without any."""

    suite: str
    tests: int
    control: int
    """Passed by the standard module."""
    applicable: int
    """Of these: all but those of the group *not applicable*."""
    ours: int
    """Of these: passed by ``hermes_actor.dbapi``."""
    faults: list[str]

    @property
    def share(self) -> float:
        """The part of the applicable tests that pass."""
        return self.ours / self.applicable if self.applicable else 1.0


def listed(suite: str, file: Path = FILE) -> dict[str, Listed]:
    """Return the entries of the list for *suite*, by the name of the test.

    Raises ValueError for an entry without a reason or a group, or one that is there twice.
    """
    found: dict[str, Listed] = {}
    for entry in tomllib.loads(file.read_text()).get(suite, []):
        if entry["group"] not in GROUPS or not entry["why"].strip():
            raise ValueError(f"{suite}: group or reason is missing: {entry}")
        for test in entry["tests"]:
            if test in found:
                raise ValueError(f"{suite}: {test} is listed twice")
            found[test] = Listed(entry["group"], entry["why"])
    return found


def by_reason(suite: str, ended: Mapping[str, Outcome], file: Path = FILE) -> dict[str, Listed]:
    """Return the tests of *suite* that have failed for one of the reasons in the list, by what they
    have said. A suite that lists the tables of its files fails in too many places for names."""
    found: dict[str, Listed] = {}
    for entry in tomllib.loads(file.read_text()).get("reasons", []):
        if suite not in entry["suites"]:
            continue
        said = re.compile(entry["said"])
        for test, end in ended.items():
            if end.outcome == "failed" and said.search(end.text):
                found.setdefault(test, Listed(entry["group"], entry["why"]))
    return found


def judge(
    suite: str,
    ours: Mapping[str, Outcome],
    control: Mapping[str, Outcome],
    known: Mapping[str, Listed],
) -> Verdict:
    """Compare both sides of *suite*; *known* is its part of the list."""
    passed = {test for test, end in control.items() if end.outcome == "passed"}
    through = {test for test in passed if test in ours and ours[test].outcome == "passed"}
    applicable = {
        test for test in passed if test not in known or known[test].group != "not applicable"
    }
    faults = [f"{test} is in the list, and passes" for test in sorted(through & known.keys())]
    for test in sorted(passed - through - known.keys()):
        end = ours.get(test, Outcome("missing", ""))
        faults.append(f"{test} {end.outcome}: {_last_line(end.text)}")
    faults += [
        f"{test} is in the list, and fails without us, too"
        for test in sorted(known.keys() & control.keys() - passed)
    ]
    return Verdict(
        suite, len(control), len(passed), len(applicable), len(through & applicable), faults
    )


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:300] if lines else ""
