"""The frame of a job can fail, and what it leaves behind then is enough to run it again."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

STRESS = Path(__file__).parents[2] / "stress"

TOY = """
import sys
from harness.job import Job, run

def main(job: Job) -> None:
    while job.more():
        (job.folder / "history").write_text(str(job.rng.random()))
        if job.options.get("bad") and job.done == 3:
            job.violation("it was promised otherwise")
        if job.options.get("raise") and job.done == 3:
            raise RuntimeError("broken by hand")
        if job.options.get("cannot") and not job.done:
            job.cannot("there is no disk", goal=2)
        job.count("steps")
        job.count("half steps", job.done % 2)

sys.exit(run(main, "steps", short=5, usual=50, also={"half steps": 30}))
"""


@pytest.fixture
def toy(tmp_path):
    """Run a small job; its exit code, its last line, its other words."""
    script = tmp_path / "stress_toy.py"
    script.write_text(TOY)

    def run(*options):
        done = subprocess.run(
            [sys.executable, script, "--evidence", tmp_path / "kept", *options],
            env={**os.environ, "PYTHONPATH": str(STRESS)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.returncode, json.loads(done.stdout.splitlines()[-1]), done.stderr

    return run


def test_good_job_reaches_its_goal_and_leaves_nothing(toy, tmp_path):
    code, report, _ = toy("--seed", "7", "--short")
    assert code == 0
    assert (report["done"], report["goal"], report["reached"]) == (5, 5, True)
    assert (report["violations"], report["seed"], report["kept"]) == (0, 7, None)
    assert report["sqlite"]
    assert not (tmp_path / "kept").exists()


def test_usual_form_has_more_to_do_until_every_count_is_reached(toy):
    _, report, _ = toy("--seed", "7")
    assert (report["done"], report["counts"]["half steps"], report["reached"]) == (59, 30, True)


def test_goal_that_is_missed_for_want_of_another_count_is_reported(toy):
    code, report, _ = toy("--seed", "7", "--budget", "0")
    assert (report["reached"], report["also"]) == (False, {"half steps": 30})
    assert code == 0  # the budget has ended it


def test_what_the_machine_does_not_allow_is_in_the_report(toy):
    code, report, words = toy("--seed", "7", "--short", "--set", "cannot=1")
    assert code == 0
    assert (report["done"], report["goal"], report["not_done"]) == (2, 2, "there is no disk")
    assert "NOT DONE: there is no disk" in words


def test_budget_ends_the_long_form(toy):
    code, report, _ = toy("--long", "--budget", "0.2")
    assert code == 0
    assert report["goal"] is None
    assert report["done"] > 0


@pytest.mark.parametrize("how", ["bad", "raise"])
def test_violation_keeps_the_evidence_and_the_command(toy, how):
    code, report, words = toy("--seed", "7", "--short", "--set", f"{how}=1")
    assert code == 1
    assert report["violations"] == 1
    assert (Path(report["kept"]) / "history").read_text()
    again = shlex.split(report["replay"])
    assert again[2:] == ["--seed", "7", "--short", "--set", f"{how}=1"]
    assert report["replay"] in words
    assert report["replay"] in (Path(report["kept"]) / "violations.txt").read_text()


def test_same_seed_is_the_same_plan(toy):
    kept = [toy("--seed", "7", "--short", "--set", "bad=1")[1]["kept"] for _ in range(2)]
    first, second = ((Path(folder) / "history").read_text() for folder in kept)
    assert kept[0] != kept[1]
    assert first == second


def test_goal_that_is_missed_without_a_budget_is_reported(tmp_path):
    script = tmp_path / "stress_toy.py"
    script.write_text(TOY.replace("while job.more():", "if job.more():"))
    done = subprocess.run(
        [sys.executable, script, "--short"],
        env={**os.environ, "PYTHONPATH": str(STRESS)},
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 2
