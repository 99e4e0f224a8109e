"""The end of another process, seen by the process itself and not by asking its socket.

To ask a socket that a service manager holds would start the service again.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import Self

from hermes_actor.system.descriptors import is_readable

__all__ = ["ProcessEnd", "is_alive", "reap_when_ended"]

_LOOK_SECONDS = 0.02
"""Between two looks where the system cannot tell us of an end."""


def is_alive(pid: int) -> bool:
    """Return True if a process has this number now; it may be another one than before."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # of another user
    return True


def reap_when_ended(pid: int) -> None:
    """Have the end of *pid* noticed, if it has become our child: it has when its parent has ended
    and we are the first process of a container, who inherits all such."""
    try:
        # (0, 0): it is our child, and lives. One that has ended already is reaped by the call
        # itself.
        if os.waitpid(pid, os.WNOHANG) == (0, 0):
            threading.Thread(target=_reap, args=(pid,), daemon=True, name=f"end of {pid}").start()
    except ChildProcessError:
        pass  # as nearly always: it is another's


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


class ProcessEnd:
    """Watches one process. Create it while the process is known to live."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._descriptor: int | None = None
        if hasattr(os, "pidfd_open"):
            # Gone already, or a kernel without it: then its number is looked at.
            with contextlib.suppress(OSError):
                # It stays with this process: the number may be given to another one after the end.
                self._descriptor = os.pidfd_open(pid)

    def wait(self, seconds: float) -> bool:
        """Wait for the end; false if it has not come in time."""
        if self._descriptor is not None:
            return is_readable(self._descriptor, seconds)
        give_up = time.monotonic() + seconds
        while is_alive(self.pid):
            if time.monotonic() >= give_up:
                return False
            time.sleep(_LOOK_SECONDS)
        return True

    def close(self) -> None:
        """Release the descriptor. The process is left alone. Harmless a second time."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
