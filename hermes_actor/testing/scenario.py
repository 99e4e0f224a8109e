"""A scenario: a pool of writers and readers, and faults of their actor meanwhile.

Everything is bounded. Whatever happens, no process outlives the block of a :class:`Scenario`:
workers end with their standard input, actors are ended by the process id that their lock
file names.
"""

from __future__ import annotations

import contextlib
import os
import random
import shlex
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from hermes_actor.client.control import ask_status, request_handoff
from hermes_actor.errors import HandoffFailed, HermesActorError, NotRunning
from hermes_actor.paths import StorePaths, resolve_paths
from hermes_actor.system.lock_inspection import lock_holder
from hermes_actor.system.processes import ProcessEnd
from hermes_actor.testing.history import Write
from hermes_actor.testing.writer_pool import FOLLOW, History, WriterPool, check

__all__ = ["Event", "Scenario", "end_actors"]

_SERVE_SECONDS = 30.0
"""As long as a call waits by default: if no actor serves by then, a write has failed too."""
_END_SECONDS = 10.0
"""A drain takes half of it at most."""
_HANDOFF_EVERY_SECONDS = 1.0
_BREATH_SECONDS = 0.25
"""Between two events, so that each shows its own pause."""
_PAUSE_SECONDS = 0.004
"""Mean pause of a writer between two writes: they are many, and none of them is a benchmark."""
_LIFETIME_SECONDS = 150.0
"""Besides twice the time of the demonstration: a worker that is left behind ends by itself."""
_MISSING = "hermes_actor.engine.writer"
"""The module that the broken build lacks."""


@dataclass(slots=True)
class Event:
    """Something that is done to the actor. Times are of ``time.monotonic``."""

    kind: str
    """``handoff``, ``broken``, ``kill`` or ``term``."""
    what: str
    began: float
    ended: float | None = None
    outcome: str = ""
    good: bool = True
    longest: float = 0.0
    """Seconds of the longest write that met it."""

    def met(self, record: Write) -> None:
        """Count a write towards :attr:`longest` if it overlapped with this event."""
        if record.ended >= self.began and (self.ended is None or record.began <= self.ended):
            self.longest = max(self.longest, record.ended - record.began)


