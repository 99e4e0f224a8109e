"""Checks of the programs around a store: hermes-agent, and every process that has the file open."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hermes_actor.cli.start.doctor.findings import Finding, Findings
from hermes_actor.client.control import ask_status
from hermes_actor.errors import AttachFailed, HermesActorError
from hermes_actor.paths import StorePaths
from hermes_actor.system.lock_inspection import (
    lock_holder,
    processes_with_fd,
    wal_read_lock_pids,
)

if TYPE_CHECKING:
    from hermes_actor.attach.record import Record

__all__ = ["hermes_agent", "processes"]

_LOOK_AT_PEER = """
import importlib.metadata, json
try:
    version = importlib.metadata.version("hermes-agent")
except importlib.metadata.PackageNotFoundError:
    version = None
try:
    import hermes_state
    module = hermes_state.SessionDB.__module__
except Exception as error:
    module = None
print(json.dumps([version, module]))
"""


def hermes_agent(paths: StorePaths) -> Findings:
    """hermes-agent: is this home attached, and is it still; else the one of this environment."""
    from hermes_actor.attach.record import record_of

    record = record_of(paths.db)
    if record is not None:
        yield from _attached(record)
        return
    done = subprocess.run(
        [sys.executable, "-c", _LOOK_AT_PEER], capture_output=True, text=True, timeout=60, cwd="/"
    )
    try:
        version, module = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        text = "could not be checked: a child interpreter failed"
        yield Finding("note", "hermes-agent", text, done.stderr.strip())
        return
    if version is None and module is None:
        yield Finding("ok", "hermes-agent", "not installed in this environment")
        return
    if module is not None and module.startswith("hermes_actor"):
        yield Finding("ok", "hermes-agent", f"version {version} uses hermes-actor")
    else:
        text = f"version {version} opens the file itself, not through the actor ({module})"
        yield Finding("warning", "hermes-agent", text, "hermes-actor attach")
    yield from _if_untested(version)


def _attached(record: Record) -> Findings:
    from hermes_actor.attach.attachment import look
    from hermes_actor.attach.environments import inspect

    home = Path(record.home)
    try:
        environment = inspect(Path(record.python))
    except AttachFailed as error:
        text = f"the environment that {home} was attached to is gone: {error}"
        yield Finding("warning", "hermes-agent", text, "hermes-actor attach")
        return
    state = look(home, environment)
    for problem in state.problems:
        yield Finding("warning", "hermes-agent", problem, "hermes-actor attach")
    if not state.problems:
        text = (
            f"version {environment.release} in {environment.prefix} stores {home} through the"
            f" actor ({record.tier})"
        )
        level = "warning" if record.tier == "direct" else "ok"
        if level == "warning":
            text = f"{home} is attached, but attach.tier is direct: hermes writes by itself"
            advice = "set attach.tier to auto, then run: hermes-actor attach"
            yield Finding("warning", "hermes-agent", text, advice)
        else:
            yield Finding("ok", "hermes-agent", text)
    yield from _if_untested(environment.release)


def _if_untested(release: str | None) -> Findings:
    from hermes_actor.attach.releases import TESTED_RELEASES

    if release is not None and release not in TESTED_RELEASES:
        text = f"version {release} is not among the tested ones ({', '.join(TESTED_RELEASES)})"
        advice = "nothing: attaching proves that it stores; report what does not work"
        yield Finding("note", "hermes-agent", text, advice)


def processes(paths: StorePaths) -> Findings:
    """Every process that has the file open: through the actor, reading, or writing by itself."""
    from hermes_actor.attach.programs import program, way_around
    from hermes_actor.attach.record import record_of

    owner = lock_holder(paths)
    clients = _clients(paths)
    opened = {pid: one for pid, one in processes_with_fd(paths.db).items() if pid != owner}
    record = record_of(paths.db)
    prefix = Path(record.python).parents[1] if record is not None else None
    writers = {pid for pid, (_, writes) in opened.items() if writes}
    for pid in sorted(writers):
        yield Finding(
            "warning", "processes",
            f"pid {pid} ({opened[pid][0]}) has the file open for writing; it"
            f" {way_around(pid, prefix)}",
            "start it again, or stop it: two writers block each other and can corrupt the WAL",
        )  # fmt: skip
    readers = set(wal_read_lock_pids(paths.shm)) - {owner, None}
    for pid in sorted((clients | set(opened)) - writers):
        way = "goes through the actor" if pid in clients else "reads the file and writes nothing"
        yield Finding("ok", "processes", f"{program(pid).text} {way}")
    for pid in sorted(readers - writers):
        text = f"pid {pid} is reading; the WAL cannot shrink until it is done"
        yield Finding("note", "processes", text, "nothing, unless it takes very long")
    if not writers:
        yield Finding("ok", "processes", "no other program has the file open for writing")


def _clients(paths: StorePaths) -> set[int]:
    """Return the processes that are connected to the actor."""
    try:
        status = ask_status(paths) if lock_holder(paths) is not None else None
    except HermesActorError:
        return set()  # another check says what is wrong with it
    return set() if status is None else {one.pid for one in status.clients(except_pid=os.getpid())}
