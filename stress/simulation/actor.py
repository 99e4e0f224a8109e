"""A simulated actor: the product's protocol, request tracker, mailbox, engine loop and writer.

Everything that this programme knows about the inside of the actor is here. What is left out of the
product is sockets, signals and processes; their place is taken by bytes that :mod:`world` carries.
"""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from disks.mutations import replace

import hermes_actor.actor.requests
import hermes_protocol.messages as wire
from hermes_actor import limits
from hermes_actor.actor.mailbox import Mailbox
from hermes_actor.actor.metrics import Metrics
from hermes_actor.actor.replies import welcome
from hermes_actor.actor.requests import RequestTracker
from hermes_actor.engine.environment import Environment
from hermes_actor.engine.index.build_folder import BuildHere
from hermes_actor.engine.jobs import Job, LeaseStep, LeaseSteps, Stop
from hermes_actor.engine.loop import serve
from hermes_actor.engine.ownership import OwnerLock
from hermes_actor.engine.writer import Writer
from hermes_actor.errors import Closed, HermesActorError
from hermes_actor.paths import resolve_paths
from hermes_actor.sqlite import _connect, sqlite3
from hermes_protocol.framing import frame
from hermes_protocol.server import ServerProtocol
from simulation.lockstep import Killed, LockStep

if TYPE_CHECKING:
    from hermes_actor.sqlite import Connection

__all__ = ["Actor", "ActorEnd", "Disk"]

QUIET_LOOKS = 20
"""Looks of an idle writer at its files in a row; then the clock may jump by an hour at a time."""

HOUR = 3600.0

SLEEP_AT_LEAST_SECONDS = 0.02


class Disk:
    """Faults of the storage that are in force."""

    def __init__(self) -> None:
        self.full = False
        self.sync_fails = False

    def refuse(self, sql: str) -> None:
        """Raise what SQLite would, if *sql* cannot be done now."""
        if sql != "COMMIT" or not (self.full or self.sync_fails):
            return
        code = sqlite3.SQLITE_FULL if self.full else sqlite3.SQLITE_IOERR_FSYNC
        words = "database or disk is full" if self.full else "disk I/O error"
        error = sqlite3.OperationalError(words)
        error.sqlite_errorcode, error.sqlite_errorname = code, "SQLITE_SIMULATED"
        self.sync_fails = False
        raise error


class _Refusing:
    """A connection on a disk with faults."""

    def __init__(self, conn: Connection, disk: Disk) -> None:
        object.__setattr__(self, "_conn", conn)
        object.__setattr__(self, "_disk", disk)

    def execute(self, sql: str, *arguments: Any) -> Any:
        self._disk.refuse(sql)
        return self._conn.execute(sql, *arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._conn, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._conn, name, value)


