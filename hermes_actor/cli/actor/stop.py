"""``hermes-actor stop``: stop the actor and wait until its process has exited."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import click

from hermes_actor import exit_codes, limits
from hermes_actor.cli.every_store import for_every_store
from hermes_actor.cli.options import db_option, json_option, timeout_option
from hermes_actor.cli.output.console import print_result, waiting
from hermes_actor.cli.output.errors import fail
from hermes_actor.cli.store import paths_for
from hermes_actor.client.control import stop_actor
from hermes_actor.errors import DeadlineExceeded, NotRunning
from hermes_actor.paths import StorePaths
from hermes_actor.system.lock_inspection import lock_holder
from hermes_actor.system.processes import ProcessEnd

__all__ = ["stop"]


@click.command()
@db_option
@timeout_option
@click.option("--force", is_flag=True, help="Kill the process if it has not exited by then.")
@json_option
@for_every_store()
def stop(db: Path | None, timeout: float, force: bool, as_json: bool) -> int:
    """Stop the actor and wait until its process has exited.

    The actor drains: every admitted request is committed and answered. If it does not answer, it
    gets SIGTERM; with --force, SIGKILL after the timeout. Nothing that was acknowledged is lost by
    that: the next actor recovers it.

    Clients that are still connected start a new actor with their next call, and so does a service
    manager that holds the socket. To keep it from running, stop the clients, or run
    "hermes-actor service uninstall".

    Exit codes: 0 stopped, 1 not stopped in time, 3 not running.

    \b
    Examples:
      hermes-actor stop
      hermes-actor stop --timeout 5 --force
      hermes-actor stop --all
    """
    return end_actor(paths_for(db), timeout, force=force, as_json=as_json)


def end_actor(paths: StorePaths, timeout: float, *, force: bool, as_json: bool) -> int:
    pids: list[int] = []
    deadline = time.monotonic() + timeout
    try:
        with waiting(lambda: describe_end(paths, pids)):
            pid = stop_actor(paths, timeout, on_pid=pids.append)
    except NotRunning:
        print_result({"ended": False}, f"not running: no actor serves {paths.db}", as_json)
        return exit_codes.NOT_RUNNING
    except DeadlineExceeded:
        # Known by its answer, or, if it gave none, by its own note in the lock file.
        stuck = pids[0] if pids else lock_holder(paths)
        signals = [] if pids else [signal.SIGTERM]
        signals += [signal.SIGKILL] * force
        if stuck is None or not _end_by_signal(stuck, signals, deadline):
            if as_json:
                print_result({"ended": False, "pid": stuck}, "", as_json)
            again = "" if force else ", or kill it: hermes-actor stop --force"
            fail(
                f"the actor of {paths.db} (pid {stuck or 'unknown'}) did not stop within"
                f" {timeout:g} s; see: hermes-actor logs{again}"
            )
        pid = stuck
    print_result({"ended": True, "pid": pid}, f"stopped the actor (pid {pid})", as_json)
    return exit_codes.OK


def describe_end(paths: StorePaths, pids: list[int]) -> str:
    # One that drains takes no more questions.
    return f"pid {pids[0]} is draining" if pids else f"the actor of {paths.db} does not answer yet"


def _end_by_signal(pid: int, signals: Sequence[signal.Signals], deadline: float) -> bool:
    """Send *signals* in order until the process exits; return True if it did.

    SIGKILL comes at *deadline*, and has its own time.
    """
    with ProcessEnd(pid) as end:
        for number in signals:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
            left = max(0.0, deadline - time.monotonic())
            if end.wait(limits.OWNED_SECONDS if number == signal.SIGKILL else left):
                return True
    return False
