"""``hermes-actor stop``, ``restart`` and ``drain``: the life of an actor."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from hermes_actor import exit_codes, limits
from hermes_actor.cli.files import new_store_for, place_for
from hermes_actor.cli.output import db_option, json_option, print_error, print_result, waiting
from hermes_actor.client.connect import ensure_actor_running
from hermes_actor.client.control import ask_status
from hermes_actor.client.ending import running_actor, stop_actor
from hermes_actor.errors import DeadlineExceeded, NotRunning
from hermes_actor.paths import StorePaths
from hermes_actor.system.lock_inspection import lock_holder
from hermes_actor.system.processes import ProcessEnd

__all__ = ["drain", "restart", "stop"]

_timeout = click.option(
    "--timeout", type=click.FloatRange(min=0), metavar="SECONDS",
    default=limits.DEFAULT_TIMEOUT_SECONDS, show_default=True, help="How long to wait for its end.",
)  # fmt: skip


@click.command()
@db_option
@json_option
def drain(db: Path | None, as_json: bool) -> int:
    """End the running actor in good order, and wait until it has ended.

    Everything that was admitted is committed and answered. Clients that are still there start
    another actor with their next call.

    Exit codes: 0 it has ended, 1 it has not ended in time, 3 not running.

    \b
    Example:
      hermes-actor drain
    """
    return _end(place_for(db), limits.DEFAULT_TIMEOUT_SECONDS, force=False, as_json=as_json)


@click.command()
@db_option
@_timeout
@click.option("--force", is_flag=True, help="If it has not ended by then, kill it.")
@json_option
def stop(db: Path | None, timeout: float, force: bool, as_json: bool) -> int:
    """End the running actor and wait until its process is gone.

    It is asked to drain: everything that was admitted is committed and answered. One that does not
    answer gets SIGTERM. With --force one that has not ended in time gets SIGKILL; nothing that was
    acknowledged is lost by that, the next actor recovers the rest.

    Clients that are still there start another actor with their next call, and so does a service
    manager that holds the socket. To keep it from running, end the clients, or use
    "hermes-actor service uninstall".

    Exit codes: 0 it has ended, 1 it has not ended in time, 3 not running.

    \b
    Examples:
      hermes-actor stop
      hermes-actor stop --timeout 5 --force
    """
    return _end(place_for(db), timeout, force=force, as_json=as_json)


def _end(paths: StorePaths, timeout: float, *, force: bool, as_json: bool) -> int:
    pids: list[int] = []
    try:
        with waiting(lambda: _ending(paths, pids)):
            pid = stop_actor(paths, timeout, on_pid=pids.append)
    except NotRunning:
        print_result({"ended": False}, f"not running: no actor serves {paths.db}", as_json)
        return exit_codes.NOT_RUNNING
    except DeadlineExceeded:
        # Known by its answer, or, if it gave none, by its own note in the lock file.
        stuck = pids[0] if pids else lock_holder(paths)
        signals = [] if pids else [signal.SIGTERM]
        signals += [signal.SIGKILL] * force
        if stuck is None or not _end_by_signal(stuck, signals, timeout):
            if as_json:
                print_result({"ended": False, "pid": stuck}, "", as_json)
            again = "" if force else ", or end it with: hermes-actor stop --force"
            print_error(
                f"pid {stuck}, which owns {paths.db}, has not ended in {timeout:g} s;"
                f" see: hermes-actor logs{again}"
            )
            return exit_codes.REFUSED
        pid = stuck
    print_result({"ended": True, "pid": pid}, f"pid {pid} has ended", as_json)
    return exit_codes.OK


def _ending(paths: StorePaths, pids: list[int]) -> str:
    # One that drains takes no more questions.
    return f"pid {pids[0]}: draining" if pids else f"an answer of the actor of {paths.db}"


def _end_by_signal(pid: int, signals: Sequence[signal.Signals], timeout: float) -> bool:
    """Whether it has ended after all, of *signals* in their order."""
    with ProcessEnd(pid) as end:
        for number in signals:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
            if end.wait(limits.OWNED_SECONDS if number == signal.SIGKILL else timeout):
                return True
    return False


@click.command()
@db_option
@_timeout
@json_option
def restart(db: Path | None, timeout: float, as_json: bool) -> int:
    """End the running actor, start another one, and wait until it serves.

    Clients notice a pause and nothing else: they connect again and send again what has no answer.
    Use it to make new settings take effect. A service is restarted through its manager. Without a
    running actor one is started. To change to new code without a pause use "hermes-actor handoff".

    Exit codes: 0 the new one serves, 1 it does not, or the old one has not ended in time.

    \b
    Example:
      hermes-actor restart
    """
    paths = new_store_for(db)
    old = None
    with contextlib.suppress(NotRunning):
        old = running_actor(paths)
    pids: list[int] = []
    with waiting(lambda: _ending(paths, pids)):
        managed = old is not None and _restart_service(paths, old, timeout)
        if old is not None and not managed:
            try:
                stop_actor(paths, timeout, on_pid=pids.append)
            except DeadlineExceeded as error:
                print_error(f"{error}; nothing was started")
                return exit_codes.REFUSED
    with waiting(lambda: f"the new actor of {paths.db}"):
        found = _when_it_serves(paths, time.monotonic() + limits.SPAWN_SECONDS)
    if found is None:
        print_error(f"no actor serves {paths.db}; see: hermes-actor logs")
        return exit_codes.REFUSED
    before = f"pid {old} has ended; " if old is not None else ""
    print_result(
        {"ended": old, "pid": found["pid"], "build": found["build"], "phase": found["phase"]},
        f"{before}pid {found['pid']} serves {paths.db} with build {found['build']}",
        as_json,
    )
    return exit_codes.OK


def _when_it_serves(paths: StorePaths, deadline: float) -> dict[str, Any] | None:
    """The status of an actor that has opened the file; of one that has not, at *deadline*."""
    ensure_actor_running(paths, deadline)
    # Somebody else may have started it a moment ago.
    while (found := ask_status(paths)) is not None and found["epoch"] == 0:
        if time.monotonic() > deadline:
            break
        time.sleep(limits.RECONNECT_MAX_SECONDS)
    return found


def _restart_service(paths: StorePaths, pid: int, timeout: float) -> bool:
    """If *pid* is run by the service manager, have that restart it. False if it is not."""
    from hermes_actor.cli.service.managers import manager_of

    manager = manager_of(paths)
    if not next(iter(manager.files)).exists() or manager.reason_against() is not None:
        return False
    if manager.report()["pid"] != pid:
        return False
    with ProcessEnd(pid) as end:
        for command in manager.restart():
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                said = (done.stderr or done.stdout).strip()
                raise click.ClickException(f"{shlex.join(command)}: {said}")
        end.wait(timeout)
    return True
