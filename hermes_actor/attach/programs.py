"""Running programs of an environment: which there are, and how to start them again."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from hermes_actor.attach.environments import PROBE, Environment
from hermes_actor.paths import StorePaths
from hermes_actor.system.lock_inspection import lock_holder, processes_with_write_fd

__all__ = ["Program", "program", "programs_of", "restart_advice", "way_around", "writers_of"]


class Program(NamedTuple):
    """A process that runs the program, or has a database open for writing."""

    pid: int
    command: str
    unit: str | None = None
    """The systemd service that it belongs to."""
    is_user_unit: bool = False

    @property
    def text(self) -> str:
        """Return the process for people."""
        return f"pid {self.pid} ({self.unit or self.command})"


def programs_of(environment: Environment, home: Path) -> list[Program]:
    """Return the other processes of this user that *environment* runs for *home* or a part of it.

    One whose variables cannot be read counts.
    """
    prefix = f"{environment.prefix}{os.sep}"
    found = []
    for pid in _own_processes():
        words = _command(pid)
        # The words name the link in the environment; the executable is that of the system.
        if (
            any(word.startswith(prefix) for word in words[:2])
            and not _is_ours(words)
            and _home_of(pid, home).is_relative_to(home)
        ):
            found.append(_program(pid, words))
    return found


def writers_of(stores: Sequence[StorePaths]) -> list[Program]:
    """Return the processes that have one of *stores* open for writing beside its actor."""
    found: dict[int, Program] = {}
    for paths in stores:
        owner = lock_holder(paths)
        for pid in processes_with_write_fd(paths.db):
            if pid != owner and not _is_ours(words := _command(pid)):
                found[pid] = _program(pid, words)
    return list(found.values())


def program(pid: int) -> Program:
    """Return the process *pid*, for people."""
    return _program(pid, _command(pid))


def way_around(pid: int, prefix: Path | None) -> str:
    """Return why the process *pid* writes by itself; *prefix* is the attached environment."""
    words = _command(pid)
    variables = _variables(pid)
    if variables.get("HERMES_ACTOR_DISABLE", "").strip() not in ("", "0"):
        return "was started with HERMES_ACTOR_DISABLE"
    names = [Path(word).name for word in words[:3]]
    is_host = any(re.match(r"hermes(?!.actor)", name) for name in names)
    if prefix is not None and any(word.startswith(f"{prefix}{os.sep}") for word in words[:2]):
        if "-S" in words[1:4]:
            return "runs without site-packages (python -S), so it has no hook"
        return "belongs to the attached environment, but was started before it was attached"
    if is_host:
        return "is a hermes of another environment, which is not attached"
    return "is another program"


def restart_advice(programs: Sequence[Program]) -> str:
    """Return what starts *programs* again: commands to paste, where their services are known."""
    commands = dict.fromkeys(
        f"systemctl {'--user ' if one.is_user_unit else ''}restart {shlex.quote(one.unit)}"
        for one in programs
        if one.unit is not None
    )
    alone = [one.text for one in programs if one.unit is None]
    said = ["; ".join(commands)] if commands else []
    if alone:
        said.append(f"end and start again: {', '.join(alone)}")
    return "; ".join(said)


def _own_processes() -> list[int]:
    found = []
    with contextlib.suppress(OSError):
        for entry in os.scandir("/proc"):
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and entry.stat().st_uid == os.getuid():
                    found.append(int(entry.name))
    mine = {os.getpid(), os.getppid()}
    return sorted(pid for pid in found if pid not in mine)


def _command(pid: int) -> list[str]:
    try:
        data = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return []
    return [os.fsdecode(word) for word in data.split(b"\0") if word]


def _variables(pid: int) -> dict[str, str]:
    """Return the environment variables that the process was started with."""
    try:
        data = os.fsdecode(Path(f"/proc/{pid}/environ").read_bytes())
    except OSError:
        return {}
    return dict(one.split("=", 1) for one in data.split("\0") if "=" in one)


def _home_of(pid: int, default: Path) -> Path:
    variables = _variables(pid)
    if home := variables.get("HERMES_HOME", "").strip():
        return Path(home).resolve()
    return Path(variables["HOME"], ".hermes").resolve() if "HOME" in variables else default


def _is_ours(words: Sequence[str]) -> bool:
    """Return True for our commands and actors, and for the look that an `attach` has at Python."""
    names = ("hermes-actor", "hermes_actor")
    return words[1:3] == ["-c", PROBE] or any(Path(word).name in names for word in words[:4])


def _program(pid: int, words: Sequence[str]) -> Program:
    shown = [Path(word).name if position < 2 else word for position, word in enumerate(words)]
    unit, is_user = None, False
    with contextlib.suppress(OSError):
        group = Path(f"/proc/{pid}/cgroup").read_text()
        units = re.findall(r"/([^/\n]+\.service)", group)
        own = [one for one in units if not one.startswith("user@")]
        if own:
            unit, is_user = own[-1], "user@" in group
    return Program(pid, " ".join(shown[:4]) or "?", unit, is_user)