@dataclass
class Scenario:
    """A temporary home with its writers and its director."""

    seconds: float
    writers: int
    readers: int
    seed: int
    events: list[Event] = field(init=False, default_factory=list)
    faults: list[str] = field(init=False, default_factory=list)
    acknowledged: int = field(init=False, default=0)
    failed: int = field(init=False, default=0)
    longest: float = field(init=False, default=0.0)
    """Seconds of the longest write."""
    began: float = field(init=False, default=0.0)
    """0 until all workers are ready."""
    pid: int = field(init=False, default=0)
    """Process that serves, as far as the director knows."""
    keep: bool = field(init=False, default=False)
    """True if the home is kept after the block."""

    def __post_init__(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="hermes-actor-demo-")).resolve()
        self.paths = resolve_paths(self.home / "state.db")
        # An actor that nothing else ends exits by itself.
        idle_exit = os.environ.get("HERMES_ACTOR_IDLE_EXIT", "10")
        self.pool = WriterPool(
            self.paths.db,
            self.home / "records",
            seed=self.seed,
            environment={"HERMES_HOME": str(self.home), "HERMES_ACTOR_IDLE_EXIT": idle_exit},
            lifetime=2 * self.seconds + _LIFETIME_SECONDS,
        )
        self._rng = random.Random(self.seed)
        self._over = threading.Event()
        self._director = threading.Thread(target=self._direct, name="director", daemon=True)
        self._pids: list[int] = []

    # --- life ------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        # A second Ctrl-C must not leave anything behind.
        former = [(number, signal.signal(number, signal.SIG_IGN)) for number in _INTERRUPTS]
        try:
            self._over.set()
            self.pool.stop(2.0)
            end_actors(self.paths)
            # Again if an actor that ends was about to write something.
            for _ in range(0 if self.keep else 5):
                shutil.rmtree(self.home, ignore_errors=True)
                if not self.home.exists():
                    break
                time.sleep(0.1)
        finally:
            for number, handler in former:
                signal.signal(number, handler)

    def start(self) -> None:
        """Start the pool and the director.

        Raises ``TimeoutError`` if a worker is not ready, :class:`NotRunning` if no actor serves.
        """
        self.pool.add(self.writers, pause=_PAUSE_SECONDS)
        self.pool.add(self.readers, FOLLOW, prefix="reader-")
        self.pool.start()
        self._prepare_broken_build()
        self.pid = self._await_served()
        self.began = time.monotonic()
        self.pool.go()
        self._director.start()

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.began

    @property
    def running(self) -> bool:
        """True while the director is at work."""
        return self._director.is_alive()

    @property
    def now(self) -> Event | None:
        """The event that is under way, or ``None``."""
        return self.events[-1] if self.events and self.events[-1].ended is None else None

    def poll(self) -> int:
        """Read the new records; return how many writes were acknowledged since the last call."""
        new = self.pool.poll()
        events = self.events[-4:]  # a write that ends now did not begin before those
        for record in new:
            self.longest = max(self.longest, record.ended - record.began)
            for event in events:
                event.met(record)
        good = sum(record.outcome == "ok" for record in new)
        self.acknowledged += good
        self.failed += len(new) - good
        return good

    def finish(self) -> History:
        """Stop the workers and the actor in order, and compare the file with the records."""
        self._director.join(_SERVE_SECONDS)
        if code := self.pool.stop():
            self.faults.append(f"a worker has ended with {code}: {self.pool.last_words()[-300:]}")
        self.poll()
        end_actors(self.paths)
        return check(self.paths.db, self.pool.recorded)

    # --- the director ----------------------------------------------------------------------------

    def _direct(self) -> None:
        try:
            for at, kind, act in self._plan():
                late = self.elapsed - at
                if kind == "handoff" and late > _HANDOFF_EVERY_SECONDS:
                    continue  # they do not pile up on a slow machine
                if late > self.seconds + _SERVE_SECONDS:
                    raise TimeoutError("this machine is too slow for the show")
                if late < 0 and self._over.wait(-late):
                    return
                act()
                if self._over.wait(_BREATH_SECONDS):
                    return
            self._over.wait(max(0.0, self.seconds - self.elapsed))
        except Exception as error:
            if not self._over.is_set():
                self.faults.append(f"{type(error).__name__}: {error}")

    def _plan(self) -> list[tuple[float, str, Callable[[], None]]]:
        """Return the plan: a hand-off every second, and four faults in an order of the seed's."""
        faults = [self._kill, self._kill_in_handoff, self._term, self._break]
        self._rng.shuffle(faults)
        part = self.seconds / (len(faults) + 1)
        plan: list[tuple[float, str, Callable[[], None]]] = [
            (part * (n + 1) + self._rng.uniform(-0.2, 0.2) * part, "fault", act)
            for n, act in enumerate(faults)
        ]
        at = _HANDOFF_EVERY_SECONDS
        while at < self.seconds:
            plan.append((at, "handoff", self._hand_off))
            at += _HANDOFF_EVERY_SECONDS
        return sorted(plan, key=lambda step: step[0])

    def _begin(self, kind: str, what: str) -> Event:
        self.events.append(Event(kind, what, time.monotonic()))
        return self.events[-1]

    def _end(self, event: Event, outcome: str, *, good: bool = True) -> None:
        event.outcome, event.good, event.ended = outcome, good, time.monotonic()
        if not good and not self._over.is_set():
            self.faults.append(f"{event.what}: {outcome}")

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

    def done(self, kind: str) -> int:
        """Return how many events of a kind have ended well."""
        return sum(e.kind == kind and e.good and e.ended is not None for e in self.events)

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


_INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def end_actors(paths: StorePaths) -> None:
    """End the actors of a store, one after the other, until its owner lock is free.

    Returns when they are gone, or after 20 s.
    """
    give_up = time.monotonic() + 2 * _END_SECONDS
    while (pid := lock_holder(paths)) is not None and time.monotonic() < give_up:
        with ProcessEnd(pid) as end:
            for number in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
                if end.wait(_END_SECONDS):
                    break
