"""``hermes-actor stop``, ``restart``, ``drain``, ``ps`` and ``logs``: the processes of a store."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import click

from hermes_actor import exits, limits
from hermes_actor.cli.manners import complain, db_option, json_option, place_for, say, waiting
from hermes_actor.client.asking import ask_status
from hermes_actor.client.ending import end_actor, running_actor
from hermes_actor.client.reaching import make_serve
from hermes_actor.errors import DeadlineExceeded, NotRunning
from hermes_actor.holders import lock_holder, owners
from hermes_actor.paths import Place, place_of
from hermes_actor.processes import ProcessEnd

__all__ = ["drain", "logs", "ps", "restart", "stop"]

_FOLLOW_SECONDS = 0.2
"""Between two looks at a log that is followed."""

_timeout = click.option(
    "--timeout", type=click.FloatRange(min=0), metavar="SECONDS", default=limits.PATIENCE_SECONDS,
    show_default=True, help="How long to wait for its end.",
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
    return _end(place_for(db), limits.PATIENCE_SECONDS, force=False, as_json=as_json)


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


def _end(place: Place, patience: float, *, force: bool, as_json: bool) -> int:
    pids: list[int] = []
    try:
        with waiting(lambda: _ending(place, pids)):
            pid = end_actor(place, patience, on_pid=pids.append)
    except NotRunning:
        say({"ended": False}, f"not running: no actor serves {place.db}", as_json)
        return exits.NOT_RUNNING
    except DeadlineExceeded:
        # Known by its answer, or, if it gave none, by its own note in the lock file.
        stuck = pids[0] if pids else lock_holder(place)
        signals = [] if pids else [signal.SIGTERM]
        signals += [signal.SIGKILL] * force
        if stuck is None or not _end_by_signal(stuck, signals, patience):
            if as_json:
                say({"ended": False, "pid": stuck}, "", as_json)
            complain(f"pid {stuck} has not ended in {patience:g} s; see: hermes-actor logs")
            return exits.REFUSED
        pid = stuck
    say({"ended": True, "pid": pid}, f"pid {pid} has ended", as_json)
    return exits.OK


def _ending(place: Place, pids: list[int]) -> str:
    # One that drains takes no more questions.
    return f"pid {pids[0]}: draining" if pids else f"an answer of the actor of {place.db}"


def _end_by_signal(pid: int, signals: Sequence[signal.Signals], patience: float) -> bool:
    """Whether it has ended after all, of *signals* in their order."""
    with ProcessEnd(pid) as end:
        for number in signals:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
            if end.wait(limits.OWNED_SECONDS if number == signal.SIGKILL else patience):
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
    place = place_for(db)
    old = None
    with contextlib.suppress(NotRunning):
        old = running_actor(place)
    pids: list[int] = []
    with waiting(lambda: _ending(place, pids)):
        managed = old is not None and _restart_service(place, old, timeout)
        if old is not None and not managed:
            try:
                end_actor(place, timeout, on_pid=pids.append)
            except DeadlineExceeded as error:
                complain(f"{error}; nothing was started")
                return exits.REFUSED
    with waiting(lambda: f"the new actor of {place.db}"):
        found = _when_it_serves(place, time.monotonic() + limits.SPAWN_SECONDS)
    if found is None:
        complain(f"no actor serves {place.db}; see: hermes-actor logs")
        return exits.REFUSED
    before = f"pid {old} has ended; " if old is not None else ""
    say(
        {"ended": old, "pid": found["pid"], "build": found["build"], "phase": found["phase"]},
        f"{before}pid {found['pid']} serves {place.db} with build {found['build']}",
        as_json,
    )
    return exits.OK


def _when_it_serves(place: Place, deadline: float) -> dict[str, Any] | None:
    """The status of an actor that has opened the file; of one that has not, at *deadline*."""
    make_serve(place, deadline)
    # Somebody else may have started it a moment ago.
    while (found := ask_status(place)) is not None and found["epoch"] == 0:
        if time.monotonic() > deadline:
            break
        time.sleep(limits.RECONNECT_MAX_SECONDS)
    return found


def _restart_service(place: Place, pid: int, patience: float) -> bool:
    """If *pid* is run by the service manager, have that restart it. False if it is not."""
    from hermes_actor.cli.managers import manager_of

    manager = manager_of(place)
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
        end.wait(patience)
    return True


# --- who is there ------------------------------------------------------------------------------


@click.command()
@json_option
def ps(as_json: bool) -> int:
    """List every actor of this user: process, build, phase, clients, file.

    A process in embedded mode owns its store too and is listed as "embedded". Exit code 0, also
    when there is none.

    Exit codes: 0, also if there is none.

    \b
    Examples:
      hermes-actor ps
      hermes-actor ps --json | jq -r '.[].database'
    """
    found = [_describe(pid, db) for pid, db in owners()]
    if as_json:
        print(json.dumps(found))
        return exits.OK
    if not found:
        print("no actor of this user runs")
        return exits.OK
    rows = [("PID", "BUILD", "PHASE", "CLIENTS", "FILE")]
    rows += [
        (str(one["pid"]), one["build"] or "?", one["phase"],
         "?" if one["clients"] is None else str(one["clients"]), one["database"])
        for one in found
    ]  # fmt: skip
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        head = "  ".join(text.ljust(width) for text, width in zip(row[:4], widths, strict=True))
        print(f"{head}  {row[4]}")
    return exits.OK


def _describe(pid: int, db: Path) -> dict[str, Any]:
    one: dict[str, Any] = {"pid": pid, "build": None, "phase": "embedded", "clients": None}
    one |= {"database": str(db)}
    try:
        status = ask_status(place_of(db)) if db.parent.exists() else None
    except (DeadlineExceeded, OSError):
        return one | {"phase": "does not answer"}
    if status is None:
        return one if db.parent.exists() else one | {"phase": "home is gone"}
    if status["pid"] != pid:
        return one | {"phase": f"beside pid {status['pid']}"}
    clients = len([c for c in status["connections"] if c["pid"] != os.getpid()])
    return one | {"build": status["build"], "phase": status["phase"], "clients": clients}


# --- what it has said --------------------------------------------------------------------------


@click.command()
@db_option
@click.option("--follow", "-f", is_flag=True, help="Go on with what is written from now on.")
@click.option(
    "--lines", "-n", type=click.IntRange(min=0), metavar="N", default=50, show_default=True,
    help="How many of the newest lines.",
)  # fmt: skip
def logs(db: Path | None, follow: bool, lines: int) -> int:
    """Show the log of the actor of a store, oldest line first.

    It is the log of actors that are started on demand, and of successors. One that a service
    manager runs writes to its manager: journalctl --user -u hermes-actor. No text of a message is
    ever in the log.

    Exit codes: 0 shown, 1 there is no log.

    \b
    Examples:
      hermes-actor logs -n 200
      hermes-actor logs -f
    """
    place = place_for(db)
    try:
        file = place.log.open("rb")
    except FileNotFoundError:
        complain(f"there is no log: no actor of {place.db} was started on demand ({place.log})")
        return exits.REFUSED
    for line in _newest(place.log, file, lines):
        print(line, flush=follow)
    if not follow:
        file.close()
        return exits.OK
    for text in _from_now_on(place.log, file):
        print(text, end="", flush=True)
    return exits.OK


def _newest(log: Path, file: BinaryIO, count: int) -> list[str]:
    """The newest *count* lines of *file*, which is at *log*, and of those rotated away before."""
    found = file.read().decode("utf-8", "replace").splitlines()
    for path in (log.with_name(f"{log.name}.{number}") for number in (1, 2, 3)):
        if len(found) >= count:
            break
        with contextlib.suppress(FileNotFoundError):
            found = [*path.read_text("utf-8", "replace").splitlines(), *found]
    return found[len(found) - min(count, len(found)) :]


def _from_now_on(log: Path, file: BinaryIO) -> Iterator[str]:
    """What is added to *file*, which was at *log*, also after it was rotated. Until Ctrl-C."""
    try:
        while True:
            text = file.read()
            if text:
                yield text.decode("utf-8", "replace")
                continue
            with contextlib.suppress(FileNotFoundError):
                if log.stat().st_ino != os.fstat(file.fileno()).st_ino:
                    file.close()
                    file = log.open("rb")
                    continue
            time.sleep(_FOLLOW_SECONDS)
    finally:
        file.close()