class Actor:
    """One process that owns the store, from its start to its end."""

    def __init__(
        self, folder: Path, now: Callable[[], float], disk: Disk, die_at: str | None = None
    ) -> None:
        """*now* is simulated time; *die_at* names the failpoint at which the process is killed."""
        self.paths = resolve_paths(folder / "state.db")
        self.mailbox = Mailbox()
        self.writer: Writer | None = None
        self.broken = False
        self.killed = False
        self.die_at = die_at
        self.ends: list[ActorEnd] = []
        self._disk = disk
        self._connections: list[Connection] = []
        self._now, self._looks, self._quiet = now, 0, 0
        replace(hermes_actor.actor.requests, "time", SimpleNamespace(monotonic=now))
        self._lock = OwnerLock.acquire(self.paths)
        self.steps = LockStep(self._life)

    # --- in its thread ---------------------------------------------------------------------------

    def _life(self) -> None:
        try:
            self.writer = Writer(self.paths, self._env(), others_wait=self.mailbox.waiting)
            self.writer.recover(limits.RECOVER_AT_START_SECONDS)
            serve(self.writer, self, on_broken=self._stop_at_once, clock=self._monotonic)
        except Killed:
            self.killed = True
            raise

    def _env(self) -> Environment:
        return Environment(
            monotonic=self._monotonic,
            sleep=self._sleep,
            connect_writer=self._connect,
            start=lambda work: work(),
            start_builder=BuildHere,
            failpoint=self._failpoint,
        )

    def _connect(self, path: Path) -> Connection:
        # Closed by the other thread when the process is gone.
        conn = _connect(path, "rw", check_same_thread=False)
        self._connections.append(conn)
        return cast("Connection", _Refusing(conn, self._disk))

    def _sleep(self, seconds: float) -> None:
        # A system may let a process sleep longer; many short sleeps would only take real time.
        until = self._now() + max(seconds, SLEEP_AT_LEAST_SECONDS)
        self.steps.wait(until, listens=False)

    def _monotonic(self) -> float:
        # Looking at a clock takes time, too: loops that wait for it to pass must end.
        self._looks += 1
        return self._now() + self._looks * 1e-9

    def _failpoint(self, name: str) -> None:
        if name == self.die_at:
            self.killed = True
            raise Killed

    def _stop_at_once(self) -> None:
        """R2, R3, R5: nothing that is answered from here on leaves the process."""
        self.broken = True
        raise Killed

    def take(self, timeout: float | None) -> list[Job]:
        """The source of the engine's loop."""
        jobs = self.mailbox.take(0)
        self._quiet = 0 if jobs else self._quiet + 1
        if jobs or timeout == 0:
            return jobs
        if self._quiet > QUIET_LOOKS and timeout == limits.FOREIGN_LOOK_SECONDS:
            timeout = HOUR
        self.steps.wait(self._now() + (HOUR if timeout is None else timeout), listens=True)
        return self.mailbox.take(0)

    def take_step(self, steps: LeaseSteps, timeout: float) -> LeaseStep | None:
        raise NotImplementedError("no client of a simulation opens a lease")

    def waiting(self) -> bool:
        return self.mailbox.waiting()

    # --- by the world ----------------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        return self.steps.ended

    @property
    def serves(self) -> bool:
        return self.writer is not None and not self.ended and self.writer.connection.recovered

    def stop(self) -> None:
        """Drain: everything that was admitted is finished, then the file is closed."""
        for end in self.ends:
            end.go_away()
        self.mailbox.put_last(Stop(lambda _outcome: None))

    def bury(self, folder: Path) -> None:
        """The process is gone. If it was killed, its files go on as the page cache has them."""
        self.steps.kill()
        if self.killed or self.broken:
            for file in self.paths.db.parent.glob("state.db*"):
                if not file.name.endswith("-shm"):
                    shutil.copy(file, folder / file.name)
            folder.joinpath(".state.db.actor").mkdir(mode=0o700, exist_ok=True)
            if self.paths.fsync_failed.exists():
                resolve_paths(folder / "state.db").fsync_failed.touch()
        for conn in self._connections:
            conn.close()
        self._lock.release()

    @property
    def failure(self) -> BaseException | None:
        """Why it has ended by itself, if that is no part of the programme."""
        error = self.steps.error
        return None if isinstance(error, Killed | HermesActorError) else error


class ActorEnd:
    """The actor's end of one connection."""

    def __init__(self, actor: Actor, send: Callable[[bytes], None]) -> None:
        self._actor = actor
        self._protocol = ServerProtocol()
        self._listening = True
        self._send = send
        self.requests = RequestTracker(actor.mailbox, Metrics(), self, deque[ActorEnd]())
        actor.ends.append(self)

    def add(self, data: bytes) -> None:
        """Send a reply, as an outbox does."""
        if not self._actor.broken and not self._actor.killed:
            self._send(data)

    def receive(self, data: bytes) -> None:
        """Bytes of the client. Raises :class:`FrameError` for bytes that make no sense."""
        if not self._listening:
            return
        self._protocol.feed(data)
        while (message := self._protocol.next_message()) is not None:
            if isinstance(message, wire.Hello):
                self._greet(message)
            elif isinstance(message, wire.Request):
                job = self.requests.admit(message, lambda: None)
                self._actor.mailbox.put(self.requests.client_id, job)
            elif isinstance(message, wire.CatchUp):
                self.requests.catch_up(message, lambda: None)

    def _greet(self, hello: wire.Hello) -> None:
        writer = self._actor.writer
        assert writer is not None
        for older in self._actor.ends:
            if older is not self and older.requests.client_id == hello.client_id:
                older.supersede()
        self.requests.client_id = hello.client_id
        self.requests.floor = writer.commit_no
        self._send(
            welcome(
                "serving",
                epoch=writer.epoch,
                file_id=writer.connection.file_id,
                commit_no=writer.commit_no,
                ready=True,
            )
        )

    def supersede(self) -> None:
        """A newer connection of the client has come: forget what was not taken."""
        self._listening = False
        self._send = lambda _data: None
        for job in self._actor.mailbox.drop(self.requests.client_id):
            job.give_up(Closed("superseded by a newer connection"))

    def go_away(self) -> None:
        self._listening = False
        self.add(frame(wire.GoAway(last_seq=self.requests.highest_seq, reason="drain")))
