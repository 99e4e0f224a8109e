"""Common part of the service managers."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from hermes_actor.paths import StorePaths, resolve_paths

__all__ = ["Command", "output_of", "unavailable", "unit_name"]

Command = Sequence[str]


def unit_name(paths: StorePaths) -> str:
    """``hermes-actor`` for the store in its usual place; others get a digest of their path."""
    if paths == resolve_paths(Path.home() / ".hermes" / "state.db"):
        return "hermes-actor"
    return f"hermes-actor-{hashlib.sha256(os.fsencode(paths.db)).hexdigest()[:8]}"


def unavailable(command: Command) -> str | None:
    """Run *command*; return ``None`` if it succeeds, else the reason."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return f"{command[0]} is not installed"
    said = (done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
    return f"{command[0]} cannot be used: {said[0]}" if done.returncode else None


def output_of(command: Command) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout
