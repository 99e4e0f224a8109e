"""A scenario: a load whose actor is handed over, updated, killed and ended meanwhile."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from hermes_actor.client.control import ask_status, request_handoff
from hermes_actor.errors import HandoffFailed, HermesActorError, NotRunning
from hermes_actor.testing.load import Load, Step

__all__ = ["Scenario"]

_SERVE_SECONDS = 30.0
"""As long as a call waits by default: if no actor serves by then, a write has failed too."""
_HANDOFF_EVERY_SECONDS = 1.0
_MISSING = "hermes_actor.engine.writer"
"""The module that the broken build lacks."""


@dataclass
class Scenario(Load):
    """Writers and readers of a store, and what happens to its actor."""

    title = "hermes-actor"
    pid: int = field(init=False, default=0)
    """Process that serves, as far as the director knows."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._pids: list[int] = []

    @property
    def serving(self) -> str:
        """The process that writes the file."""
        return f"pid {self.pid} serves"

    def _make_ready(self) -> None:
        self._prepare_broken_build()
        self.pid = self._await_served()

    def _too_late(self, kind: str, late: float) -> bool:
        if late > self.seconds + _SERVE_SECONDS:
            raise TimeoutError("this machine is too slow for the show")
        # They do not pile up on a slow machine.
        return kind == "handoff" and late > _HANDOFF_EVERY_SECONDS

    def _plan(self) -> list[Step]:
        """Return the plan: a hand-off every second, and four faults in an order of the seed's."""
        faults = [self._kill, self._kill_in_handoff, self._term, self._break]
        self._rng.shuffle(faults)
        part = self.seconds / (len(faults) + 1)
        plan: list[Step] = [
            (part * (n + 1) + self._rng.uniform(-0.2, 0.2) * part, "fault", act)
            for n, act in enumerate(faults)
        ]
        at = _HANDOFF_EVERY_SECONDS
        while at < self.seconds:
            plan.append((at, "handoff", self._hand_off))
            at += _HANDOFF_EVERY_SECONDS
        return plan + super()._plan()

    def _hand_off(self) -> None:
        event = self._begin("handoff", f"hand-off {self.done('handoff') + 1}")
        try:
            outcome = request_handoff(self.paths, sys.executable)
        except HermesActorError as error:
            self._end(event, str(error), good=False)
            return
        self._end(event, f"{self.pid} → {self._now_serves(outcome['pid'])}")

    def _break(self) -> None:
        event = self._begin("broken", "broken update")
        try:
            outcome = request_handoff(self.paths, str(self.home / "broken-python"))
        except HandoffFailed:
            served = self._await_served()
            # It must be the broken build that has failed, and for that reason.
            good = served == self.pid and _MISSING in self.paths.log.read_text()
            self._end(event, f"rolled back, {served} serves on", good=good)
        except HermesActorError as error:
            self._end(event, str(error), good=False)
        else:
            self._end(event, f"pid {outcome['pid']} serves", good=False)

    def _kill(self) -> None:
        event = self._begin("kill", "kill -9")
        os.kill(self._await_served(), signal.SIGKILL)
        self._end(event, self._successor_of_the_dead())

    def _kill_in_handoff(self) -> None:
        event = self._begin("kill", "kill -9 in a hand-off")
        pid = self._await_served()

        def ask() -> None:
            with contextlib.suppress(HermesActorError):
                request_handoff(self.paths, sys.executable)

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        self._over.wait(self._rng.uniform(0.1, 0.8))
        os.kill(pid, signal.SIGKILL)
        asking.join(_SERVE_SECONDS)
        self._end(event, self._successor_of_the_dead())

    def _term(self) -> None:
        event = self._begin("term", "SIGTERM")
        os.kill(self._await_served(), signal.SIGTERM)
        self._end(event, self._successor_of_the_dead())

    def _successor_of_the_dead(self) -> str:
        dead, served = self.pid, self._await_served(other_than=self.pid)
        took_back = ", which took back" if served in self._pids else ""
        return f"{dead} → {self._now_serves(served)}{took_back}"

    # --- the actor -------------------------------------------------------------------------------

    def _now_serves(self, pid: int) -> int:
        self._pids.append(self.pid)
        self.pid = pid
        return pid

    def _await_served(self, other_than: int = 0) -> int:
        """Return the pid of the serving process, as it reports it. Raises :class:`NotRunning`."""
        give_up = time.monotonic() + _SERVE_SECONDS
        while time.monotonic() < give_up and not self._over.is_set():
            with contextlib.suppress(HermesActorError, OSError):
                status = ask_status(self.paths)
                if status and status.is_serving and status.pid != other_than:
                    return status.pid
            time.sleep(0.01)
        raise NotRunning(f"no actor serves {self.paths.db} after {_SERVE_SECONDS:g} s")

    def _prepare_broken_build(self) -> None:
        """Prepare an update that was cut short: a copy of this package without one module."""
        package = Path(__file__).parents[1]
        copy = self.home / "broken" / package.name
        shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
        (copy / "engine" / f"{_MISSING.rpartition('.')[2]}.py").unlink()
        python = self.home / "broken-python"
        found, real = shlex.quote(str(copy.parent)), shlex.quote(sys.executable)
        python.write_text(f'#!/bin/sh\nPYTHONPATH={found} exec {real} "$@"\n')
        python.chmod(0o700)
