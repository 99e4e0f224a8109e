"""Starting an actor on demand.

Only ENOENT and ECONNREFUSED prove that nobody serves. Under the start lock the socket is tried
once more, then exactly one client starts the actor and waits on a pipe until it serves or says
why it cannot.

A client that is part of a service starts it in a scope of its own, where systemd allows that: what
ends the service must not end the actor of everybody.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes_actor import limits
from hermes_actor.errors import (
    DeadlineExceeded,
    SpawnFailed,
    by_code,
    cannot_use,
)
from hermes_actor.paths import check_owner, check_place

if TYPE_CHECKING:
    from hermes_actor.paths import Place

__all__ = ["python_path", "start_actor", "start_lock"]

_KEPT_VARIABLES = (
    "PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ",
    "HERMES_ACTOR_IDLE_EXIT", "HERMES_ACTOR_DRAIN_SECONDS", "HERMES_ACTOR_PRIVATE_SQL",
    "HERMES_ACTOR_RESCUE", "XDG_STATE_HOME",
)  # fmt: skip
"""The actor must not depend on who happened to start it."""

_LOG_TAIL_BYTES = 2000

_CGROUP = Path("/proc/self/cgroup")

_LOOK_SECONDS = 0.02
"""Between two looks for an actor while others hold the start lock: each is a connection."""

_SCOPE_SECONDS = 5.0
"""How long systemd may take to make a scope: some milliseconds, unless something is wrong."""


def start_actor(
    place: Place,
    deadline: float,
    is_serving: Callable[[], bool],
    *,
    idle_exit: float | None = None,
) -> None:
    """Make sure that an actor runs. *is_serving* looks again once the start lock is held, and now
    and then while others hold it: whoever serves by then need not have been started by them.

    *idle_exit*: seconds without connections after which it ends, instead of what the environment
    or the default says.

    Raises a typed error of the file if the actor could not open it, else :class:`SpawnFailed`.
    """
    _check_user(place)
    with start_lock(place, deadline, is_serving) as held:
        if held and not is_serving():
            _spawn(place, deadline, idle_exit)


def _check_user(place: Place) -> None:
    check_place(place)
    place.db.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_owner(place)


@contextlib.contextmanager
def start_lock(
    place: Place, deadline: float, is_needless: Callable[[], bool] = lambda: False
) -> Iterator[bool]:
    """Hold the lock under which actors are started. Raises :class:`DeadlineExceeded`.

    False, and without the lock, as soon as *is_needless* says so while others hold it. A crowd
    that must take the lock one by one only to see that somebody serves would starve its last.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        place.folder.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(place.start_lock, flags, 0o600)
    except OSError as error:
        raise cannot_use(place.db, place.folder, error) from error
    look, held = time.monotonic() + _LOOK_SECONDS, False
    try:
        while not held:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                held = True
            except BlockingIOError:
                now = time.monotonic()
                if now >= deadline:
                    raise DeadlineExceeded(
                        f"another process is starting the actor of {place.db} and not done yet"
                    ) from None
                if now >= look:
                    if is_needless():
                        break
                    look = now + _LOOK_SECONDS
                time.sleep(limits.RECONNECT_FIRST_SECONDS)
        yield held
    finally:
        os.close(descriptor)


def _spawn(place: Place, deadline: float, idle_exit: float | None) -> None:
    ready, child_end = os.pipe()
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    log = os.open(place.log, flags, 0o600)
    command = [
        sys.executable, "-P", "-m", "hermes_actor", "serve", "--detach",
        "--db", str(place.db), "--ready-fd", str(child_end),
        *([] if idle_exit is None else ["--idle-exit", str(idle_exit)]),
    ]  # fmt: skip
    how: dict[str, Any] = {
        "stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, "cwd": "/",
        "pass_fds": (child_end,), "start_new_session": True, "umask": 0o077,
    }  # fmt: skip
    try:
        if not _run_in_scope(place, command, how):
            subprocess.run(command, env=_environment(), check=False, **how)
    finally:
        os.close(child_end)
        os.close(log)
    try:
        _wait_ready(place, ready, deadline)
    finally:
        os.close(ready)


def _environment() -> dict[str, str]:
    kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    return {**kept, **python_path()}


def python_path() -> dict[str, str]:
    """``PYTHONPATH``, if this package itself was found through it."""
    paths = os.environ.get("PYTHONPATH", "")
    package = str(Path(__file__).parents[2])
    return {"PYTHONPATH": paths} if package in paths.split(os.pathsep) else {}


def _run_in_scope(place: Place, command: list[str], how: dict[str, Any]) -> bool:
    """Run *command* outside of the service that we are part of. False if it must be run as usual.

    Outside of a service, where nearly everybody is, this costs the reading of one small file.
    """
    bus = _user_bus() if _in_a_service() else None
    if bus is None:
        return False
    scope = ["systemd-run", "--user", "--scope", "--quiet", "--collect",
             f"--description=hermes-actor of {place.db}", "--"]  # fmt: skip
    try:
        done = subprocess.run(
            [*scope, *command], env={**_environment(), **bus}, timeout=_SCOPE_SECONDS, **how
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    # Where both have been started after all, the second finds the first and leaves.
    return done.returncode == 0


def _in_a_service() -> bool:
    """Whether our control group is that of a service, all of which ends when the service does."""
    with contextlib.suppress(OSError):
        for line in _CGROUP.read_text(errors="replace").splitlines():
            if line.startswith("0::"):
                units = line.split("/")
                return any(
                    unit.endswith(".service") and not re.fullmatch(r"user@\d+\.service", unit)
                    for unit in units
                )
    return False


def _user_bus() -> dict[str, str] | None:
    """What the environment needs to reach the user's manager; ``None`` if it does not answer."""
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    for name in ("systemd/private", "bus"):
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(_SCOPE_SECONDS)
            probe.connect(f"{runtime}/{name}")
            return {"XDG_RUNTIME_DIR": runtime}
    return None


def _wait_ready(place: Place, ready: int, deadline: float) -> None:
    said, phase = b"", "starting"
    while True:
        patience = max(0.0, deadline - time.monotonic())
        if not select.select([ready], [], [], patience)[0]:
            raise DeadlineExceeded(f"the actor of {place.db} is not ready yet: {phase}")
        data = os.read(ready, 4096)
        if not data:
            break
        said += data
        phase = _answer(said).get("phase", phase)
    answer = _answer(said)
    if "pid" not in answer:
        raise SpawnFailed(
            f"the actor of {place.db} ended at once; its last words:\n{_log_tail(place)}"
        )
    if answer.get("error"):
        kind = by_code.get(answer["code"], SpawnFailed)
        raise kind(answer["error"], words=answer.get("words"))


def _answer(said: bytes) -> dict[str, Any]:
    """The last whole line that the actor has said."""
    *_, last, _ = [b"{}", *said.split(b"\n")]
    answer: dict[str, Any] = json.loads(last)
    return answer


def _log_tail(place: Place) -> str:
    with contextlib.suppress(OSError):
        return place.log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")
    return "(no log)"
