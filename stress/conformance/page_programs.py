"""Programs of docs/how-to/sqlite3.md whose packages are in the environment of the suites."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from conformance.suites import ENVIRONMENT, ROOT

__all__ = ["faults", "needs_packages", "programs"]

PAGE = ROOT / "docs/how-to/sqlite3.md"

_PROGRAM = re.compile(r"^```python\n(.*?)^```\n+```text\n(.*?)^```", re.DOTALL | re.MULTILINE)
_PACKAGES = re.compile(r"^(?:from|import) (?:langgraph|agents)\b", re.MULTILINE)
_SECONDS = 120.0


def needs_packages(program: str) -> bool:
    """Return True if *program* imports what the tests of `make test` do not have."""
    return _PACKAGES.search(program) is not None


def programs() -> list[tuple[str, str]]:
    """Return those programs, each with what the page says that it prints."""
    found = _PROGRAM.findall(PAGE.read_text())
    return [(program, promised) for program, promised in found if needs_packages(program)]


def faults() -> Iterator[str]:
    """Run each of them twice, and yield what differs from the page."""
    for number, (program, promised) in enumerate(programs(), 1):
        with tempfile.TemporaryDirectory(prefix="page-", ignore_cleanup_errors=True) as folder:
            environment = {**os.environ, "HERMES_HOME": folder, "HERMES_ACTOR_IDLE_EXIT": "2"}
            for _ in range(2):
                done = subprocess.run(
                    [ENVIRONMENT / "bin" / "python", "-c", program], env=environment,
                    cwd=Path(folder), capture_output=True, text=True, timeout=_SECONDS,
                )  # fmt: skip
                if done.stdout != promised:
                    yield f"program {number} of {PAGE.name}: {done.stdout}{done.stderr[-2000:]}"
