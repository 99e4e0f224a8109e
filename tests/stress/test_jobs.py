"""The short form of every job of the verification programme, on each kind of files."""

import json
import subprocess

import pytest
from run import JOBS, ON_PLAIN_FILES, ON_SESSIONS_ALONE, SCRIPTS, command


def test_every_job_runs_on_plain_files_or_says_why_not():
    assert sorted([*ON_PLAIN_FILES, *ON_SESSIONS_ALONE]) == SCRIPTS


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("job", JOBS)
def test_short_form(job, tmp_path):
    words = [*command(job), "--seed", "1", "--short", "--evidence", tmp_path / "evidence"]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True)
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["violations"] == 0, report["examples"]
    assert report["reached"], report
    assert done.returncode == 0
