"""Every line of a shell block is typed, or has a reason why it is not.

The store has sessions and a running actor, questions are answered with yes, and programs of others,
such as pip and the agent, are stubs that succeed: what is tested is our side of the line.
"""

import contextlib
import os
import pty
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from pages import PAGES, ROOT, blocks, environment

from hermes_actor import SessionDB

ELSEWHERE = {
    "CONTRIBUTING.md": "targets of make: tests/docs/test_docs_facts.py",
    "docs/how-to/adopt.md": "followed by tests/attach/test_adopt_page.py",
    "docs/how-to/agents.md": "followed by tests/docs/test_docs_examples.py",
    "docs/how-to/gateway.md": "followed by tests/docs/test_docs_examples.py",
    "docs/how-to/inspect.md": "followed by tests/docs/test_docs_examples.py",
    "docs/how-to/python.md": "followed by tests/docs/test_docs_examples.py",
    "docs/how-to/service.md": "needs a service manager: tests/process/test_supervisors.py",
    "docs/how-to/web.md": "needs a browser: tests/web",
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


def test_every_reason_is_used():
    typed = [param.values[0] for param in lines()]
    assert [begin for begin in NOT_TYPED if not any(line.startswith(begin) for line in typed)] == []
    assert [page for page in ELSEWHERE if not (ROOT / page).is_file()] == []
    for why in (*ELSEWHERE.values(), *NOT_TYPED.values()):
        for named in re.findall(r"tests/[\w/.]+", why):
            assert (ROOT / named).exists(), named
