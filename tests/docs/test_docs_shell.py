"""Every line of a shell block is typed, or has a reason why it is not.

The store has sessions and a running actor, questions are answered with yes, and programs of others,
such as pip and the agent, are stubs that succeed: what is tested is our side of the line.
"""

import contextlib
import json
import os
import pty
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from pages import DOCS, PAGES, ROOT, blocks, environment

from hermes_actor import SessionDB

ELSEWHERE = {
    "CONTRIBUTING.md": "targets of make: tests/docs/test_docs_facts.py",
    "docs/how-to/adopt.md": "followed by tests/attach/test_adopt_page.py",
    "docs/how-to/agents.md": "followed by tests/docs/test_docs_examples.py",
    "docs/how-to/gateway.md": "followed by tests/docs/test_docs_examples.py",
    "docs/how-to/inspect.md": "followed by tests/docs/test_docs_examples.py",
    "docs/how-to/python.md": "followed by tests/docs/test_docs_examples.py",
    "docs/how-to/service.md": "needs a service manager: tests/process/test_supervisors.py",
    "docs/how-to/web.md": "its calls of the API below, its pages in a browser: tests/web",
    "docs/tutorial.md": "followed by tests/docs/test_docs_examples.py",
}
"""Pages whose blocks another test runs."""

NOT_TYPED = {
    "hermes-actor demo": "takes a quarter of a minute: tests/process/test_demo.py",
    "hermes-actor demo --compare": "takes half a minute: tests/process/test_demo.py",
    "make ": "targets of make: tests/docs/test_docs_facts.py",
    "python3 -m venv new": "the environment is there, with the interpreter of this one",
    "hermes-actor restore ~/.hermes/": "the name of a file: tests/process/test_replaced_files.py",
}
"""Beginnings of lines, and why they are not typed."""

STUBS = ("hermes", "pip", "new/bin/pip", "jq")


def lines():
    """Every line of a shell block, without its comment."""
    for page in PAGES:
        name = str(page.relative_to(ROOT))
        if name in ELSEWHERE or name.startswith("docs/reference/commands/"):
            continue
        for number, block in enumerate(blocks(page, "sh")):
            for line in block.splitlines():
                typed = re.sub(r"(^| +)#.*", "", line).strip()
                if typed:
                    yield pytest.param(typed, id=f"{name} {number}: {typed}")


def reason(line):
    return next((why for begin, why in NOT_TYPED.items() if line.startswith(begin)), None)


@pytest.fixture
def shell(home):
    """A shell in a home with sessions and an actor; questions are answered with yes."""
    folder = home / "bin"
    folder.mkdir()
    (folder / "hermes-actor").symlink_to(Path(sys.executable).with_name("hermes-actor"))
    for name in STUBS:
        stub = home / name if "/" in name else folder / name
        stub.parent.mkdir(parents=True, exist_ok=True)
        stub.write_text("#!/bin/sh\n[ -t 0 ] || cat >/dev/null\n")
        stub.chmod(0o755)
    for name in ("new", "old"):
        python = home / name / "bin" / "python"
        python.parent.mkdir(parents=True, exist_ok=True)
        python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
        python.chmod(0o755)
    with contextlib.closing(SessionDB(home / "state.db")) as db:
        db.create_session("s1", "cli")
        db.append_message("s1", "user", "x")
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"

    def type_(line):
        keyboard, terminal = pty.openpty()
        try:
            os.write(keyboard, b"y\n" * 3)
            return subprocess.run(
                ["sh", "-c", line], stdin=terminal, capture_output=True, text=True, timeout=110,
                cwd=home, env={**environment(home), "PATH": path},
            )  # fmt: skip
        finally:
            os.close(keyboard)
            os.close(terminal)

    return type_


@pytest.mark.parametrize("line", [*lines()])
def test_line_of_a_page_works(shell, line):
    if reason(line):
        return
    # A line of a table of cron begins with the time.
    done = shell(re.sub(r"^(?:[\d*]+ ){5} *", "", line))
    assert done.returncode == 0, done.stdout + done.stderr


JQ = """
import json, sys
print(json.load(open(sys.argv[3]))[sys.argv[2][1:]])
"""
CURL = """
import sys, urllib.request
words, headers, data = iter(sys.argv[1:]), {}, None
for word in words:
    if word == "-H":
        name, _, value = next(words).partition(": ")
        headers[name] = value
    elif word == "-d":
        data = next(words).encode()
    else:
        print(urllib.request.urlopen(urllib.request.Request(word, data, headers)).read().decode())
"""


def test_calls_of_the_api_of_the_pages(shell, home):
    """As a script types them, one right behind the other."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name, code in (("jq", JQ), ("curl", CURL)):
        (home / "bin" / name).write_text(f"#!{sys.executable}\n{code}")
        (home / "bin" / name).chmod(0o755)
    with SessionDB(home / "state.db") as db:
        db.create_session("20260301_101010_aaaaaa", "cli")
        _, script = blocks(DOCS / "how-to/web.md", "sh")
        done = shell(f"set -e; {script.replace('8674', str(port))}\nkill $!; wait")
        assert done.returncode == 0, done.stderr
        stores, renamed = map(json.loads, done.stdout.splitlines())
        assert "state.db" in [one["name"] for one in stores]
        assert renamed["title"] == "Release notes"
        assert db.get_session_title("20260301_101010_aaaaaa") == "Release notes"


def test_every_reason_is_used():
    typed = [param.values[0] for param in lines()]
    assert [begin for begin in NOT_TYPED if not any(line.startswith(begin) for line in typed)] == []
    assert [page for page in ELSEWHERE if not (ROOT / page).is_file()] == []
    for why in (*ELSEWHERE.values(), *NOT_TYPED.values()):
        for named in re.findall(r"tests/[\w/.]+", why):
            assert (ROOT / named).exists(), named
