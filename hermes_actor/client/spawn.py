"""Starting an actor on demand.

Only ENOENT and ECONNREFUSED prove that no actor listens. Under the start lock the socket is tried
once more, then exactly one client starts the actor and waits on a pipe until it serves or says
why it cannot.

A client that is part of a service starts it in a scope of its own, where systemd allows that: what
ends the service must not end the actor of all clients.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes_actor import limits
from hermes_actor.client.spawn_environment import actor_environment
from hermes_actor.errors import (
    DeadlineExceeded,
    ReadOnly,
    SpawnFailed,
    by_code,
    cannot_use,
)
from hermes_actor.paths import check_not_hijacked, check_ownership
from hermes_actor.system.descriptors import is_readable, open_private
from hermes_actor.system.lock_inspection import already_owned, lock_owner
from hermes_actor.system.processes import reap_when_ended
from hermes_protocol.features import SESSIONS

if TYPE_CHECKING:
    from hermes_actor.paths import StorePaths

__all__ = ["start_actor", "start_lock"]

_TRANSIENT = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE})
"""Errors of starting a process that say nothing of the interpreter; they may pass."""

_LOG_TAIL_BYTES = 2000

_CGROUP = Path("/proc/self/cgroup")

_LOOK_SECONDS = 0.02
"""Time between two checks for an actor while others hold the start lock: each connects once."""

_SCOPE_SECONDS = 5.0
"""Longest wait for systemd to make a scope: it takes milliseconds, unless something is wrong."""


def start_actor(
    paths: StorePaths,
    deadline: float,
    is_serving: Callable[[], bool],
    *,
    kind: str = SESSIONS,
    idle_exit: float | None = None,
) -> None:
    """Start an actor, unless one runs. *is_serving* is asked once the start lock is held, and now
    and then while others hold it: an actor that serves by then may have another starter.

    *kind* is that of a file that does not say its own. *idle_exit*: seconds without connections
    after which it ends, instead of what the environment or the default says.

    Raises a typed error of the file if the actor could not open it, else :class:`SpawnFailed`;
    ``TimeoutError`` with its phase if it does not serve by *deadline*: it goes on.
    """
    # Before the lock: a lock file in the folder of another user would be believed.
    _check_user(paths)
    # Here and not in the actor: the caller gets the error that SQLite would have given it.
    if paths.db.exists() and not os.access(paths.db, os.W_OK):
        words = "attempt to write a readonly database"
        raise ReadOnly(
            f"{words}: {paths.db} is not writable for uid {os.getuid()}", sqlite_message=words
        )
    with start_lock(paths, deadline, is_serving) as held:
        # Asked once more under the lock: another client may have started one in between.
        if held and not is_serving():
            _check_owner(paths)
            _spawn(paths, deadline, kind, idle_exit)


def _check_user(paths: StorePaths) -> None:
    check_not_hijacked(paths)
    paths.db.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_ownership(paths)


def _check_owner(paths: StorePaths) -> None:
    """Raise :class:`AlreadyOwned` if a program in embedded mode owns the file.

    An actor would find that out as well, after the time that its start takes.
    """
    owner = lock_owner(paths)
    if owner is not None and owner.mode == "embedded":
        raise already_owned(paths, owner)


@contextlib.contextmanager
def start_lock(
    paths: StorePaths, deadline: float, is_needless: Callable[[], bool] = lambda: False
) -> Iterator[bool]:
    """Hold the lock under which actors are started. Raises :class:`DeadlineExceeded`.

    False, and without the lock, as soon as *is_needless* says so while others hold it. A crowd
    that must take the lock one by one, only to find an actor that serves, would starve its last.
    """
    try:
        paths.folder.mkdir(mode=0o700, exist_ok=True)
        lock = open_private(paths.start_lock)
    except OSError as error:
        raise cannot_use(paths.db, paths.folder, error) from error
    began = time.monotonic()
    # Tried again and again: a flock that blocks has no time limit. Closing the file ends it.
    look, held = began + _LOOK_SECONDS, False
    with lock:
        while not held:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                held = True
            except BlockingIOError:
                now = time.monotonic()
                if now >= deadline:
                    raise DeadlineExceeded(
                        f"another process has held the start lock of {paths.db} for"
                        f" {now - began:.3g} s and its actor does not serve yet; nothing was"
                        f" changed. To see why: hermes-actor doctor"
                    ) from None
                if now >= look:
                    if is_needless():
                        break
                    look = now + _LOOK_SECONDS
                time.sleep(limits.RECONNECT_FIRST_SECONDS)
        yield held


def _spawn(paths: StorePaths, deadline: float, kind: str, idle_exit: float | None) -> None:
    try:
        _spawn_once(paths, deadline, kind, idle_exit, _run_in_scope)
    except _NotInScope:
        _spawn_once(paths, deadline, kind, idle_exit, lambda *_: False)


class _NotInScope(Exception):
    """A scope seemed to be made, and nothing has run in it."""


def _spawn_once(
    paths: StorePaths,
    deadline: float,
    kind: str,
    idle_exit: float | None,
    run_apart: Callable[[StorePaths, list[str], float, dict[str, Any]], bool],
) -> None:
    # Objects from the first moment, not numbers: what an interrupt loses is closed with them.
    ready, child_end = socket.socketpair()
    with ready:
        with child_end, _open_log(paths) as log:
            command = [
                # -P: with -m, the present folder would come first in sys.path.
                sys.executable or "", "-P", "-m", "hermes_actor", "serve", "--detach",
                "--db", str(paths.db), "--ready-fd", str(child_end.fileno()), "--kind", kind,
                *([] if idle_exit is None else ["--idle-exit", str(idle_exit)]),
            ]  # fmt: skip
            how: dict[str, Any] = {
                # Nothing of the starter is kept: its terminal, its folder, which may be unmounted
                # one day, its session, whose end sends a signal, and its mask.
                "stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, "cwd": "/",
                "pass_fds": (child_end.fileno(),), "start_new_session": True, "umask": 0o077,
            }  # fmt: skip
            starter = None
            if not run_apart(paths, command, deadline, how):
                starter = _begin(paths, command, how)
        try:
            # The copy of the child's end is closed here: only then the end of the actor ends the
            # stream.
            actor = _wait_ready(paths, ready, deadline)
            if starter is not None:
                starter.wait()  # it has left the actor behind, as its last act
            reap_when_ended(actor)
        except SpawnFailed as error:
            # Where SIGCHLD is ignored, as a program may have inherited it, every child seems to end
            # with 0, also a systemd-run that makes no scope.
            if starter is None and signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
                raise _NotInScope from error
            raise
        finally:
            if starter is not None and starter.poll() is None:
                # It has not come that far. What it starts serves the next call.
                reap_when_ended(starter.pid)
                starter.returncode = 0


def _open_log(paths: StorePaths) -> FileIO:
    try:
        return open_private(paths.log)
    except OSError as error:
        if error.errno == errno.ENOENT or error.errno in _TRANSIENT:
            raise  # the folder is gone, and made again for the next try
        raise cannot_use(paths.db, paths.log, error) from error


def _begin(paths: StorePaths, command: list[str], how: dict[str, Any]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(command, env=actor_environment(), **how)
    except OSError as error:
        if error.errno in _TRANSIENT:
            raise
        raise SpawnFailed(
            f"no actor of {paths.db} can be started: this program's Python,"
            f" {command[0] or '(unknown)'}, cannot be run ({error.strerror}); if it was"
            f" reinstalled or moved, start the program again"
        ) from error


def _run_in_scope(
    paths: StorePaths, command: list[str], deadline: float, how: dict[str, Any]
) -> bool:
    """Run *command* outside of the service of this process. False if it must be run as usual.

    In a process that is part of no service, this costs the reading of one small file.
    """
    # Its socket is tried first: that costs less than a systemd-run that fails.
    bus = _user_bus() if _in_a_service() else None
    if bus is None:
        return False
    scope = ["systemd-run", "--user", "--scope", "--quiet", "--collect",
             f"--description=hermes-actor of {paths.db}", "--"]  # fmt: skip
    environment = {**actor_environment(), **bus}
    seconds = min(_SCOPE_SECONDS, max(0.0, deadline - time.monotonic()))
    try:
        done = subprocess.run([*scope, *command], env=environment, timeout=seconds, **how)
    except (OSError, subprocess.TimeoutExpired):
        return False
    # Where both have been started after all, the second finds the first and leaves.
    return done.returncode == 0


def _in_a_service() -> bool:
    """Return True if the control group is that of a service, which ends with all its processes."""
    with contextlib.suppress(OSError):
        for line in _CGROUP.read_text(errors="replace").splitlines():
            if line.startswith("0::"):
                units = line.split("/")
                return any(
                    # user@1000.service is the user's manager itself, under which every program of a
                    # login runs.
                    unit.endswith(".service") and not re.fullmatch(r"user@\d+\.service", unit)
                    for unit in units
                )
    return False


def _user_bus() -> dict[str, str] | None:
    """Return the environment for the user's manager; ``None`` if it does not answer."""
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    for name in ("systemd/private", "bus"):
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(_SCOPE_SECONDS)
            probe.connect(f"{runtime}/{name}")
            return {"XDG_RUNTIME_DIR": runtime}
    return None


