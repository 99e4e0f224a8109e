"""CPython's own tests of ``sqlite3``, in this process, under whatever stands in for the module.

Usage: ``python -m conformance.cpython_suite [MODULE ...]``. Each test is noted when it
begins and when it has ended: one that takes the process with it is known, too.
"""

from __future__ import annotations

import gc
import importlib.util
import signal
import sys
import unittest
from typing import Any

from conformance.outcomes import note
from conformance.stand_in import scratch_files

__all__ = ["missing"]

PACKAGE = "test.test_sqlite3"

MODULES = (
    "test_dbapi", "test_transactions", "test_factory", "test_types", "test_regression",
    "test_dump", "test_hooks", "test_userfunctions", "test_backup",
)  # fmt: skip
"""All but the tests of the command line, which is no part of the module."""

SECONDS_PER_TEST = 30.0
"""On a busy machine the slowest takes five: more is one that hangs."""


def missing() -> str | None:
    """Return why the tests cannot be run, if so: some distributions leave them out."""
    found = importlib.util.find_spec("test") and importlib.util.find_spec(PACKAGE)
    return None if found else "the interpreter comes without its own tests of sqlite3"


class _Outcomes(unittest.TestResult):
    """Notes how each test has ended."""

    _outcome = ("passed", "")

    def _note(self, test: unittest.TestCase, outcome: str, text: str = "") -> None:
        note(test.id().removeprefix(f"{PACKAGE}."), outcome, text)

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802
        super().startTest(test)
        self._outcome = ("passed", "")
        self._note(test, "begun")
        signal.setitimer(signal.ITIMER_REAL, SECONDS_PER_TEST)

    def stopTest(self, test: unittest.TestCase) -> None:  # noqa: N802
        signal.setitimer(signal.ITIMER_REAL, 0)
        super().stopTest(test)
        self._note(test, *self._outcome)
        gc.collect()  # a connection that a test forgets is closed before the next one
        scratch_files().reclaim()

    def addError(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        super().addError(test, err)
        self._outcome = ("failed", self.errors.pop()[1])
        if not test.id().startswith(PACKAGE):  # a class or a module could not be set up
            self._note(test, *self._outcome)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        super().addFailure(test, err)
        self._outcome = ("failed", self.failures.pop()[1])

    def addSubTest(  # noqa: N802
        self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any
    ) -> None:
        super().addSubTest(test, subtest, err)
        if err is not None:
            part = (self.failures or self.errors).pop()[1]
            self._outcome = ("failed", f"{subtest}\n{part}")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        super().addSkip(test, reason)
        self._outcome = ("skipped", reason)


def _too_long(*_: object) -> None:
    raise TimeoutError(f"the test has not ended after {SECONDS_PER_TEST:g} s")


def main() -> int:
    signal.signal(signal.SIGALRM, _too_long)
    if why := missing():
        sys.exit(why)
    names = sys.argv[1:] or MODULES
    # Unlike the loader of the package, this one finds each test once, where it is defined.
    suite = unittest.TestSuite(
        unittest.defaultTestLoader.loadTestsFromName(f"{PACKAGE}.{name}") for name in names
    )
    suite.run(_Outcomes())
    return 0


if __name__ == "__main__":
    sys.exit(main())
