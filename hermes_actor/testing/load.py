"""A load: writers and readers in a temporary home, what happens meanwhile, and the verdict.

Everything is bounded. Whatever happens, no process outlives the block of a :class:`Load`: workers
end with their standard input, actors are ended by the process id that their lock file names.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Self

from hermes_actor.paths import StorePaths, resolve_paths
from hermes_actor.system.lock_inspection import lock_holder, write_lock_holders
from hermes_actor.system.processes import ProcessEnd
from hermes_actor.testing.history import Write
from hermes_actor.testing.writer_pool import FOLLOW, WRITE, History, WriterPool, check

__all__ = ["Event", "Load", "Step", "end_actors"]

_JOIN_SECONDS = 30.0
_END_SECONDS = 10.0
"""A drain takes half of it at most."""
_PAUSE_SECONDS = 0.004
"""Mean pause of a writer between two writes: they are many, and none of them is a benchmark."""
_LIFETIME_SECONDS = 150.0
"""Besides twice the time of the load: a worker that is left behind ends by itself."""
_BREATH_SECONDS = 0.25
"""Between two events, so that each shows its own pause."""
_SUSPENDED_SECONDS = 6.0
"""More than the five seconds for which a program on ``sqlite3`` waits for a lock by default."""
_HOLDER_SECONDS, _LOOK_SECONDS = 1.0, 0.001
"""Search for a writer that holds the write lock, and the pause between two looks."""
_LARGE_WORDS, _LARGE_PAUSE_SECONDS = 60_000, 2.0
"""Texts of up to 400 kB, such as tools put out."""


@dataclass(slots=True)
class Event:
    """Something that is done to the actor, or to a writer. Times are of ``time.monotonic``."""

    kind: str
    """``handoff``, ``broken``, ``kill``, ``term`` or ``suspend``."""
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


Step = tuple[float, str, Callable[[], None]]
"""Seconds after the start, a kind, and the act."""


@dataclass
class Load:
    """A temporary home with its writers, its readers and its director."""

    seconds: float
    writers: int
    readers: int
    seed: int
    rough: bool = False
    """One more writer appends large texts, and a writer is suspended once."""
    events: list[Event] = field(init=False, default_factory=list)
    faults: list[str] = field(init=False, default_factory=list)
    acknowledged: int = field(init=False, default=0)
    failed: int = field(init=False, default=0)
    longest: float = field(init=False, default=0.0)
    """Seconds of the longest write. The one of a suspended writer does not count."""
    began: float = field(init=False, default=0.0)
    """0 until all workers are ready."""
    keep: bool = field(init=False, default=False)
    """True if the home is kept after the block."""

    title: ClassVar[str]
    work: ClassVar[str] = WRITE
    environment: ClassVar[Mapping[str, str]] = {}
    """Added to that of the workers."""

    def __post_init__(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="hermes-actor-demo-")).resolve()
        self.paths = resolve_paths(self.home / "state.db")
        # An actor that nothing else ends exits by itself.
        idle_exit = os.environ.get("HERMES_ACTOR_IDLE_EXIT", "10")
        self.pool = WriterPool(
            self.paths.db,
            self.home / "records",
            seed=self.seed,
            environment={
                "HERMES_HOME": str(self.home),
                "HERMES_ACTOR_IDLE_EXIT": idle_exit,
                **self.environment,
            },
            lifetime=2 * self.seconds + _LIFETIME_SECONDS,
        )
        self._rng = random.Random(self.seed)
        self._over = threading.Event()
        self._director = threading.Thread(target=self._direct, name="director", daemon=True)
        self._suspended: tuple[str, int, Event] | None = None
        self._spared: set[str] = set()

    # --- life ------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        # A second Ctrl-C must not leave anything behind.
        former = [(number, signal.signal(number, signal.SIG_IGN)) for number in _INTERRUPTS]
        try:
            self._over.set()
            self._resume()
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
        """Start the pool and the director. Raises ``TimeoutError`` if a worker is not ready."""
        self._prepare()
        self.pool.add(self.writers, self.work, pause=_PAUSE_SECONDS, report_pid=True)
        if self.rough:
            large = {"pause": _LARGE_PAUSE_SECONDS, "words": _LARGE_WORDS}
            self.pool.add(1, self.work, prefix="writer-large-", **large)
        self.pool.add(self.readers, FOLLOW, prefix="reader-")
        self.pool.start()
        self._make_ready()
        self.began = time.monotonic()
        self.pool.go()
        self._director.start()

    def _prepare(self) -> None:
        """Make what the workers need."""

    def _make_ready(self) -> None:
        """Wait for what else is needed, once the workers are there."""

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
        return next((event for event in reversed(self.events) if event.ended is None), None)

    @property
    def serving(self) -> str:
        """The process that writes the file."""
        return "every writer for itself"

    def poll(self) -> int:
        """Read the new records; return how many writes were acknowledged since the last call."""
        new = self.pool.poll()
        # A write that ends now did not begin before the last of those.
        events = [event for event in self.events[-4:] if event.kind != "suspend"]
        events += [event for event in self.events if event.kind == "suspend"]
        for record in new:
            if record.client in self._spared:
                continue
            self.longest = max(self.longest, record.ended - record.began)
            for event in events:
                event.met(record)
        good = sum(record.outcome == "ok" for record in new)
        self.acknowledged += good
        self.failed += len(new) - good
        return good

    def finish(self) -> History:
        """Stop the workers and the actor in order, and compare the file with the records."""
        self._director.join(_JOIN_SECONDS)
        self._resume()
        if code := self.pool.stop():
            self.faults.append(f"a worker has ended with {code}: {self.pool.last_words()[-300:]}")
        self.poll()
        end_actors(self.paths)
        return check(self.paths.db, self.pool.recorded)

    def done(self, kind: str) -> int:
        """Return how many events of a kind have ended well."""
        return sum(e.kind == kind and e.good and e.ended is not None for e in self.events)

    # --- the director ----------------------------------------------------------------------------

    def _direct(self) -> None:
        try:
            for at, kind, act in sorted(self._plan(), key=lambda step: step[0]):
                late = self.elapsed - at
                if self._too_late(kind, late):
                    continue
                if late < 0 and self._over.wait(-late):
                    return
                act()
                if self._over.wait(_BREATH_SECONDS):
                    return
            self._over.wait(max(0.0, self.seconds - self.elapsed))
        except Exception as error:
            if not self._over.is_set():
                self.faults.append(f"{type(error).__name__}: {error}")

    def _too_late(self, kind: str, late: float) -> bool:
        """Return True if a step is left out. Raises ``TimeoutError`` if all is lost."""
        return False

    def _plan(self) -> list[Step]:
        if not self.rough:
            return []
        at, lasts = 0.25 * self.seconds, min(_SUSPENDED_SECONDS, 0.5 * self.seconds)
        return [(at, "suspend", self._suspend), (at + lasts, "suspend", self._resume)]

    def _begin(self, kind: str, what: str) -> Event:
        self.events.append(Event(kind, what, time.monotonic()))
        return self.events[-1]

    def _end(self, event: Event, outcome: str, *, good: bool = True) -> None:
        event.outcome, event.good, event.ended = outcome, good, time.monotonic()
        if not good and not self._over.is_set():
            self.faults.append(f"{event.what}: {outcome}")

    # --- a suspended writer ----------------------------------------------------------------------

    def _suspend(self) -> None:
        """Stop a writer as a debugger or a full memory does: in its transaction, if it has one."""
        pids = {pid: name for name, pid in self.pool.recorded.reports.items()}
        give_up = time.monotonic() + _HOLDER_SECONDS
        chosen, holds = min(pids), False
        while not holds and time.monotonic() < give_up and not self._over.is_set():
            for holder in set(write_lock_holders(self.paths.shm)) & set(pids):
                os.kill(holder, signal.SIGSTOP)
                # It may have let go of the lock before it was stopped.
                if holder in write_lock_holders(self.paths.shm):
                    chosen, holds = holder, True
                    break
                os.kill(holder, signal.SIGCONT)
            time.sleep(_LOOK_SECONDS)
        if not holds:
            os.kill(chosen, signal.SIGSTOP)
        event = self._begin("suspend", "a writer suspended")
        event.outcome = f"{chosen}, {'in its transaction' if holds else 'which holds no lock'}"
        self._spared.add(pids[chosen])
        self._suspended = pids[chosen], chosen, event

    def _resume(self) -> None:
        if self._suspended is not None:
            _, pid, event = self._suspended
            self._suspended = None
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
            self._end(event, event.outcome)


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
