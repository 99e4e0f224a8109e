"""A short-lived process that indexes very large texts, so that the actor's memory stays as it is.

FTS5 keeps all terms of a row in memory until the row is complete: up to 120 times the size of the
text, and nothing can make it write earlier. A process gives all of it back by ending, can be killed
at any time, and is the first that a system without memory ends.

The process gets a folder (:mod:`hermes_actor.engine.index.build_folder`) and nothing else: no
descriptor of the actor, no lock, not the store. It runs
:mod:`hermes_actor.engine.index.build_script` from memory. It says ``built`` at the end. That word
counts, not the exit code, which another part of an embedding program may have collected. It ends
with its parent.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import signal
import subprocess
import sys
from pathlib import Path

from hermes_actor import limits
from hermes_actor.engine.index import build_script
from hermes_actor.engine.index.build_folder import BuildFailed, BuildHere
from hermes_actor.system.descriptors import is_readable
from hermes_actor.system.fork import outside
from hermes_actor.system.interpreter import library_variables

__all__ = ["BuildProcess", "start_builder"]

_BUILT = f"{build_script.BUILT}\n".encode()
_MOST_SAID_BYTES = 16_384

_CHECK_SECONDS = 0.2
"""Between two checks that the process lives."""


def _program() -> str:
    """Return the source of the process; empty where sources are not at hand."""
    with contextlib.suppress(OSError, TypeError):
        return f"{inspect.getsource(build_script)}\n\nsys.exit(main())\n"
    return ""


_PROGRAM = _program()
"""Read when the actor starts: later the files may be those of another release."""

_END_SECONDS = 5.0
"""Longest wait for the exit of a process that has reported its result, or was killed."""


def start_builder(folder: Path, size: int) -> BuildProcess | BuildHere:
    """Begin to index the texts of *folder*, at most *size* bytes in one table."""
    # The executable of a frozen program is the program itself, and would be started once more.
    if not sys.executable or getattr(sys, "frozen", False) or not _PROGRAM:
        return BuildHere(folder, size)
    return BuildProcess(folder, size)


class BuildProcess:
    """Started when it is created; always :meth:`kill` it in the end."""

    def __init__(self, folder: Path, size: int) -> None:
        """Raises :class:`BuildFailed` if no process can be started."""
        self._said = b""
        try:
            # -P and -S: neither the working folder nor site-packages can put a module before those
            # of the standard library.
            # As a list of words and without any hook: SQLite may be at work in other threads, so
            # nothing of Python may run between fork and exec. A session of its own, because what
            # a terminal sends to an embedding program is not meant for it.
            self._process = subprocess.Popen(
                [
                    sys.executable, "-P", "-S", "-c", _PROGRAM,
                    str(os.getpid()), str(_address_space(size)), str(folder),
                ],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                bufsize=0, cwd="/", start_new_session=True, umask=0o077,
                env=library_variables(),
            )  # fmt: skip
        except OSError as error:
            raise BuildFailed(f"{sys.executable} cannot be started: {error.strerror}") from error

    @property
    def pid(self) -> int:
        """The id of the process."""
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
                if is_readable(output, _CHECK_SECONDS):
                    data = os.read(output.fileno(), _MOST_SAID_BYTES)
                    if not data:
                        break
                    # The end counts: the last line is the reason, or the word that all is built.
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
