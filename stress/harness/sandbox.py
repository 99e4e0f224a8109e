"""A home whose actors run under the harness, and everything that a job does to them."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from support.actors import actor_pid, actors_of, end_actors

from harness import PYTHONPATH, ROOT
from hermes_actor.client.control import ask_status
from hermes_actor.errors import HermesActorError
from hermes_actor.paths import resolve_paths

__all__ = ["Sandbox"]

_ENTRY = ROOT / "stress" / "harness" / "entry.py"


class Sandbox:
    """One store. ``python`` is the interpreter whose ``-m hermes_actor`` is the build under test.

    A client that starts an actor with it, or the predecessor in a hand-off, obeys the orders
    that stand at that moment: variables of the environment for that process alone.
    """

    def __init__(self, folder: Path, kind: str = "sessions", **orders: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.kind = folder, kind
        self.path = folder / "state.db"
        self.paths = resolve_paths(self.path)
        self.python = folder / "python"
        self.once = folder / "once"
        self._orders = folder / "orders"
        self._always = {
            name: value for name, value in os.environ.items() if name == "HERMES_STRESS_BREAK"
        }
        self.order(**orders)
        real, entry = shlex.quote(sys.executable), shlex.quote(str(_ENTRY))
        self.python.write_text(
            "#!/bin/sh\n"
            "unset HERMES_ACTOR_FAILPOINT\n"
            f"export PYTHONPATH={shlex.quote(PYTHONPATH)}\n"
            f". {shlex.quote(str(self._orders))}\n"
            # The process that can take the order away obeys it: exactly one.
            f"if mv {shlex.quote(str(self.once))} {shlex.quote(str(self.once))}.$$ 2>/dev/null\n"
            f"then . {shlex.quote(str(self.once))}.$$; fi\n"
            f'exec {real} -P {entry} "$@"\n'
        )
        self.python.chmod(0o700)

    def order(self, **orders: str) -> None:
        """Variables for actors that start from now on, instead of those before."""
        text = "".join(
            f"export {name}={shlex.quote(value)}\n"
            for name, value in {**self._always, **orders}.items()
        )
        _put(self._orders, text)

    def order_once(self, **orders: str) -> None:
        """More variables, for the one actor that starts next; ``once`` is gone when it has."""
        _put(self.once, "".join(f"export {k}={shlex.quote(v)}\n" for k, v in orders.items()))

    def obeyed_by_next(self, **orders: str) -> None:
        """The same, and see that it is taken: an actor that serves without it is killed.

        More than one may have to go: the predecessor of a killed one may take back.
        """
        self.order_once(**orders)
        self.see_it_taken()

    def see_it_taken(self) -> None:
        """Kill an actor that serves while an order for the next one waits."""
        give_up = time.monotonic() + 60
        while self.once.exists():
            if time.monotonic() > give_up:
                raise TimeoutError(f"no actor takes {self.once.read_text()}")
            pid = self.serves()
            if self.once.exists():
                self.kill(pid)

    def serves_under(self, **orders: str) -> int:
        """Have an actor serve that obeys; its pid.

        Of two that start at one moment the loser may have taken the order with it: it is given
        again.
        """
        wanted = {f"{name}={value}".encode() for name, value in orders.items()}
        for _ in range(10):
            self.obeyed_by_next(**orders)
            pid = self.serves()
            with contextlib.suppress(OSError):
                if wanted <= set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")):
                    return pid
        raise TimeoutError(f"no actor serves under {orders}")

    # --- the actor -------------------------------------------------------------------------------

    @property
    def pid(self) -> int | None:
        """Who says that it owns the store, if it lives."""
        return actor_pid(self.path)

    def serves(self, timeout: float = 60.0, other_than: int | None = None) -> int:
        """Wait until an actor serves, as it says itself; its pid."""
        give_up = time.monotonic() + timeout
        while time.monotonic() < give_up:
            with contextlib.suppress(HermesActorError, OSError):
                status = ask_status(self.paths)
                if status and status.is_serving and status.pid != other_than:
                    return status.pid
            time.sleep(0.005)
        raise TimeoutError(
            f"no actor serves {self.path} within {timeout:g} s; see {self.paths.log}"
        )

    def kill(self, pid: int) -> None:
        """``kill -9``, noted in the log: the victim cannot tell that it has the file no longer."""
        with self.paths.log.open("a") as log:
            log.write(f"killed pid {pid}\n")
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def end(self) -> None:
        """End every actor of the store, stopped ones too."""
        for pid in actors_of(self.path):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        try:
            end_actors(self.path)
        finally:
            for pid in actors_of(self.path):  # a drain that does not end is a finding, not a guest
                self.kill(pid)

    @contextlib.contextmanager
    def stopped(self) -> Iterator[int]:
        """The actor that serves stands still for the time of a block; its pid."""
        pid = self.serves()
        os.kill(pid, signal.SIGSTOP)
        try:
            yield pid
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def wait_for(self, fact: Callable[[], bool], timeout: float = 60.0) -> None:
        """Wait until something is so; while the file is being replaced it cannot be read."""
        give_up = time.monotonic() + timeout
        while time.monotonic() < give_up:
            with contextlib.suppress(sqlite3.Error):
                if fact():
                    return
            time.sleep(0.01)
        raise TimeoutError(f"it does not come true within {timeout:g} s")

    def note(self, text: str) -> None:
        """Write down, beside the history, what is done to the sandbox from now on."""
        with (self.folder / "events").open("a") as events:
            events.write(f"{time.monotonic():.6f} {text}\n")

    def log_count(self, text: str) -> int:
        """How often something is in the log of the actors."""
        with contextlib.suppress(FileNotFoundError):
            return self.paths.log.read_text(errors="replace").count(text)
        return 0

    @contextlib.contextmanager
    def open(self) -> Iterator[Sandbox]:
        """The sandbox for the time of a block; no actor of it outlives the block."""
        try:
            yield self
        finally:
            self.end()


def _put(file: Path, text: str) -> None:
    """At once: the process that reads it reads all of it."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)
