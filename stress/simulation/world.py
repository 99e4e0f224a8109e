"""Simulated time, network and faults around a simulated actor; and the verdict.

One run is one :func:`simulate`: nothing in it depends on anything but its program.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import zlib
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple

import trio
import trio.testing
from disks.mutations import replace

from hermes_actor.sqlite import connect_reader, connect_writer, sqlite3
from hermes_actor.testing.history import Read, Write
from hermes_actor.testing.records import Recorded, final_state, judge
from simulation.actor import HOUR, Actor, ActorEnd, Disk
from simulation.programs import Program

__all__ = ["Link", "Verdict", "World", "simulate"]

SPAWN_SECONDS = 0.3
"""Between the end of an actor and the next one."""

CALM_SECONDS = 120.0
"""After the last fault every client must have an answer within this time."""

PROGRAM_SECONDS = 7200.0
"""How long a program may take beyond its pauses."""

LATENCIES = (0.0, 0.0, 0.0001, 0.0001, 0.002, 0.01, 0.05)
"""Seconds that bytes are on their way; drawn for each piece."""


class Verdict(NamedTuple):
    """What a run has shown."""

    violations: list[str]
    seconds: float
    """Of simulated time."""
    acknowledged: int
    lives: int
    """Periods of ownership."""
    trace: int
    """A digest of what happened when: the same for every run of one program."""


class Link:
    """One connection: bytes that travel in pieces and are lost when it breaks."""

    def __init__(self, world: World, actor: Actor, hear: Callable[[bytes], None]) -> None:
        self._world, self._hear = world, hear
        self._up = trio.open_memory_channel[bytes](float("inf"))
        self._down = trio.open_memory_channel[bytes](float("inf"))
        self._reported = bytearray()
        self._end = ActorEnd(actor, self._reported.extend)
        self.actor = actor
        self.scope = trio.CancelScope()

    def send(self, data: bytes) -> None:
        """By the client."""
        self._up[0].send_nowait(data)

    def flush(self) -> None:
        """What the actor has sent goes on its way."""
        if self._reported:
            self._down[0].send_nowait(bytes(self._reported))
            self._reported.clear()

    def close(self) -> None:
        """The actor ends in good order: what it has sent still arrives."""
        self.flush()
        self._down[0].close()

    async def run(self) -> None:
        """Carry bytes until the connection breaks or ends."""
        with self.scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._carry, self._up[1], self._arrived)
                await self._carry(self._down[1], self._hear)
                nursery.cancel_scope.cancel()

    def _arrived(self, data: bytes) -> None:
        if not self.actor.ended:
            self._end.receive(data)
            self.flush()
            self._world.news()

    async def _carry(
        self, pipe: trio.MemoryReceiveChannel[bytes], deliver: Callable[[bytes], None]
    ) -> None:
        chance = self._world.chance
        async for data in pipe:
            at = chance.randrange(len(data) + 1) if chance.random() < 0.3 else len(data)
            for piece in (data[:at], data[at:]):
                await trio.sleep(chance.choice(LATENCIES))
                if piece:
                    deliver(piece)


class World:
    """Everything that a program needs."""

    def __init__(self, program: Program, folder: Path) -> None:
        self.chance = random.Random(program.seed)
        self.disk = Disk()
        self.links: list[Link] = []
        self.writes: dict[tuple[str, int], Write] = {}
        self.reads: list[Read] = []
        self.errors: list[str] = []
        self.actor: Actor | None = None
        self.lives = 0
        self.calm = 0.0
        """When the last fault was over."""
        self.trace: list[tuple[Any, ...]] = []
        self._base, self._homes = folder, 0
        self._news = trio.Event()
        self._clock = 0.0
        self._stalled = 0.0
        self._over = False
        self.folder = self._new_home()

    def _new_home(self) -> Path:
        self._homes += 1
        home = self._base / f"home-{self._homes}"
        home.mkdir()
        return home

    @property
    def path(self) -> Path:
        return self.folder / "state.db"

    def news(self) -> None:
        self._news.set()
        self._news = trio.Event()

    def note(self, *what: Any) -> None:
        self.trace.append((round(trio.current_time(), 9), *what))

    def connect(self, hear: Callable[[bytes], None]) -> Link | None:
        """A connection, if there is an actor that has opened its file."""
        if self.actor is None or self.actor.ended or self.actor.writer is None:
            return None
        link = Link(self, self.actor, hear)
        self.links.append(link)
        return link

    # --- the actor in time -----------------------------------------------------------------------

    async def drive(self) -> None:
        """Run actor after actor, each for as long as it lives."""
        while not self._over or self.actor is not None:
            if self.actor is None:
                await trio.sleep(SPAWN_SECONDS)
                self.lives += 1
                self.actor = Actor(self.folder, lambda: self._clock, self.disk)
            await trio.sleep_until(max(self._stalled, trio.current_time()))
            await self._step(self.actor)

    async def _step(self, actor: Actor | None) -> None:
        if actor is None or actor is not self.actor:
            return
        self._clock = trio.current_time()
        actor.steps.step()
        for link in self.links:
            if link.actor is actor:
                link.flush()
        if actor.ended:
            self.bury()
            return
        with trio.move_on_at(actor.steps.wake):
            if actor.steps.listens:
                await self._news.wait()
            else:
                await trio.sleep_forever()

    def bury(self) -> None:
        """The actor has ended, or does so now."""
        actor = self.actor
        if actor is None:
            return
        torn = actor.killed or actor.broken
        self.note("end", "torn" if torn else "in order")
        home = self._new_home() if torn else self.folder
        actor.bury(home)
        if actor.failure is not None:
            self.errors.append(f"the actor has failed: {actor.failure!r}")
        self.actor, self.folder = None, home
        for link in self.links:
            if link.actor is actor:
                link.scope.cancel() if torn else link.close()
        self.links = [link for link in self.links if link.actor is not actor]
        self.news()

    # --- faults ----------------------------------------------------------------------------------

    async def spoil(self, faults: list[list[Any]]) -> None:
        """One fault after the other; those that last go on beside the next."""
        async with trio.open_nursery() as nursery:
            for after, kind, argument in faults:
                await trio.sleep(after)
                self.note("fault", kind)
                lasting = getattr(self, f"_{kind.replace(' ', '_')}")(argument)
                if lasting is not None:
                    nursery.start_soon(self._last, lasting)
        self.calm = max(self.calm, trio.current_time())

    async def _last(self, fault: Coroutine[Any, Any, None]) -> None:
        await fault

    def _kill(self, _argument: Any) -> None:
        if self.actor is not None:
            self.actor.killed = True
            self.bury()

    def _die_at(self, point: str) -> None:
        if self.actor is not None:
            self.actor.die_at = point

    def _drain(self, _argument: Any) -> None:
        if self.actor is not None:
            self.actor.stop()
            self.news()

    def _cut(self, number: int) -> None:
        if self.links:
            self.links.pop(number % len(self.links)).scope.cancel()

    def _stall(self, seconds: float) -> None:
        self._stalled = trio.current_time() + seconds

    def _failed_sync(self, _argument: Any) -> None:
        self.disk.sync_fails = True

    async def _full(self, seconds: float) -> None:
        self.disk.full = True
        await trio.sleep(seconds)
        self.disk.full = False

    async def _lock(self, seconds: float) -> None:
        await self._hold(connect_writer, "BEGIN IMMEDIATE", seconds)

    async def _pin(self, seconds: float) -> None:
        await self._hold(connect_reader, "BEGIN", seconds)

    async def _hold(self, connect: Callable[[Path], Any], sql: str, seconds: float) -> None:
        if not self.path.exists():
            return
        with contextlib.suppress(sqlite3.Error), contextlib.closing(connect(self.path)) as conn:
            conn.execute(sql)
            conn.execute("SELECT COUNT(*) FROM sqlite_master").fetchall()
            await trio.sleep(seconds)
            conn.execute("ROLLBACK")

    # --- the end ---------------------------------------------------------------------------------

    async def finish(self) -> None:
        """Drain the last actor."""
        self._over = True
        while self.actor is not None and self.actor.writer is None:
            await self._look_again()
        self._drain(None)
        while self.actor is not None:
            await self._look_again()

    async def _look_again(self) -> None:
        await trio.sleep(SPAWN_SECONDS)

    def verdict(self, calm: float) -> list[str]:
        recorded = Recorded(list(self.writes.values()), self.reads, [], [], [])
        with contextlib.closing(connect_reader(self.path)) as conn:
            found = judge(recorded, final_state(conn), calm=calm, timeout=CALM_SECONDS)
        return [*self.errors, *map(str, found)]


def simulate(program: Program, folder: Path) -> Verdict:
    """Run a program. The same program gives the same verdict, trace included."""
    from simulation.clients import Client

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    # Tasks that could run in any order do so in the order that the seed gives.
    replace(trio._core._run, "_ALLOW_DETERMINISTIC_SCHEDULING", True)
    trio._core._run._r.seed(program.seed)

    async def run() -> World:
        world = World(program, folder)
        async with trio.open_nursery() as actors:
            actors.start_soon(world.drive)
            clients = [Client(world, f"w{n}", steps) for n, steps in enumerate(program.clients)]
            longest = max(client.pauses for client in clients) + HOUR * len(program.faults)
            with trio.move_on_after(longest + PROGRAM_SECONDS) as timeout:
                async with trio.open_nursery() as nursery:
                    for client in clients:
                        nursery.start_soon(client.run)
                    nursery.start_soon(world.spoil, program.faults)
            if timeout.cancelled_caught:
                world.errors.append("stuck: a client has no answer long after the last fault")
            with trio.move_on_after(CALM_SECONDS) as timeout:
                await world.finish()
            if timeout.cancelled_caught:
                world.errors.append("stuck: the actor does not drain")
                world._kill(None)
            actors.cancel_scope.cancel()
        world.note("over")
        return world

    world = trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))
    acknowledged = sum(write.outcome == "ok" for write in world.writes.values())
    return Verdict(
        world.verdict(world.calm),
        world.trace[-1][0],
        acknowledged,
        world.lives,
        zlib.crc32(repr(world.trace).encode()),
    )
