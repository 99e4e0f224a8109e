"""The page about adopting works as it is written, from a home with a session to done and back."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from hermes_actor.attach.releases import TESTED_RELEASES

pytestmark = [pytest.mark.timeout(1200), pytest.mark.slow]

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "adopt.md").read_text("utf-8")
NEEDS_A_SERVICE = "hermes gateway restart"
NEEDS_A_NETWORK = "hermes-actor update -- hermes update"


def test_commands_of_the_page_do_what_it_says(newest):
    newest.hermes("chat", "-Q", "-q", "Before")
    commands = [line for body in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
                for line in body.splitlines()]  # fmt: skip
    told = []
    for command in commands:
        if command == NEEDS_A_SERVICE:
            continue
        if command == NEEDS_A_NETWORK:
            command = "hermes-actor update -- hermes version"
        if command.startswith("pip uninstall"):
            command += " --yes --quiet"
        path = f"{newest.prefix / 'bin'}:{newest.variables['PATH']}"
        done = newest.run(*shlex.split(command), code=None, PATH=path)
        told.append((command, done.returncode, done.stdout))
    codes = {(command, code) for command, code, _ in told}
    assert ("hermes-actor attach --check", 1) in codes  # not attached yet
    assert [code for command, code, _ in told if command == "hermes-actor doctor"] == [1, 0]
    assert {command for command, code in codes if code} == {
        "hermes-actor attach --check", "hermes-actor doctor",
    }  # fmt: skip
    shown = re.search(r"```text\n(attached: .*?)```", PAGE, re.DOTALL)[1]
    (said,) = [text for command, _, text in told if command == "hermes-actor attach"]
    shown = shown.replace("/home/ann/hermes/venv", str(newest.prefix))
    assert said == shown.replace("/home/ann/.hermes", str(newest.home))
    assert newest.hermes("sessions", "list").count("Before") == 1


def test_what_to_install_is_said_as_the_page_shows(newest):
    newest.run("python", "-m", "pip", "uninstall", "--quiet", "--yes", "hermes-actor")
    done = subprocess.run(
        [sys.executable, "-m", "hermes_actor", "attach", "--check", "--python", str(newest.python)],
        env=newest.variables, cwd="/", capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    _, shown = re.search(r"^(not attached: .*)\n(to attach it, .*)$", PAGE, re.MULTILINE).groups()
    shown = shown.replace("/home/ann/hermes/venv", str(newest.prefix))
    assert done.stdout.splitlines()[1] == shown.replace("/home/ann/hermes-actor", str(ROOT))


def test_releases_are_named_alike():
    """README, page, doctor and Makefile."""
    named = re.search(r"\*\*Tested releases:\*\* (.*?)\n\n", PAGE, re.DOTALL)[1]
    assert sorted(re.findall(r"0\.\d+\.\d", named)) == list(TESTED_RELEASES)
    readme = (ROOT / "README.md").read_text("utf-8")
    assert f"hermes-agent {TESTED_RELEASES[0]} to {TESTED_RELEASES[-1]}" in readme
    makefile = (ROOT / "Makefile").read_text("utf-8")
    whole = re.search(r"^HOSTS\s*:= (.*)$", makefile, re.MULTILINE)[1].split()
    between = re.search(r"^BETWEEN\s*:= (.*)$", makefile, re.MULTILINE)[1].split()
    assert sorted([*whole, *between]) == list(TESTED_RELEASES)
