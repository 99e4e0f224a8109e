"""Common part of the service managers."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from hermes_actor.paths import StorePaths, resolve_paths

__all__ = ["Command", "Manager", "output_of", "unavailable", "unit_name"]


Command = Sequence[str]


class Manager(Protocol):
    """A service manager, and what it must know of one store."""

    name: str
    files: dict[Path, str]

    def unavailable_reason(self) -> str | None:
        """Why it cannot be asked, if it cannot."""
        ...

    def start(self, *, changed: bool) -> list[Command]:
        """What makes it run the service, now and after every login."""
        ...

    def stop(self) -> list[Command]:
        """What makes it end the service for good, before its files go."""
        ...

    def restart(self) -> list[Command]:
        """What makes it end the running service and start it again."""
        ...

    def reload_after_removal(self, *, stopped: bool) -> list[Command]:
        """What makes it notice that the files have gone; it may not have been stopped before."""
        ...

    def report(self) -> dict[str, Any]:
        """``state``, ``active``, ``pid``, ``status`` of the service."""
        ...


def unit_name(paths: StorePaths) -> str:
    """``hermes-actor`` for the store in its usual place; others get a digest of their path."""
    if paths == resolve_paths(Path.home() / ".hermes" / "state.db"):
        return "hermes-actor"
    return f"hermes-actor-{hashlib.sha256(os.fsencode(paths.db)).hexdigest()[:8]}"


def unavailable(command: Command) -> str | None:
    """``None`` if *command* succeeds, else why not."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return f"{command[0]} is not here"
    said = (done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
    return f"{command[0]} cannot be used: {said[0]}" if done.returncode else None


def output_of(command: Command) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout
