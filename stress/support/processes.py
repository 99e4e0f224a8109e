"""Runs a piece of Python in a process of its own and returns what it printed last, as JSON."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).parent.parent
"""The folder that a process needs on its path to import this package."""


def run_python(code: str, *args: Any, prefix: tuple[str, ...] = (), **env: str) -> Any:
    done = subprocess.run(
        [*prefix, sys.executable, "-c", textwrap.dedent(code), *map(str, args)],
        env={**os.environ, "PYTHONPATH": str(SCRIPTS), **env},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def own_mounts() -> tuple[str, ...]:
    """The command prefix that lets a child mount file systems that vanish with it, if any does."""
    prefix: tuple[str, ...] = ("unshare", "--mount")
    if os.getuid() != 0:
        prefix = ("unshare", "--user", "--map-root-user", "--mount")
    try:
        allowed = subprocess.run([*prefix, "true"], capture_output=True).returncode == 0
    except FileNotFoundError:
        return ()
    return prefix if allowed else ()
