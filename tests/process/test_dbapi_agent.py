"""Stores of the released agent program on ``connect()``: a scripted use sees the same as before."""

import json
import subprocess
import sys

import pytest
from conformance.agent_programs import AGENT, environment
from conformance.stand_in import CONTROL, OURS


def run_use(module, home):
    home.mkdir()
    words = [sys.executable, "-P", "-m", "conformance.agent_programs", module, "use", str(home)]
    done = subprocess.run(words, env=environment(home), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.skipif(not AGENT.is_dir(), reason="the agent program is not installed")
def test_stores_of_the_agent_program_see_the_same(tmp_path):
    ours, control = run_use(OURS, tmp_path / "ours"), run_use(CONTROL, tmp_path / "control")
    assert len(control) > 30
    for got, expected in zip(ours, control, strict=True):
        assert got == expected
