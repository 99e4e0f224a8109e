"""Broken builds of the pages: a test that never fails proves nothing, so here each fails once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.web_faults import FAULTS

TESTS = Path(__file__).parent


@pytest.mark.controls
@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_build_is_found(fault):
    found_by = FAULTS[fault][1]
    tests = TESTS / (found_by if "/" in found_by else f"test_web_{found_by}")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "support.web_faults", "-x", "-q", "-p",
         "no:cacheprovider", "-m", "not slow", "--timeout", "150", str(tests)],
        env={**os.environ, "WEB_FAULT": fault, "PYTHONPATH": str(TESTS.parents[1] / "stress")},
        capture_output=True, text=True, timeout=550,
    )  # fmt: skip
    # 1: tests have failed. Anything else says that none was run, or that all have passed.
    assert done.returncode == 1, done.stdout[-2000:] + done.stderr[-2000:]
    assert "\nFAILED " in done.stdout
