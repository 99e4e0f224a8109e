"""Frames as no client would send them: good ones that were changed, cut, nested or made up."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from pathlib import Path

import msgspec

from hermes_actor.client.protocol import client_protocol
from hermes_actor.errors import HermesActorError
from hermes_protocol.framing import FrameBuffer, FrameError, OperationError, decode_operation
from hermes_protocol.server import ServerProtocol

__all__ = ["Mutations", "framed", "hostile_halves"]

_VECTORS = Path(__file__).resolve().parents[2] / "protocol" / "vectors"

_HEADERS = [
    b"\xdd\xff\xff\xff\xff",  # an array of four thousand million
    b"\xdf\xff\xff\xff\xff",  # a map
    b"\xc6\xff\xff\xff\xff",  # bytes
    b"\xdb\xff\xff\xff\xff",  # text
    b"\xc9\xff\xff\xff\xff\x01",  # an extension
]


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


class Mutations:
    """Draws bytes, the same for the same *rng*. The golden frames are where it begins.

    Those whose names begin with one of *without* are left out: what they ask for is allowed.
    """

    def __init__(self, rng: random.Random, without: tuple[str, ...] = ()) -> None:
        self._rng = rng
        files = [
            file for file in sorted(_VECTORS.glob("v*/*.bin")) if not file.name.startswith(without)
        ]
        assert files, f"no golden frames in {_VECTORS}"
        self._good = [file.read_bytes() for file in files]
        self._kinds = [self._changed] * 10 + [
            self._cut, self._noise, self._framed_noise, self._nested, self._lying_header,
            self._bad_text, self._glued,
        ]  # fmt: skip

    def draw(self) -> bytes:
        """Bytes for one connection: usually one frame, sometimes less or more."""
        return self._rng.choice(self._kinds)()

    def _one(self) -> bytes:
        return self._rng.choice(self._good)

    def _changed(self) -> bytes:
        """Some bytes of the body are others; the length still fits."""
        rng, data = self._rng, bytearray(self._one())
        for _ in range(rng.randrange(1, 5)):
            if len(data) > 4:
                data[rng.randrange(4, len(data))] = rng.randrange(256)
        return bytes(data)

    def _cut(self) -> bytes:
        data = self._one()
        return framed(data[4 : self._rng.randrange(4, len(data) + 1)])

    def _noise(self) -> bytes:
        return self._rng.randbytes(self._rng.randrange(1, 200))

    def _framed_noise(self) -> bytes:
        return framed(self._rng.randbytes(self._rng.randrange(200)))

    def _nested(self) -> bytes:
        # Mostly shallow: the deep ones take a thousand times as long and say the same.
        depth = self._rng.choice([1, 10, 100, 100, 100, 2_000])
        return framed(self._rng.choice([b"\x91", b"\x81\xa1x"]) * depth + b"\xc0")

    def _lying_header(self) -> bytes:
        return framed(self._rng.choice(_HEADERS) + self._rng.randbytes(10))

    def _bad_text(self) -> bytes:
        key = self._rng.choice([b"t", b"op", b"build", b"name", b"code"])
        body = b"\x81" + msgspec.msgpack.encode(key.decode()) + b"\xa4\xff\xfe\xed\xa0"
        return framed(body)

    def _glued(self) -> bytes:
        return self._one() + self._one()[: self._rng.randrange(30)]


def hostile_halves() -> list[tuple[str, Callable[[bytes], None]]]:
    """Everything that reads bytes of a foreign process, each as a function that may not raise."""
    return [("actor", _actor), ("actor, greeted", _greeted), ("client", _client), ("writer", _op)]


_HELLO = framed(
    msgspec.msgpack.encode(
        {
            "t": "hello", "magic": "hermes-actor", "oldest": 1, "newest": 1, "features": [],
            "client_id": bytes(16), "name": "", "pid": 1, "build": "0",
        }
    )
)  # fmt: skip


def _actor(data: bytes) -> None:
    _exchange(ServerProtocol(), data)


def _greeted(data: bytes) -> None:
    protocol = ServerProtocol()
    protocol.feed(_HELLO)
    assert protocol.next_message() is not None
    _exchange(protocol, data)


def _exchange(protocol: ServerProtocol, data: bytes) -> None:
    protocol.feed(data)
    try:
        while protocol.next_message() is not None:
            pass
    except FrameError:
        pass


def _client(data: bytes) -> None:
    protocol = client_protocol("fuzz")
    protocol.hello()
    with contextlib.suppress(FrameError, HermesActorError):
        protocol.receive(data)


def _op(data: bytes) -> None:
    buffer = FrameBuffer(1 << 21)
    buffer.feed(data)
    try:
        while (body := buffer.next_body()) is not None:
            with contextlib.suppress(OperationError):
                decode_operation(body)
    except FrameError:
        pass
