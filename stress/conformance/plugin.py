"""For pytest, ``-p conformance.plugin``: outcomes are written down, scratch files used again."""

from __future__ import annotations

import errno
import gc
import shutil
from typing import Any

import pytest

from conformance.outcomes import note
from conformance.stand_in import scratch_files

_ended: dict[str, tuple[str, str]] = {}

_TRIES = 100
"""Of removing a folder, each of which takes all files that are there."""

_rmtree: Any = shutil.rmtree


def _remove(path: Any, *words: Any, **more: Any) -> None:
    """Remove a folder in which an actor that has just started may still create its files."""
    for left in reversed(range(_TRIES)):
        try:
            _rmtree(path, *words, **more)
            return
        except OSError as error:
            if error.errno != errno.ENOTEMPTY or not left:
                raise


shutil.rmtree = _remove  # type: ignore[assignment]


def pytest_runtest_logstart(nodeid: str) -> None:
    """A test begins."""
    note(nodeid, "begun")


def pytest_runtest_logreport(report: Any) -> None:
    """A part of a test has ended; the worst part counts."""
    if report.failed:
        _ended[report.nodeid] = ("failed", str(report.longrepr))
    elif report.skipped:  # an expected failure is one on both sides
        _ended.setdefault(report.nodeid, ("skipped", ""))
    elif report.when == "call":
        _ended.setdefault(report.nodeid, ("passed", ""))


def pytest_runtest_logfinish(nodeid: str) -> None:
    """A test has ended."""
    note(nodeid, *_ended.pop(nodeid, ("skipped", "")))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Connections that the test has left are gone before the next one begins."""
    gc.collect()
    scratch_files().reclaim()
