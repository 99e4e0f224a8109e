"""The actor's end of a connection: a state machine without input or output.

It cuts the bytes of a client into messages and checks the order in which they may come. Anything
wrong with the bytes is a :class:`FrameError`, which ends that connection and nothing else.
"""

from __future__ import annotations

from enum import Enum
from typing import TypeAlias

import hermes_protocol.messages as wire
from hermes_protocol.framing import FrameBuffer, FrameError, decode_client

__all__ = ["ServerProtocol", "State", "WriterMessage"]

# One length: ids are keys of lanes and receipts, and must not become a way to store data.
_CLIENT_ID_BYTES = 16

_DEFAULT_FRAME_BYTES = wire.Limits().frame_bytes

WriterMessage: TypeAlias = (
    wire.Request | wire.LeaseOpen | wire.LeaseRun | wire.LeaseCommit | wire.LeaseRollback
)
"""Messages that become work of the writer."""


class State(Enum):
    """The state of a connection; decides which messages may come next."""

    AWAIT_HELLO = "no message has come yet"
    OPEN = "requests and asks"
    SUBSCRIBED = "changes go out; only status requests may come"
    CLOSED = "the client has sent Bye"


class ServerProtocol:
    """Decodes and checks the messages of one client."""

    def __init__(self, frame_max_bytes: int = _DEFAULT_FRAME_BYTES) -> None:
        self.state = State.AWAIT_HELLO
        self._buffer = FrameBuffer(frame_max_bytes)

    def feed(self, data: bytes) -> None:
        """Take bytes of the client. They are checked when a message is asked for."""
        self._buffer.feed(data)

    def needed(self) -> int | None:
        """Return the length of the next frame as soon as its header is here, else ``None``.

        Raises :class:`FrameError` if it is over the limit.
        """
        return self._buffer.needed()

    def next_message(self) -> wire.ClientMessage | None:
        """Return the next message if it is complete. Raises :class:`FrameError`."""
        # Taken out before it is checked: every error below ends the connection, so none is met
        # twice.
        body = self._buffer.next_body()
        if body is None:
            return None
        if self.state is State.CLOSED:
            raise FrameError("a frame after Bye")
        message = decode_client(body)
        if self.state is State.AWAIT_HELLO:
            self._check_hello(message)
            self.state = State.OPEN
        elif isinstance(message, wire.Hello):
            raise FrameError("a second Hello")
        elif isinstance(message, wire.Bye):
            self.state = State.CLOSED
        elif self.state is State.SUBSCRIBED and not isinstance(message, wire.StatusRequest):
            raise FrameError("a connection with a subscription carries nothing else")
        elif isinstance(message, wire.Subscribe):
            self.state = State.SUBSCRIBED
        return message

    def next_for_writer(self) -> WriterMessage | None:
        """Return the next message if it is whole and for the writer: a request, or a step of a
        lease; leave any other to next_message.

        For a thread that may handle these and nothing else. Bytes that cannot be decoded stay as
        well: the owner of the connection finds them, and ends it.
        """
        # Only looked at: any other must still be there, whole, for next_message().
        body = self._buffer.head()
        if body is None or self.state is not State.OPEN:
            return None
        try:
            message = decode_client(body)
        except FrameError:
            return None
        if not isinstance(message, WriterMessage):
            return None
        # Last, when nothing can be refused any more.
        self._buffer.drop_head()
        return message

    @property
    def is_between_frames(self) -> bool:
        """True if nothing is left of what was fed."""
        return not self._buffer

    @staticmethod
    def _check_hello(message: wire.ClientMessage) -> None:
        if not isinstance(message, wire.Hello) or message.magic != wire.MAGIC:
            raise FrameError("the first frame is not a Hello")
        if len(message.client_id) != _CLIENT_ID_BYTES:
            raise FrameError(f"a client id has {_CLIENT_ID_BYTES} bytes")