def _wait_ready(paths: StorePaths, ready: socket.socket, deadline: float) -> int:
    """Return the pid of the actor, once it serves."""
    said, phase = b"", "starting"
    while True:
        # The actor is not ended: it may be migrating a large file, and would begin again each time.
        if not is_readable(ready, deadline - time.monotonic()):
            raise TimeoutError(f"{phase}; it goes on, so a later call finds it")
        data = ready.recv(4096)
        if not data:
            break
        said += data
        phase = _answer(said).get("phase", phase)
    answer = _answer(said)
    # Both outcomes carry the pid, so the end of the stream without one is an early exit.
    if "pid" not in answer:
        raise SpawnFailed(
            f"the actor of {paths.db} exited at once; the end of its log:\n{_log_tail(paths)}"
        )
    if answer.get("error"):
        kind = by_code.get(answer["code"], SpawnFailed)
        raise kind(answer["error"], sqlite_message=answer.get("words"))
    pid: int = answer["pid"]
    return pid


def _answer(said: bytes) -> dict[str, Any]:
    """Return the last whole line that the actor has written."""
    # What follows the last line break is half a line, or empty.
    *_, last, _ = [b"{}", *said.split(b"\n")]
    answer: dict[str, Any] = json.loads(last)
    return answer


def _log_tail(paths: StorePaths) -> str:
    with contextlib.suppress(OSError):
        return paths.log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")
    return "(no log)"
