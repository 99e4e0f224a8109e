"""Processes that the tests start hear the signals that end them, whatever the tests hear."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import signals
from support.signals import ENDS

FOLDERS = [Path(__file__).resolve().parents[1], Path(signals.__file__).resolve().parents[1]]
"""Of the tests, and of what they share with others."""

SHOW = """
import signal, sys
blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
numbers = map(int, sys.argv[1:])
print([n for n in numbers if n in blocked or signal.getsignal(n) is signal.SIG_IGN])
"""

STARTED = """
import signal, subprocess, sys
show, *words = sys.argv[1:]
numbers = list(map(int, words))
{inherited}
{begin}
subprocess.run([sys.executable, "-c", show, *words], check=True)
{after}
"""

INHERITED = {
    "ignored": "for number in numbers: signal.signal(number, signal.SIG_IGN)",
    "blocked": "signal.pthread_sigmask(signal.SIG_BLOCK, numbers)",
}


def unheard(inherited: str, begin: str, after: str = "") -> str:
    """Those of ``ENDS`` that a program does not hear which is started by such a process."""
    code = STARTED.format(inherited=INHERITED[inherited], begin=begin, after=after)
    words = [sys.executable, "-c", code, SHOW, *(str(int(number)) for number in ENDS)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, FOLDERS))}
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("inherited", INHERITED)
def test_what_the_tests_start_hears_signals_that_the_tests_do_not(inherited):
    """A test run under ``nohup`` has its processes end by SIGHUP all the same."""
    all_of_them = f"{[int(number) for number in ENDS]}\n"
    assert unheard(inherited, "") == all_of_them
    assert unheard(inherited, "import conftest") == "[]\n"


def test_the_tests_themselves_outlive_their_terminal_under_nohup():
    begin = "from support.signals import hear_signals; hear_signals()"
    after = "signal.raise_signal(signal.SIGHUP); print('goes on')"
    assert unheard("ignored", begin, after) == "[]\ngoes on\n"
