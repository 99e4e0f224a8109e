"""The successor's side of a hand-off: prepare without touching anything, wait, take over.

Until the descriptors arrive an end of the old actor is our end. Once they are here we hold the
lock and go on to serve, whatever becomes of the old actor.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import TYPE_CHECKING, NamedTuple

from hermes_actor import failpoints, limits
from hermes_actor.build import build_id
from hermes_actor.errors import HandoffFailed
from hermes_actor.paths import readable
from hermes_actor.sqlite import connect_reader, sqlite3
from hermes_actor.store.schema import OWN_FORMAT
from hermes_protocol.framing import FrameBuffer, frame
from hermes_protocol.handoff import (
    CannotTakeOver,
    Ready,
    Serving,
    Settled,
    SuccessorMessage,
    TakeOver,
    TakingOver,
    next_take_over,
)
from hermes_protocol.messages import PROTOCOL

if TYPE_CHECKING:
    from hermes_actor.paths import StorePaths
    from hermes_protocol.status import PhaseReport

__all__ = ["PredecessorLink", "ReceivedDescriptors", "check_file"]


class ReceivedDescriptors(NamedTuple):
    """What a successor gets."""

    listener: socket.socket
    lock: int
    message: TakeOver


class PredecessorLink:
    """The connection to the old actor."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        self._channel = socket.socket(fileno=descriptor)

    def inherit(self) -> ReceivedDescriptors:
        """Say that we are ready, and wait. Raises :class:`HandoffFailed` if it is called off."""
        failpoints.hit("successor.start")
        self._say(Ready(build=build_id(), pid=os.getpid(), oldest=PROTOCOL, newest=PROTOCOL))
        buffer, descriptors = FrameBuffer(limits.FRAME_MAX_BYTES), list[int]()
        while (message := next_take_over(buffer)) is None:
            data, received, _, _ = socket.recv_fds(self._channel, limits.RECEIVE_BYTES, 2)
            descriptors += received
            for descriptor in received:
                os.set_inheritable(descriptor, False)
            if not data:
                raise HandoffFailed("the old actor has ended before it handed over")
            buffer.feed(data)
        failpoints.hit("successor.inherit")
        listener, lock = descriptors
        return ReceivedDescriptors(socket.socket(fileno=listener), lock, message)

    def tell_phase(self, phase: PhaseReport) -> None:
        self._say(TakingOver(phase=readable(phase.text)))

    def tell_serving(self, epoch: int) -> None:
        failpoints.hit("successor.serving")
        self._say(Serving(epoch=epoch))
        failpoints.hit("successor.notified")

    def tell_failed(self, error: BaseException) -> None:
        code = getattr(error, "code", "error")
        self._say(CannotTakeOver(code=code, message=readable(error)))

    def dismiss(self) -> None:
        """Have it gone before we end or hand over ourselves: two must not take back.

        Raises :class:`HandoffFailed` if it does not go.
        """
        self._say(Settled())
        self._channel.settimeout(limits.SUCCESSOR_SERVING_SECONDS)
        try:
            while self._channel.recv(limits.RECEIVE_BYTES):
                pass
        except TimeoutError as error:
            raise HandoffFailed("the actor before this one is still there and stopped") from error
        except OSError:
            pass
        self._channel.close()

    def _say(self, message: SuccessorMessage) -> None:
        # If it is gone, nobody needs to know.
        with contextlib.suppress(OSError):
            self._channel.sendall(frame(message))


def check_file(paths: StorePaths) -> None:
    """Look at the file, read-only, while its owner serves it: can this build own it at all?"""
    try:
        with contextlib.closing(connect_reader(paths.db)) as conn:
            rows = conn.execute(
                "SELECT value FROM hermes_actor_meta WHERE key = 'format'"
            ).fetchall()
    except sqlite3.Error as error:
        raise HandoffFailed(f"{paths.db} cannot be read: {error}") from error
    if rows and rows[0][0] > OWN_FORMAT:
        raise HandoffFailed(
            f"{paths.db} has format {rows[0][0]}; this build knows {OWN_FORMAT} and older"
        )
