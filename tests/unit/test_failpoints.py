"""Failpoints: each name is one place in the code, inert until the environment names it."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import hermes_actor
from hermes_actor import failpoints

HIT = "from hermes_actor import failpoints\nfor _ in range(3): failpoints.hit('commit.after')\n"


def run(order, code=HIT):
    environment = {} if order is None else {"HERMES_ACTOR_FAILPOINT": order}
    words = [sys.executable, "-c", code + "print('alive')"]
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)


def test_each_name_is_one_place():
    files = Path(hermes_actor.__file__).parent.rglob("*.py")
    text = "".join(file.read_text() for file in files)
    places = re.findall(r"""(?:failpoint|failpoints\.hit)\("([a-z_.]+)"\)""", text)
    assert sorted(places) == sorted(failpoints.POINTS)


def test_they_are_inert():
    done = run(None)
    assert (done.returncode, done.stdout) == (0, "alive\n")


@pytest.mark.parametrize(
    ("order", "ends"),
    [
        ("commit.after", True),
        ("commit.after:3", True),
        ("commit.after:4", False),
        ("commit.before", False),
        ("commit.after:2:sleep=0", False),
    ],
)
def test_process_is_killed_at_the_place_and_time_that_was_named(order, ends):
    done = run(order)
    assert done.returncode == (-signal.SIGKILL if ends else 0)
    assert done.stdout == ("" if ends else "alive\n")


def test_name_that_there_is_not_is_refused():
    assert "names no failpoint: 'comit'" in run("comit").stderr
