"""The service of a store under launchd: one agent."""

from __future__ import annotations

import os
import plistlib
import re
import sys
from pathlib import Path
from typing import Any

from hermes_actor.cli.actor.service._manager import Command, output_of, unavailable, unit_name
from hermes_actor.client.spawn_environment import interpreter_variables
from hermes_actor.paths import StorePaths

__all__ = ["Launchd"]


class Launchd:
    """The service manager, set up for one store; see :class:`Systemd` for what its methods do."""

    def __init__(self, paths: StorePaths) -> None:
        self.name = name = unit_name(paths)
        library = Path.home() / "Library"
        self._file = library / "LaunchAgents" / f"{name}.plist"
        self._domain = f"gui/{os.getuid()}"
        log = str(library / "Logs" / f"{name}.log")
        agent = {
            "Label": name,
            "ProgramArguments": [
                sys.executable, "-P", "-m", "hermes_actor", "serve", "--plain",
                "--db", str(paths.db),
            ],
            "EnvironmentVariables": interpreter_variables(),
            "RunAtLoad": True,
            # Not after a drain, nor when a successor has taken over; it is in a session of its own.
            "KeepAlive": {"SuccessfulExit": False},
            "AbandonProcessGroup": True,
            "ThrottleInterval": 10,
            "ExitTimeOut": 45,
            "Umask": 0o077,
            "StandardOutPath": log,
            "StandardErrorPath": log,
        }  # fmt: skip
        self.files = {self._file: plistlib.dumps(agent, sort_keys=False).decode()}

    def unavailable_reason(self) -> str | None:
        return unavailable(["launchctl", "print", self._domain])

    def start(self, *, changed: bool) -> list[Command]:
        load = ["launchctl", "bootstrap", self._domain, str(self._file)]
        if not self._is_loaded():
            return [load]
        return [*self.stop(), load] if changed else []

    def stop(self) -> list[Command]:
        # What is not loaded cannot be taken out.
        return [["launchctl", "bootout", f"{self._domain}/{self.name}"]] * self._is_loaded()

    def restart(self) -> list[Command]:
        return [["launchctl", "kickstart", "-k", f"{self._domain}/{self.name}"]]

    def reload_after_removal(self, *, stopped: bool) -> list[Command]:
        return [] if stopped else self.stop()

    def report(self) -> dict[str, Any]:
        text = output_of(["launchctl", "print", f"{self._domain}/{self.name}"])
        state, pid = (
            re.search(rf"^\s*{key} = (.*)$", text, re.MULTILINE) for key in ("state", "pid")
        )
        return {
            "state": state[1] if state else "not loaded",
            "active": pid is not None,
            "pid": int(pid[1]) if pid else None,
            "status": None,
        }

    def _is_loaded(self) -> bool:
        return unavailable(["launchctl", "print", f"{self._domain}/{self.name}"]) is None
