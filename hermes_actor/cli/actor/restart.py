"""``hermes-actor restart``: stop the actor and start it again."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import click

from hermes_actor import limits
from hermes_actor.cli.actor.stop import describe_end
from hermes_actor.cli.options import db_option, json_option, timeout_option
from hermes_actor.cli.output.console import now_serving, print_result, waiting
from hermes_actor.cli.output.errors import fail
from hermes_actor.cli.store import creatable_paths
from hermes_actor.client.connect import ensure_actor_running
from hermes_actor.client.control import ask_status, running_actor, stop_actor
from hermes_actor.errors import DeadlineExceeded, NotRunning
from hermes_actor.paths import StorePaths
from hermes_actor.system.processes import ProcessEnd
from hermes_protocol.features import PLAIN
from hermes_protocol.status import Status

__all__ = ["restart"]


@click.command()
@db_option
@timeout_option
@json_option
def restart(db: Path | None, timeout: float, as_json: bool) -> None:
    """Stop the actor and start it again.

    Use it to apply new settings. Clients notice a pause and nothing else: they reconnect and resend
    what was not answered. A service is restarted by its service manager. If no actor is running,
    one is started. To switch to new code without a pause, use "hermes-actor handoff".

    Exit codes: 0 the new actor is serving, 1 it is not, or the old one did not stop in time.

    \b
    Example:
      hermes-actor restart
    """
    paths = creatable_paths(db, PLAIN)
    old = None
    with contextlib.suppress(NotRunning):
        old = running_actor(paths, timeout)
    pids: list[int] = []
    with waiting(lambda: describe_end(paths, pids)):
        managed = old is not None and _restart_service(paths, old, timeout)
        if old is not None and not managed:
            try:
                stop_actor(paths, timeout, on_pid=pids.append)
            except DeadlineExceeded as error:
                fail(f"{error}; no new actor was started")
    with waiting(lambda: f"the new actor of {paths.db} is starting"):
        status = _when_it_serves(paths, time.monotonic() + limits.SPAWN_SECONDS)
    if status is None:
        fail(f"no actor serves {paths.db}; see: hermes-actor logs")
    before = "started" if old is None else f"restarted, stopped pid {old}"
    print_result(
        {"ended": old, "pid": status.pid, "build": status.build, "phase": status.phase_text},
        f"{before}: {now_serving(paths, status.pid, status.build)}",
        as_json,
    )


def _when_it_serves(paths: StorePaths, deadline: float) -> Status | None:
    """Return the status of an actor that has opened the file, or any status at *deadline*."""
    try:
        ensure_actor_running(paths, deadline)
    except TimeoutError as error:
        fail(f"no actor serves {paths.db} yet: {error}")
    # A client may have started it a moment ago.
    while (status := ask_status(paths)) is not None and status.epoch == 0:
        if time.monotonic() > deadline:
            break
        time.sleep(limits.RECONNECT_MAX_SECONDS)
    return status


def _restart_service(paths: StorePaths, pid: int, timeout: float) -> bool:
    """Restart the service if *pid* belongs to it; return False if it does not."""
    from hermes_actor.cli.actor.service import manager_of, run_commands

    manager = manager_of(paths)
    if not next(iter(manager.files)).exists() or manager.unavailable_reason() is not None:
        return False
    if manager.report()["pid"] != pid:
        return False
    with ProcessEnd(pid) as end:
        run_commands(manager.restart())
        end.wait(timeout)
    return True
