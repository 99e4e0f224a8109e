"""The stores of every known release answer a hundred calls as they do without us."""

import json
import subprocess
import sys

import pytest
from conformance.store_calls import environment, stores_of
from support.actors import end_actors

from hermes_actor.attach.releases import TESTED_RELEASES

pytestmark = pytest.mark.timeout(600)


def answers(way, version, home):
    home.mkdir()
    words = [sys.executable, "-P", "-m", "conformance.store_calls", way, str(home)]
    try:
        done = subprocess.run(
            words, env=environment(version, home), capture_output=True, text=True, timeout=300
        )
    finally:
        end_actors(home / "state.db")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("version", TESTED_RELEASES)
def test_a_hundred_calls_answer_as_on_plain_sqlite3(version, tmp_path):
    if not stores_of(version).is_dir():
        pytest.skip("the agent program is not installed")
    plain = answers("plain", version, tmp_path / "plain")
    ours = answers("attached", version, tmp_path / "ours")
    assert (plain["module"], ours["module"][:12]) == ("sqlite3", "hermes_actor")
    made = [name for name, answer in plain["seen"] if answer != "no such method"]
    assert len(made) >= 100
    for got, expected in zip(ours["seen"], plain["seen"], strict=True):
        assert got == expected
    assert ours["rows"] == plain["rows"]
