"""A short-lived process that indexes very large texts, so that the actor's memory stays as it is.

FTS5 keeps all terms of a row in memory until the row is complete: up to 120 times the size of the
text, and nothing can make it write earlier. A process gives all of it back by ending, can be killed
at any time, and is the first that a system without memory ends.

The process gets a folder (:mod:`hermes_actor.engine.build_folder`) and nothing else: no descriptor
of the actor, no lock, not the store. It says ``built`` at the end. That word counts, not the exit
code, which another part of an embedding program may have collected. It ends with its parent.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from hermes_actor import limits
from hermes_actor.engine.build_folder import BuildFailed, BuildHere, build_all
from hermes_actor.system.descriptors import is_readable
from hermes_actor.system.fork import outside
from hermes_actor.system.interpreter import library_variables

__all__ = ["BuildProcess", "start_builder"]

_BUILT = b"built\n"
_MOST_SAID_BYTES = 16_384

_LOOK_SECONDS = 0.2
"""Between two looks of either process whether the other one lives."""

_END_SECONDS = 5.0
"""Longest wait for the exit of a process that has reported its result, or was killed."""


def start_builder(folder: Path, size: int) -> BuildProcess | BuildHere:
    """Begin to index the texts of *folder*, at most *size* bytes in one table."""
    # The executable of a frozen program is the program itself, and would be started once more.
    if not sys.executable or getattr(sys, "frozen", False):
        return BuildHere(folder, size)
    return BuildProcess(folder, size)


class BuildProcess:
    """Started when it is created; always :meth:`kill` it in the end."""

    def __init__(self, folder: Path, size: int) -> None:
        """Raises :class:`BuildFailed` if no process can be started."""
        self._said = b""
        paths = os.pathsep.join(os.path.abspath(path) for path in sys.path)
        try:
            # As a list of words and without any hook: SQLite may be at work in other threads, so
            # nothing of Python may run between fork and exec. A session of its own, because what
            # a terminal sends to an embedding program is not meant for it.
            self._process = subprocess.Popen(
                [
                    sys.executable, "-P", "-m", "hermes_actor.engine.build_process",
                    str(os.getpid()), str(_address_space(size)), str(folder),
                ],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                bufsize=0, cwd="/", start_new_session=True, umask=0o077,
                env={**library_variables(), "PYTHONPATH": paths},
            )  # fmt: skip
        except OSError as error:
            raise BuildFailed(f"{sys.executable} cannot be started: {error.strerror}") from error

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self) -> None:
        """Wait until all is built. Raises :class:`BuildFailed`, also after :meth:`kill`."""
        outside(self._listen)
        if self._said.endswith(_BUILT):
            return
        raise BuildFailed(_reason(self._said, self._process.returncode))

    def kill(self) -> None:
        """End it now, from whatever thread. Calling it again is harmless."""
        self._process.kill()

    def _listen(self) -> None:
        output = self._process.stdout
        assert output is not None
        with output:
            while True:
                if is_readable(output, _LOOK_SECONDS):
                    data = os.read(output.fileno(), _MOST_SAID_BYTES)
                    if not data:
                        break
                    self._said = (self._said + data)[-_MOST_SAID_BYTES:]
                elif self._process.poll() is not None:
                    break  # a copy of its output is open in another process
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)


def _address_space(size: int) -> int:
    """Return the bytes a process may use for *size* bytes of text; at most half of the machine."""
    wanted = limits.ASIDE_PROCESS_BYTES + limits.ASIDE_PROCESS_FACTOR * size
    with contextlib.suppress(ValueError, OSError):
        return min(wanted, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)
    return wanted


def _reason(said: bytes, code: int | None) -> str:
    *_, last = ["", *said.decode(errors="replace").strip().splitlines()]
    if code is not None and code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
        return f"its process was ended by {name}" + (
            ", perhaps because the system has no memory left" if -code == signal.SIGKILL else ""
        )
    return last or f"its process ended with {code} and without a word"


# --- in the process ----------------------------------------------------------------------------


def main() -> int:
    """Build everything in the folder that the arguments name."""
    parent, space, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    _bound_memory(space)
    try:
        build_all(folder)
    except MemoryError:
        sys.stdout.write(f"it needs more than the {space >> 20} MiB of memory that it may have\n")
        return 1
    except Exception as error:
        sys.stdout.write(f"{type(error).__name__}: {error}\n")
        return 1
    os.write(1, _BUILT)
    return 0


def _end_with(parent: int) -> None:
    """End this process when its parent has: what it builds is then of no use.

    By its number: a pipe would stay open in whatever the parent has forked.
    """
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    os._exit(1)


def _bound_memory(space: int) -> None:
    """Be the first to go if memory is short, and have no more than *space* in any case.

    Where a system lacks one of the two, the other remains; macOS ignores the limit.
    """
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (space, space))


if __name__ == "__main__":
    sys.exit(main())
