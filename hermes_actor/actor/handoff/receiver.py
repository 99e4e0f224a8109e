"""The successor's side of a hand-off: prepare without touching anything, wait, take over.

Until the descriptors arrive, an exit of the predecessor ends the successor. Once they are here it
holds the lock and continues to serve, whatever becomes of the predecessor.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import TYPE_CHECKING, NamedTuple

from hermes_actor import failpoints, limits
from hermes_actor.build import build_id
from hermes_actor.engine.kinds import NEWEST_FORMAT
from hermes_actor.errors import HandoffFailed
from hermes_actor.paths import readable
from hermes_actor.sqlite import connect_reader, sqlite3
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
    """The descriptors and the message that come with them."""

    listener: socket.socket
    lock: int
    message: TakeOver


class PredecessorLink:
    """The connection to the predecessor; also the listener for this actor's readiness."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        self._channel = socket.socket(fileno=descriptor)
        self._epoch = 0

    def receive(self) -> ReceivedDescriptors:
        """Report ready, and wait for the descriptors. Raises :class:`HandoffFailed`."""
        failpoints.hit("successor.start")
        self._send(Ready(build=build_id(), pid=os.getpid(), oldest=PROTOCOL, newest=PROTOCOL))
        # Collected apart from the bytes: descriptors come with the first of them, and a frame may
        # come in parts.
        buffer, descriptors = FrameBuffer(limits.FRAME_MAX_BYTES), list[int]()
        while (message := next_take_over(buffer)) is None:
            data, received, _, _ = socket.recv_fds(self._channel, limits.RECEIVE_BYTES, 2)
            descriptors += received
            for descriptor in received:
                # Not the default of recv_fds. A copy of the lock in a child would keep the file
                # owned after this process has ended.
                os.set_inheritable(descriptor, False)
            if not data:
                raise HandoffFailed("the predecessor exited before it handed over")
            buffer.feed(data)
        failpoints.hit("successor.inherit")
        listener, lock = descriptors
        self._epoch = message.epoch + 1
        # The listener needs no setblocking(): the flag belongs to the open file description, which
        # both processes share.
        return ReceivedDescriptors(socket.socket(fileno=listener), lock, message)

    def report_phase(self, phase: PhaseReport) -> None:
        """Report that the opening takes a while: a sign of life, which gives it more time."""
        self._send(TakingOver(phase=readable(phase.text)))

    def report_serving(self) -> None:
        """Report that this actor serves; the predecessor then watches it for a while."""
        failpoints.hit("successor.serving")
        self._send(Serving(epoch=self._epoch))
        failpoints.hit("successor.notified")

    def report_failed(self, error: BaseException) -> None:
        """Report that this actor will not serve, and has changed nothing."""
        code = getattr(error, "code", "error")
        self._send(CannotTakeOver(code=code, message=readable(error)))

    def release_predecessor(self) -> None:
        """Have the predecessor exit, before this actor ends or hands over itself: never may two
        processes take back.

        Raises :class:`HandoffFailed` if it does not exit.
        """
        self._send(Settled())
        # The end of the stream is the answer: the channel of the predecessor closes with its
        # process, so after it there is no second process that could take back.
        self._channel.settimeout(limits.SUCCESSOR_SERVING_SECONDS)
        try:
            while self._channel.recv(limits.RECEIVE_BYTES):
                pass
        except TimeoutError as error:
            raise HandoffFailed(
                f"the predecessor has not exited within {limits.SUCCESSOR_SERVING_SECONDS:g} s; it"
                f" may be stopped (SIGSTOP)"
            ) from error
        # Reset instead of closed in order: the process is gone as well.
        except OSError:
            pass
        self._channel.close()

    def _send(self, message: SuccessorMessage) -> None:
        # A predecessor that has exited needs no report.
        with contextlib.suppress(OSError):
            self._channel.sendall(frame(message))


def check_file(paths: StorePaths) -> None:
    """Read the format of the file while its owner serves it.

    Raises :class:`HandoffFailed` if this build cannot own the file.
    """
    try:
        # Read-only: two processes with a write connection are what the lock is to prevent (G5).
        with contextlib.closing(connect_reader(paths.db)) as conn:
            rows = conn.execute(
                "SELECT value FROM hermes_actor_meta WHERE key = 'format'"
            ).fetchall()
    except sqlite3.Error as error:
        raise HandoffFailed(f"{paths.db} cannot be read: {error}") from error
    # Now, while the predecessor serves: found out after the descriptors were passed, the same would
    # cost all writers the time of a take-back.
    if rows and rows[0][0] > NEWEST_FORMAT:
        raise HandoffFailed(
            f"{paths.db} has format {rows[0][0]}; this build knows {NEWEST_FORMAT} and older"
        )
