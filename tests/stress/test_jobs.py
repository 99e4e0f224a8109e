"""The short form of every job of the verification programme."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

STRESS = Path(__file__).parents[2] / "stress"

JOBS = sorted(file.stem.removeprefix("stress_") for file in STRESS.glob("stress_*.py"))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("job", JOBS)
def test_short_form(job, tmp_path):
    words = [sys.executable, STRESS / f"stress_{job}.py", "--seed", "1", "--short"]
    done = subprocess.run(
        [*words, "--evidence", tmp_path / "evidence"], stdout=subprocess.PIPE, text=True
    )
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["violations"] == 0, report["examples"]
    assert report["reached"], report
    assert done.returncode == 0
