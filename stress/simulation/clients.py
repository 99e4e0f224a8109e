"""A simulated client: the product's half of the conversation, and what it remembers."""

from __future__ import annotations

import contextlib
import zlib
from typing import TYPE_CHECKING, Any

import msgspec
import trio
from harness.client import look

import hermes_protocol.messages as wire
from hermes_actor import limits
from hermes_actor.client.protocol import client_protocol, encode
from hermes_actor.sqlite import connect_reader, sqlite3
from hermes_actor.testing.history import NEVER, Read, Write
from hermes_actor.testing.records import SOURCE
from hermes_protocol.client import PendingReply
from hermes_protocol.operations import MessageAppend, MessageRow, SessionCreate

if TYPE_CHECKING:
    from hermes_protocol.operations import Operation
    from simulation.world import Link, World

__all__ = ["Client"]

READ_TRIES = 40
"""A reader that comes while no process owns the file tries again, as the product's does."""


class Client:
    """Runs the steps of one client."""

    def __init__(self, world: World, name: str, steps: list[list[Any]]) -> None:
        self._world, self._name, self._steps = world, name, steps
        self._protocol = client_protocol(name)
        # Not from the system: a run depends on its program alone.
        self._protocol.client_id = name.encode().ljust(16, b"-")
        self._link: Link | None = None
        self._changed = trio.Event()
        self._number = 0

    @property
    def pauses(self) -> float:
        """How long its program pauses in all."""
        return float(sum(step[1] for step in self._steps if step[0] == "pause"))

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._stay_connected)
            await self._begin()
            for kind, *arguments in self._steps:
                await getattr(self, f"_{kind}")(*arguments)
            nursery.cancel_scope.cancel()

    # --- the connection --------------------------------------------------------------------------

    async def _stay_connected(self) -> None:
        """Like the shells of the product: connect, and again, with growing pauses."""
        pause = limits.RECONNECT_FIRST_SECONDS
        while True:
            link = self._world.connect(self._hear)
            if link is None:
                await trio.sleep(pause)
                pause = min(2 * pause, limits.RECONNECT_MAX_SECONDS)
                continue
            pause = limits.RECONNECT_FIRST_SECONDS
            self._link = link
            link.send(self._protocol.hello())
            await link.run()
            self._link = None
            self._tell()
            await trio.sleep(pause)

    def _hear(self, data: bytes) -> None:
        welcomed = self._protocol.welcome is not None
        self._protocol.receive(data)
        if not welcomed and self._protocol.welcome is not None and self._link is not None:
            again = self._protocol.resend()
            if again:
                self._link.send(again)
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def _send(self, data: bytes) -> None:
        """Now, if that can be; otherwise it goes with what is sent again after Welcome."""
        protocol = self._protocol
        if self._link is not None and protocol.welcome is not None and not protocol.going_away:
            self._link.send(data)

    async def _done(self, reply: PendingReply) -> None:
        while not reply.done:
            await self._changed.wait()

    # --- steps -----------------------------------------------------------------------------------

    def _request(self, operation: Operation[Any]) -> PendingReply:
        encoded = encode(operation)
        assert encoded is not None
        reply, data = self._protocol.request(encoded, limits.DEFAULT_TIMEOUT_SECONDS)
        self._send(data)
        return reply

    async def _begin(self) -> None:
        """The session; it may be refused while the disk is full or locked."""
        session = SessionCreate(id=self._name, source=SOURCE, started_at=1.0)
        while True:
            reply = self._request(session)
            await self._done(reply)
            if reply.error is None:
                return
            await trio.sleep(1.0)

    async def _write(self, count: int, size: int, fault: list[Any] | None = None) -> None:
        replies = []
        for _ in range(count):
            self._number += 1
            text = f"{self._name} {self._number} {'x' * size}"
            row = MessageRow(role="user", timestamp=1.0, content=text)
            began = trio.current_time()
            replies.append(
                (
                    Write(
                        self._name, self._number, zlib.crc32(text.encode()), began, NEVER, "unknown"
                    ),
                    self._request(MessageAppend(session_id=self._name, message=row)),
                )
            )
            self._world.writes[self._name, self._number] = replies[-1][0]
        async with trio.open_nursery() as nursery:
            if fault is not None:
                nursery.start_soon(self._world.spoil, [fault])
            for write, reply in replies:
                await self._done(reply)
                self._answered(write, reply)

    def _answered(self, write: Write, reply: PendingReply) -> None:
        now = trio.current_time()
        if reply.error is None:
            result = msgspec.msgpack.decode(reply.result or b"\xc0")
            write = write._replace(ended=now, outcome="ok", place=reply.commit_no, result=result)
        elif getattr(reply.error, "executed", "unknown") == "no":
            write = write._replace(ended=now, outcome="failed")
        else:
            write = write._replace(ended=now)
        self._world.writes[write.client, write.number] = write
        self._world.note(write.client, write.number, write.outcome, write.place)

    async def _pause(self, seconds: float) -> None:
        await trio.sleep(seconds)

    async def _read(self) -> None:
        """What a reader sees now (G4)."""
        for _ in range(READ_TRIES):
            began = trio.current_time()
            try:
                with contextlib.closing(connect_reader(self._world.path)) as conn:
                    conn.execute("BEGIN")
                    seen = look(conn)
            except sqlite3.Error:
                await trio.sleep(0.05)
                continue
            if seen is not None:
                self._world.reads.append(Read(self._name, began, trio.current_time(), *seen))
            return
        self._world.errors.append(f"{self._name} could not read in {READ_TRIES} tries")

    async def _search(self) -> None:
        """Have the indexes brought up to date, and look whether they are."""
        through = self._newest()
        for _ in range(READ_TRIES):
            if self._link is None or self._protocol.welcome is None or self._protocol.going_away:
                await trio.sleep(0.25)
                continue
            reply, data = self._protocol.ask(lambda ask: wire.CatchUp(ask=ask, through=through))
            self._send(data)
            link = self._link
            while not reply.done and self._link is link:
                await self._changed.wait()
            if reply.done and reply.error is None:
                break
            self._protocol.abandon(reply)
            await trio.sleep(0.25)
        else:
            return  # faults were in the way all the time
        behind = self._behind(through)
        if behind:
            self._world.errors.append(f"searched up to {through}, but {behind} are not indexed")

    def _newest(self) -> int:
        return self._ask_file("SELECT COALESCE(MAX(id), 0) FROM messages")

    def _behind(self, through: int) -> int:
        return self._ask_file(
            "SELECT COUNT(*) FROM messages m WHERE m.id <= ? AND NOT EXISTS"
            " (SELECT 1 FROM messages_fts_docsize d WHERE d.id = m.id)",
            through,
        )

    def _ask_file(self, sql: str, *arguments: int) -> int:
        try:
            with contextlib.closing(connect_reader(self._world.path)) as conn:
                return int(conn.execute(sql, arguments).fetchone()[0])
        except sqlite3.Error:
            return 0
