"""The messages between an actor and its successor.

The old actor starts its successor as a child, with one end of a socket pair. Both may be of
different builds, so this is as much a contract as the messages of clients: tags are never renamed,
fields are only added, with defaults.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec
from msgspec import Struct

from hermes_protocol.decoders import decoder
from hermes_protocol.framing import FrameBuffer, decode

__all__ = [
    "CannotTakeOver",
    "Ready",
    "Serving",
    "Settled",
    "SuccessorMessage",
    "TakeOver",
    "TakingOver",
    "decode_predecessor",
    "decode_successor",
    "next_successor_message",
    "next_take_over",
]


# Fields that this build does not know are ignored, which is the default of msgspec: the other side
# may be newer.
class _Message(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="t", tag="?"):
    pass


class Ready(_Message, frozen=True, kw_only=True, tag="successor.ready"):
    """The successor has imported all of its code, has inspected the file, and can take over."""

    build: str
    pid: int
    # A field that is not sent means 1 for ever, not the version that its reader speaks.
    oldest: int = 1
    newest: int = 1


# No descriptors among the fields: they travel beside the bytes (SCM_RIGHTS), and their numbers are
# those of the receiver.
class TakeOver(_Message, frozen=True, kw_only=True, tag="successor.take-over"):
    """The file is closed. Comes with two descriptors: the listener and the owner lock."""

    epoch: int
    commit_no: int
    pinned: bool = False
    """A person asked for this build although it is older: clients must not undo that."""


class TakingOver(_Message, frozen=True, kw_only=True, tag="successor.phase"):
    """Progress of the successor; a sign of life."""

    phase: str


class Serving(_Message, frozen=True, kw_only=True, tag="successor.serving"):
    """The successor serves."""

    epoch: int


class Settled(_Message, frozen=True, kw_only=True, tag="successor.settled"):
    """The successor is about to end or to hand over itself: the store may not be taken back now.

    The old actor answers by closing the connection.
    """


class CannotTakeOver(_Message, frozen=True, kw_only=True, tag="successor.failed"):
    """The successor cannot take over and exits. It has changed nothing."""

    code: str
    message: str


SuccessorMessage: TypeAlias = Ready | TakingOver | Serving | Settled | CannotTakeOver

_from_successor: msgspec.msgpack.Decoder[SuccessorMessage] = decoder(SuccessorMessage)
# One decoder for each direction: a message of the wrong side is an error and not a surprise.
_take_over: msgspec.msgpack.Decoder[TakeOver] = decoder(TakeOver)


def decode_successor(body: bytes) -> SuccessorMessage:
    """Decode a message of a successor. Raises :class:`FrameError`."""
    return decode(_from_successor, body)


def decode_predecessor(body: bytes) -> TakeOver:
    """Decode the message of the old actor. Raises :class:`FrameError`."""
    return decode(_take_over, body)


def next_successor_message(buffer: FrameBuffer) -> SuccessorMessage | None:
    """Return the next message of a successor if it is complete. Raises :class:`FrameError`."""
    body = buffer.next_body()
    return None if body is None else decode_successor(body)


def next_take_over(buffer: FrameBuffer) -> TakeOver | None:
    """Return the message of the old actor if it is complete. Raises :class:`FrameError`."""
    body = buffer.next_body()
    return None if body is None else decode_predecessor(body)
