"""The figures of the documentation come from one whole run, or not at all."""

import io
import json
import subprocess
import sys

import figures
import pytest
import run
from rich.console import Console


def report(job, **other):
    return {
        "job": job, "unit": "cuts", "done": 1234, "goal": 1000, "counts": {"cuts": 1234},
        "reached": True, "violations": 0, "not_done": None, "seconds": 7.0, "sqlite": "3.1",
        **other,
    }  # fmt: skip


@pytest.fixture
def result():
    return {"seconds": 600, "cores": 2, "reports": [report(job) for job in run.JOBS]}


def test_tables_are_made_of_what_was_done(result):
    by_job = {one["job"]: one for one in result["reports"]}
    by_job["model"]["counts"]["simulated hours"] = 4321
    by_job["soak"]["counts"]["acknowledged"] = 98_765
    by_job["providers"]["not_done"] = "not installed: mysql"
    short, whole = figures.summary(result, by_job), figures.whole(result, by_job)
    assert "| 3,702 |" in short, "three jobs cut the power"
    assert "| 4,321 |" in short
    assert "took 10.0 minutes on 2 cores, with SQLite 3.1. 98,765 changes" in short
    assert all(f"| `{job}` | 1,234 | 1,000 |" in whole for job in run.JOBS)
    assert "**not done: not installed: mysql**" in whole


def test_only_what_is_between_the_marks_is_written():
    page = f"before\n{figures.BEGIN}\nold\n{figures.END}\nafter <!-- /figures -->"
    assert figures.written(page, "new") == (
        f"before\n{figures.BEGIN}\n\nnew\n\n{figures.END}\nafter <!-- /figures -->"
    )
    with pytest.raises(ValueError, match="missing"):
        figures.written("no marks", "new")


@pytest.mark.parametrize("page", figures.PAGES)
def test_pages_have_the_marks(page):
    assert figures.written((figures.ROOT / page).read_text(), "new")


@pytest.mark.parametrize("wrong", [{"violations": 1}, {"reached": False}])
def test_a_run_that_did_not_end_well_is_refused(result, wrong, tmp_path):
    result["reports"][3].update(wrong)
    file = tmp_path / "result.json"
    file.write_text(json.dumps(result))
    pages = {page: (figures.ROOT / page).read_text() for page in figures.PAGES}
    done = subprocess.run(
        [sys.executable, figures.__file__, file], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert result["reports"][3]["job"] in done.stderr
    assert pages == {page: (figures.ROOT / page).read_text() for page in figures.PAGES}


def test_a_run_without_one_of_the_jobs_is_refused(result, tmp_path):
    missing = result["reports"].pop()
    file = tmp_path / "result.json"
    file.write_text(json.dumps(result))
    done = subprocess.run(
        [sys.executable, figures.__file__, file], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert missing["job"] in done.stderr


def test_part_that_was_not_done_is_in_the_table(result):
    result["reports"][0]["not_done"] = "only root can mount"
    result["reports"][0]["seed"] = 1
    shown = io.StringIO()
    Console(width=200, file=shown).print(run.table([result["reports"][0]], 1.0))
    assert "NOT DONE: only root can mount" in shown.getvalue()
