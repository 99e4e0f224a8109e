"""The actor's half of a conversation, without any input or output.

It cuts the bytes of a client into messages, holds the client to the order in which they may come,
and makes the frames that answer them. Whatever is wrong with the bytes is a :class:`FrameError`,
which ends that conversation and nothing else (R4).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from enum import Enum
from typing import Any

import msgspec

import hermes_protocol.messages as wire
from hermes_actor import limits
from hermes_actor.build import build_id
from hermes_actor.errors import HermesActorError, IndexBehind
from hermes_actor.paths import readable
from hermes_actor.store.schema import SCHEMA_VERSION
from hermes_protocol.framing import FrameBuffer, FrameError, decode_client, frame

__all__ = ["Conversation", "State", "done", "failed", "ok", "reject", "welcome"]

_CLIENT_ID_BYTES = 16

_encode = msgspec.msgpack.Encoder().encode

_log = logging.getLogger("hermes_actor.actor")


class State(Enum):
    """Where a conversation is."""

    STRANGER = "nothing was said yet"
    OPEN = "requests and asks"
    FOLLOWING = "changes go out; asks still come in"
    OVER = "the client has said good-bye"


class Conversation:
    """Decodes and checks what one client says."""

    def __init__(self, frame_max_bytes: int = limits.FRAME_MAX_BYTES) -> None:
        self.state = State.STRANGER
        self._buffer = FrameBuffer(frame_max_bytes)

    def feed(self, data: bytes) -> None:
        self._buffer.feed(data)

    def needed(self) -> int | None:
        """The length of the next frame as soon as its header is here: its price in credit."""
        return self._buffer.needed()

    def next_message(self) -> wire.ClientMessage | None:
        """The next message if it is complete. Raises :class:`FrameError`."""
        body = self._buffer.next_body()
        if body is None:
            return None
        if self.state is State.OVER:
            raise FrameError("a frame after Bye")
        message = decode_client(body)
        if self.state is State.STRANGER:
            self._check_hello(message)
            self.state = State.OPEN
        elif isinstance(message, wire.Hello):
            raise FrameError("a second Hello")
        elif isinstance(message, wire.Bye):
            self.state = State.OVER
        elif self.state is State.FOLLOWING and not isinstance(message, wire.StatusRequest):
            raise FrameError("a connection that follows changes carries nothing else")
        elif isinstance(message, wire.Subscribe):
            self.state = State.FOLLOWING
        return message

    def next_request(self) -> wire.Request | None:
        """The next message if it is a whole request. Anything else is left to next_message."""
        body = self._buffer.head()
        if body is None or self.state is not State.OPEN:
            return None
        try:
            message = decode_client(body)
        except FrameError:
            return None
        if not isinstance(message, wire.Request):
            return None
        self._buffer.drop_head()
        return message

    @property
    def is_between_frames(self) -> bool:
        """Whether nothing is left of what was fed."""
        return not self._buffer

    @staticmethod
    def _check_hello(message: wire.ClientMessage) -> None:
        if not isinstance(message, wire.Hello) or message.magic != wire.MAGIC:
            raise FrameError("the first frame is not a Hello")
        if len(message.client_id) != _CLIENT_ID_BYTES:
            raise FrameError(f"a client id has {_CLIENT_ID_BYTES} bytes")


# --- the frames that answer ----------------------------------------------------------------------


def welcome(
    phase: str, *, epoch: int = 0, file_id: bytes = b"", commit_no: int = 0, ready: bool
) -> bytes:
    return frame(
        wire.Welcome(
            protocol=wire.PROTOCOL,
            phase=readable(phase),
            epoch=epoch,
            file_id=file_id,
            limits=wire.Limits(window=limits.WINDOW_REQUESTS, frame_bytes=limits.FRAME_MAX_BYTES),
            durability="fsync",
            schema_version=SCHEMA_VERSION,
            build=build_id(),
            pid=os.getpid(),
            commit_no=commit_no,
            ready=ready,
        )
    )


def reject(error: BaseException) -> bytes:
    code, words = getattr(error, "code", "error"), getattr(error, "words", None)
    return frame(
        wire.Reject(
            code=code,
            message=readable(str(error)),
            oldest=wire.PROTOCOL,
            newest=wire.PROTOCOL,
            words=None if words is None else readable(words),
        )
    )


def ok(seq: int, commit_no: int | None, result: Any) -> bytes:
    """Upkeep has no place in the order of changes; it is answered with number 0."""
    if commit_no is None:
        return frame(wire.Ok(seq=seq, commit_no=0))
    return _or_failed(seq, lambda: wire.Ok(seq=seq, commit_no=commit_no, result=result))


def done(ask: int, result: Any = None) -> bytes:
    return _or_failed(ask, lambda: wire.Done(ask=ask, result=msgspec.Raw(_encode(result))))


def _or_failed(number: int, make: Callable[[], msgspec.Struct]) -> bytes:
    """An answer that cannot be framed (4 GiB, a value without an encoding) becomes an error.

    What was asked for has been done: the error says so.
    """
    try:
        return frame(make())
    except Exception as error:
        _log.exception("an answer could not be encoded")
        lost = HermesActorError(f"it was executed; its answer cannot be sent: {error}")
        lost.executed = "yes"
        return failed(number, lost)


def failed(number: int, error: BaseException) -> bytes:
    """The refusal of a request (by its seq) or of an ask (by its negative number)."""
    message = readable(str(error))
    if isinstance(error, IndexBehind):
        return frame(
            wire.Failed(
                seq=number, code=error.code, message=message, done=error.done, total=error.total
            )
        )
    if isinstance(error, HermesActorError):
        return frame(
            wire.Failed(
                seq=number,
                code=error.code,
                message=message,
                executed=error.executed,
                words=readable(error.words),
            )
        )
    code = "bad-value" if isinstance(error, ValueError | TypeError | OverflowError) else "error"
    return frame(wire.Failed(seq=number, code=code, message=f"{type(error).__name__}: {message}"))
