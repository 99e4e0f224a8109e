"""``hermes-actor service``: run the actor under the service manager of this user.

On Linux that is systemd, with a unit for the actor and one for its socket; on macOS launchd, with
an agent. If the manager is not available, the files are written all the same, and the commands that
remain to be run are shown.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shlex
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from hermes_actor import exit_codes, limits
from hermes_actor.cli.actor.service._manager import Command
from hermes_actor.cli.actor.service.launchd import Launchd
from hermes_actor.cli.actor.service.systemd import Systemd
from hermes_actor.cli.options import db_option, dry_run_option, json_option
from hermes_actor.cli.output.console import print_result
from hermes_actor.cli.output.errors import fail
from hermes_actor.cli.output.files import checked_output
from hermes_actor.cli.store import paths_for
from hermes_actor.client.control import ask_status, running_actor, stop_actor
from hermes_actor.client.spawn import start_lock
from hermes_actor.errors import BadValue, DeadlineExceeded, NotRunning, PermissionDenied
from hermes_actor.paths import StorePaths, check_not_hijacked

__all__ = ["manager_of", "run_commands", "service"]

Manager = Systemd | Launchd

_STARTED_SECONDS = 10.0
"""Wait for the actor to serve after an installation."""


@click.group()
def service() -> None:
    """Run the actor under systemd, or launchd on macOS."""


@service.command()
@db_option
@dry_run_option
def install(db: Path | None, dry_run: bool) -> None:
    """Install the service, and start it now and at every login.

    A running actor is drained, and the service takes its place. Running the command again is
    harmless and updates the unit. If the service manager is not available, the files are written
    and the commands to run are shown.

    Exit codes: 0 installed, 1 refused.

    \b
    Examples:
      hermes-actor service install
      hermes-actor service install --dry-run
    """
    paths = paths_for(db)
    manager = manager_of(paths)
    if dry_run:
        for path, text in manager.files.items():
            print(f"# {path}\n{text}")
        _show("then:", manager.start(changed=True))
        return
    _check_owner(paths)
    changed = [path for path, text in manager.files.items() if _write(path, text)]
    for path in manager.files:
        print(f"{'wrote' if path in changed else 'unchanged:'} {path}")
    reason = manager.unavailable_reason()
    if reason is not None:
        _show(f"{reason}; to start the service, run:", manager.start(changed=True))
        return
    ran = manager.report()["active"]
    # No client may start an actor between the exit of the old one and the start of the service.
    with start_lock(paths, time.monotonic() + limits.DEFAULT_TIMEOUT_SECONDS):
        _drain(paths, manager)
        run_commands(manager.start(changed=bool(changed)))
        _wait_until_served(paths, manager)
    if ran and changed:
        print("restart the service to apply the changes")


@service.command()
@db_option
@dry_run_option
def uninstall(db: Path | None, dry_run: bool) -> None:
    """Stop the service and remove its unit; the store is not touched.

    Clients that are still connected start an actor on demand with their next call.

    Exit codes: 0 removed, or there was none; 1 refused.

    \b
    Example:
      hermes-actor service uninstall
    """
    manager = manager_of(paths_for(db))
    present = [path for path in manager.files if path.exists()]
    reason = manager.unavailable_reason()
    if dry_run:
        _show("would run:", manager.stop() if present else [])
        for path in present:
            print(f"would remove {path}")
        return
    if not present:
        print(f"not installed: {next(iter(manager.files))} does not exist")
        return
    if reason is None:
        run_commands(manager.stop())
    for path in present:
        for entry in (path, *path.parent.glob(f"*.wants/{path.name}")):
            entry.unlink(missing_ok=True)
        print(f"removed {path}")
    left = manager.reload_after_removal(stopped=reason is None)
    if reason is None:
        run_commands(left)
    else:
        _show(f"{reason}; if the service still runs, run:", left)


@service.command()
@db_option
@json_option
def status(db: Path | None, as_json: bool) -> int:
    """Show whether the service is installed, and its state.

    It asks the service manager, not the actor, so it never starts one.

    Exit codes: 0 the service is active, 1 its manager is not available, 3 not installed or not
    active.

    \b
    Example:
      hermes-actor service status
    """
    manager = manager_of(paths_for(db))
    file = next(iter(manager.files))
    reason = manager.unavailable_reason()
    found: dict[str, Any] = {"installed": file.exists(), "file": str(file), "reason": reason}
    found |= {"state": None, "active": False, "pid": None, "status": None}
    if reason is None:
        found |= manager.report()
    lines = [f"{'installed' if found['installed'] else 'not installed'}: {file}"]
    lines.append(f"  unknown   {reason}" if reason else f"  state     {found['state']}")
    lines += [f"  {key:<9} {found[key]}" for key in ("pid", "status") if found[key]]
    print_result(found, "\n".join(lines), as_json)
    if reason is not None and found["installed"]:
        return exit_codes.REFUSED
    return exit_codes.OK if found["installed"] and found["active"] else exit_codes.NOT_RUNNING


def manager_of(paths: StorePaths) -> Manager:
    """Return the service manager of this system, set up for the store at *paths*.

    Raises :class:`BadValue` for a path that a unit file cannot hold.
    """
    if not str(paths.db).isprintable():
        raise BadValue(f"a service file cannot contain the path {str(paths.db)!r}")
    return Launchd(paths) if platform.system() == "Darwin" else Systemd(paths)


# --- the store -----------------------------------------------------------------------------------


def _check_owner(paths: StorePaths) -> None:
    """Refuse the store of another user: the service runs as this one."""
    paths.db.parent.mkdir(parents=True, exist_ok=True)
    check_not_hijacked(paths)
    owner = paths.db.parent.stat().st_uid
    if owner != os.getuid():
        raise PermissionDenied(
            f"{paths.db.parent} belongs to uid {owner}: only that user can install its service"
        )


def _drain(paths: StorePaths, manager: Manager) -> None:
    """Stop an actor that *manager* did not start."""
    with contextlib.suppress(NotRunning):
        pid = running_actor(paths)
        if pid != manager.report()["pid"]:
            print(f"stopping pid {pid}, which serves the store now")
            stop_actor(paths, limits.DEFAULT_TIMEOUT_SECONDS)


def _wait_until_served(paths: StorePaths, manager: Manager) -> None:
    give_up = time.monotonic() + _STARTED_SECONDS
    while time.monotonic() < give_up:
        # One that waits itself does not answer; its manager knows what for.
        with contextlib.suppress(DeadlineExceeded):
            status = ask_status(paths)
            if status is not None and status.is_serving:
                print(f"pid {status.pid} serves {paths.db}")
                return
        time.sleep(0.05)
    found = manager.report()
    print(f"the service is not serving yet: {found['status'] or found['state']}")


# --- files and commands --------------------------------------------------------------------------


def _write(path: Path, text: str) -> bool:
    """Write a file; return False if it has this text already."""
    with contextlib.suppress(OSError):
        if path.read_text() == text:
            return False
    path.parent.mkdir(parents=True, exist_ok=True)
    with checked_output(path, force=True).writing() as file:
        file.write(text.encode())
    return True


def run_commands(commands: Sequence[Command]) -> None:
    """Run *commands* in order; fail at the first that fails."""
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            fail(f"{shlex.join(command)}: {(done.stderr or done.stdout).strip()}")


def _show(heading: str, commands: Sequence[Command]) -> None:
    if commands:
        print(heading)
    for command in commands:
        print(f"  {shlex.join(command)}")
