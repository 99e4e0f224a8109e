"""The model can fail: deliberate faults of the product are found, and what was found replays."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from simulation.mutations import BREAKS
from simulation.programs import Program
from simulation.world import simulate

JOB = Path(__file__).parents[2] / "stress" / "stress_model.py"


def run_model(evidence, *settings):
    words = [sys.executable, JOB, "--seed", "1", "--evidence", evidence, "--set", "shrink=no"]
    for setting in settings:
        words += ["--set", setting]
    done = subprocess.run(words, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("fault", BREAKS)
def test_deliberate_fault_is_found_and_its_program_replays(fault, tmp_path):
    found = run_model(tmp_path, f"break={fault}")
    assert found["violations"] > 0
    assert "the job itself" not in found["examples"][0]
    program = Path(found["kept"]) / "program.json"
    assert run_model(tmp_path, f"program={program}")["violations"] == 0
    assert run_model(tmp_path, f"program={program}", f"break={fault}")["violations"] > 0


PROGRAM = Program(
    seed=7,
    clients=[
        [["write", 4, 20, [0.0001, "kill", 1.0]], ["read"], ["search"], ["pause", 3600.0]],
        [["write", 2, 80], ["write", 3, 20, [0.01, "die at", "commit.after"]], ["read"]],
        [["pause", 0.5], ["write", 5, 1, [0.0, "cut", 0]], ["search"]],
    ],
    faults=[[0.3, "lock", 0.2], [0.05, "drain", 1.0], [0.3, "failed sync", 1.0], [2.0, "pin", 5.0]],
)


def test_one_program_is_one_run(tmp_path, monkeypatch):
    monkeypatch.setattr("hermes_actor.limits.RECEIPTS_PRUNED_AT_ONCE", 2**62)
    runs = [simulate(PROGRAM, tmp_path / str(n)) for n in range(3)]
    assert runs[0].violations == []
    assert runs[0].acknowledged >= 10
    assert runs[0].lives >= 4
    assert runs[0].seconds > 3600
    assert len({run.trace for run in runs}) == 1
    other = simulate(PROGRAM._replace(seed=8), tmp_path / "other")
    assert other.trace != runs[0].trace
