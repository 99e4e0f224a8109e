"""A client that speaks the protocol by hand: maps and bytes, without any help of the product."""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Self

import msgspec

from hermes_protocol.status import Status
from support.actors import socket_of, wait_for

SECONDS = 30.0
"""How long a test waits for the actor before it fails. No test measures time."""


def frame(message: Any) -> bytes:
    """One value as it goes on the wire."""
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(4, "big") + body


def hello(client_id: bytes, **changes: Any) -> dict[str, Any]:
    return {
        "t": "hello",
        "magic": "hermes-actor",
        "oldest": 1,
        "newest": 1,
        "features": [],
        "client_id": client_id,
        "name": "by hand",
        "pid": os.getpid(),
        "build": "0",
        **changes,
    }


def request(seq: int, operation: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A request as it is sent; *timeout* has another name on the wire."""
    if "timeout" in fields:
        fields["patience"] = fields.pop("timeout")
    return {"t": "request", "seq": seq, "operation": operation, **fields}


def create(session: str) -> dict[str, Any]:
    return {"op": "session.create", "id": session, "source": "cli", "started_at": 1.0}


def append(session: str, content: str, **columns: Any) -> dict[str, Any]:
    message = {"role": "user", "timestamp": 1.0, "content": content, **columns}
    return {"op": "message.append", "session_id": session, "message": message}


def insert(session: str, content: str) -> dict[str, Any]:
    """Return the change of a program that appends a row to a plain file of a history."""
    sql = "INSERT INTO messages (session_id, content, source) VALUES (?, ?, 'cli')"
    return {"op": "sql.run", "steps": [{"sql": sql, "parameters": [session, content]}]}


def select(sql: str) -> dict[str, Any]:
    return {"op": "sql.statement", "sql": sql}


@contextmanager
def address(path: Path) -> Iterator[str]:
    place = socket_of(path)
    folder = os.open(place.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{place.name}"
    finally:
        os.close(folder)


def connect(path: Path) -> socket.socket:
    """A bare connection to the actor of a store."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(SECONDS)
    try:
        with address(path) as where:
            sock.connect(where)
    except BaseException:
        sock.close()
        raise
    return sock


class Wire:
    """One connection. Says Hello and waits for Welcome, unless *greet* is false."""

    def __init__(self, path: Path, client_id: bytes | None = None, *, greet: bool = True) -> None:
        self.client_id = os.urandom(16) if client_id is None else client_id
        self.sock = connect(path)
        self.welcome: dict[str, Any] | None = None
        self._received = bytearray()
        if greet:
            try:
                self.send(hello(self.client_id))
                self.welcome = self.expect_welcome()
            except BaseException:
                self.close()
                raise

    def expect_welcome(self) -> dict[str, Any]:
        """The Welcome of an actor that has opened its file; earlier ones only tell its phase."""
        while True:
            message = self.receive()
            assert message is not None, "the actor closed instead of saying Welcome"
            assert message["t"] == "welcome", message
            if message.get("ready", True):
                return message

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.sock.close()

    def send(self, *messages: Any) -> None:
        """Send maps, or bytes as they are."""
        self.sock.sendall(b"".join(m if isinstance(m, bytes) else frame(m) for m in messages))

    def receive(self) -> dict[str, Any] | None:
        """The next message; ``None`` at the end of the stream."""
        while True:
            message = self.take()
            if message is not None:
                return message
            try:
                data = self.sock.recv(1 << 20)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self.feed(data)

    def feed(self, data: bytes) -> None:
        self._received += data

    def take(self) -> dict[str, Any] | None:
        """The next message among the bytes that are here."""
        length = int.from_bytes(self._received[:4], "big")
        if len(self._received) < 4 or len(self._received) < 4 + length:
            return None
        message: dict[str, Any] = msgspec.msgpack.decode(self._received[4 : 4 + length])
        del self._received[: 4 + length]
        return message

    def answer(self, number: int) -> dict[str, Any]:
        """The answer with this ``seq`` or ``ask``; others that come before it are dropped."""
        while True:
            message = self.receive()
            assert message is not None, f"the connection ended before the answer to {number}"
            if number in (message.get("seq"), message.get("ask")):
                return message

    def do(self, seq: int, operation: dict[str, Any], **fields: Any) -> dict[str, Any]:
        """Send one request and wait for its answer."""
        self.send(request(seq, operation, **fields))
        return self.answer(seq)

    def status(self) -> Status:
        self.send({"t": "status", "ask": -1})
        return Status.from_document(json.loads(self.answer(-1)["status"]))

    def until_end(self) -> list[dict[str, Any]]:
        """Everything that still comes, until the actor closes."""
        return list(iter(self.receive, None))


def status(path: Path) -> Status:
    """How the actor is, asked on a connection of its own, which is in the answer too."""
    with closing(Wire(path)) as wire:
        return wire.status()


def admitted(path: Path) -> int:
    """How many requests the actor has read from those who are connected."""
    return sum(connection.requests for connection in status(path).connections)


def keep_writer_busy(path: Path, wire: Wire) -> None:
    """While a foreign lock is held: have the writer take the first request of *wire*, and nothing
    else. What comes then waits together."""
    before = admitted(path)
    wire.send(request(1, create("other"), timeout=60.0))
    wait_for(lambda: admitted(path) > before and status(path).queue.count == 0)
