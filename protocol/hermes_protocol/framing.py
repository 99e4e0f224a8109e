"""Frames: four bytes of length, big-endian, then one MessagePack map.

Nothing is decoded before its length is known and allowed, so a peer cannot make us hold more
than the limit. Any bytes may arrive; everything that is wrong with them is a
:class:`FrameError`, which ends the connection and nothing else.
"""

from __future__ import annotations

from typing import Any, TypeVar, Union

import msgspec

from hermes_protocol.decoders import decoder
from hermes_protocol.messages import ClientMessage, ServerMessage
from hermes_protocol.operations import OPERATIONS, Operation

__all__ = [
    "HEADER_BYTES",
    "REPLY_MAX_BYTES",
    "FrameBuffer",
    "FrameError",
    "OperationError",
    "decode",
    "decode_client",
    "decode_operation",
    "decode_server",
    "frame",
]

HEADER_BYTES = 4

REPLY_MAX_BYTES = 1 << 30
"""Largest frame that a client takes from its actor. SQLite's own limit for a value is near it, and
a client trusts the actor of its own user; the bound only keeps a stream of another protocol from
being collected for ever."""

M = TypeVar("M")

# Made once: to build a decoder of a union takes longer than to decode a request.
_encode = msgspec.msgpack.Encoder().encode
_client: msgspec.msgpack.Decoder[ClientMessage] = decoder(ClientMessage)
_server: msgspec.msgpack.Decoder[ServerMessage] = decoder(ServerMessage)
_operation: msgspec.msgpack.Decoder[Operation[Any]] = decoder(
    Union[OPERATIONS]  # noqa: UP007 - a union of a tuple has no other spelling
)


class FrameError(Exception):
    """The bytes of the peer are not a frame of this protocol."""


class OperationError(Exception):
    """The bytes are no operation that this side knows. The connection is not to blame."""


def frame(message: msgspec.Struct) -> bytes:
    """Return *message* as it goes on the wire. Raises :class:`OverflowError` from 4 GiB on."""
    body = _encode(message)
    # No frame is cut: the other end could not find the next one.
    return len(body).to_bytes(HEADER_BYTES, "big") + body


def decode_client(body: bytes) -> ClientMessage:
    """Return a message of a client. Raises :class:`FrameError`."""
    return decode(_client, body)


def decode_server(body: bytes) -> ServerMessage:
    """Return a message of an actor. Raises :class:`FrameError`."""
    return decode(_server, body)


def decode_operation(body: bytes | bytearray | msgspec.Raw) -> Operation[Any]:
    """Return the operation of a request. Raises :class:`OperationError`."""
    try:
        # Apart from the envelope: an operation of a newer client is refused by its number, and the
        # connection goes on (R4).
        return _operation.decode(body)
    except (ValueError, RecursionError) as error:
        if "'agents." in str(error):
            return _decode_agents(body)
        raise OperationError(str(error)) from error


def _decode_agents(body: bytes | bytearray | msgspec.Raw) -> Operation[Any]:
    """Return an operation of an agent store. Raises :class:`OperationError`."""
    # Late: only the actor of an agent store pays for them.
    from hermes_protocol.agents import DECODER

    try:
        return DECODER.decode(body)
    except (ValueError, RecursionError) as error:
        raise OperationError(str(error)) from error


def decode(decoder: msgspec.msgpack.Decoder[M], body: bytes) -> M:
    """Return one message. Raises :class:`FrameError`, whose text quotes nothing of *body*."""
    try:
        return decoder.decode(body)
    # Deep nesting is a RecursionError, bad UTF-8 and bad MessagePack are ValueErrors.
    except (ValueError, RecursionError) as error:
        words = str(error)
        if words.startswith("Invalid value"):
            words = "an unknown kind of message"
        raise FrameError(words) from error


class FrameBuffer:
    """Cuts a stream of bytes into bodies of frames."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        """Take bytes of the peer. Nothing is checked here; see :meth:`needed`."""
        self._buffer += data

    def needed(self) -> int | None:
        """Return the length of the frame at the head, ``None`` while its header is not complete.

        Raises :class:`FrameError` for a length over the limit, before any of it is kept.
        """
        if len(self._buffer) < HEADER_BYTES:
            return None
        length = int.from_bytes(self._buffer[:HEADER_BYTES], "big")
        # By the header alone: waiting for a frame of this length would mean to keep it.
        if length > self._max_bytes:
            raise FrameError(f"a frame of {length} bytes is over the limit of {self._max_bytes}")
        return length

    def head(self) -> bytes | None:
        """Return the body of the frame at the head if it is complete. It stays there."""
        length = self.needed()
        if length is None or len(self._buffer) < HEADER_BYTES + length:
            return None
        # Copied, because values that are decoded as Raw are views of it, and the buffer moves on.
        return bytes(self._buffer[HEADER_BYTES : HEADER_BYTES + length])

    def drop_head(self) -> None:
        """Remove the frame at the head, which is complete."""
        del self._buffer[: HEADER_BYTES + (self.needed() or 0)]

    def next_body(self) -> bytes | None:
        """Take out and return the body of the frame at the head if it is complete."""
        body = self.head()
        if body is not None:
            self.drop_head()
        return body

    def __len__(self) -> int:
        return len(self._buffer)
