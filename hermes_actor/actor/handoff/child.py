"""The successor as the old actor sees it: a child at the other end of a socket pair.

The passed lock keeps third parties out; it does not keep these two apart. So before the old actor
opens the database again it has seen the exit of its successor, never only a closed connection.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
from collections.abc import Sequence
from typing import TYPE_CHECKING

import trio

from hermes_actor import limits
from hermes_actor.errors import HandoffFailed
from hermes_protocol.framing import FrameBuffer, FrameError, frame
from hermes_protocol.handoff import (
    CannotTakeOver,
    Ready,
    Serving,
    Settled,
    SuccessorMessage,
    TakeOver,
    next_successor_message,
)

if TYPE_CHECKING:
    from hermes_actor.paths import StorePaths

__all__ = ["SuccessorProcess"]

_log = logging.getLogger("hermes_actor.actor")


class SuccessorProcess:
    """A child that is to take over. Create it with :meth:`start`; always end or detach it."""

    def __init__(self, process: subprocess.Popen[bytes], channel: socket.socket) -> None:
        self.pid = process.pid
        self.build = ""
        self._process = process
        self._channel = channel
        self._buffer = FrameBuffer(limits.FRAME_MAX_BYTES)
        self._settled = False

    @classmethod
    async def start(
        cls, paths: StorePaths, python: str, options: Sequence[str]
    ) -> SuccessorProcess:
        """Start *python* with the code that it finds on disk now."""
        # A socket pair and not a pipe: descriptors pass through it, and either end notices the
        # other's exit.
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.setblocking(False)
        command = [
            python, "-P", "-m", "hermes_actor", "serve", "--db", str(paths.db),
            "--successor-fd", str(theirs.fileno()), *options,
        ]  # fmt: skip
        try:
            # Closed here at once: with a copy in this process the channel would never end, and the
            # exit of the successor before it is ready would look like silence.
            with theirs:
                process = await trio.to_thread.run_sync(_popen, paths, command, theirs.fileno())
        except (OSError, ValueError) as error:
            ours.close()
            raise HandoffFailed(f"{python} cannot be started: {error}") from error
        _log.info("hand-off: successor pid %d started: %s", process.pid, python)
        return cls(process, ours)

    async def ready(self) -> Ready:
        """Wait until it is ready to take over. Raises :class:`HandoffFailed`."""
        with trio.move_on_after(limits.SUCCESSOR_READY_SECONDS):
            message = await self._next()
            if not isinstance(message, Ready):
                raise HandoffFailed(_describe(message))
            if message.pid != self.pid:
                # It would outlive its wrapper, and only the wrapper's exit would be seen here.
                raise HandoffFailed(
                    f"the successor is pid {message.pid}, not pid {self.pid}, which was started:"
                    f" a wrapper around Python must exec it"
                )
            self.build = message.build
            return message
        raise HandoffFailed(
            f"successor pid {self.pid} was not ready in time:"
            f" {limits.SUCCESSOR_READY_SECONDS:g} s; see the log"
        )

    def send_descriptors(self, message: TakeOver, listener: int, lock: int) -> None:
        """Send the descriptors; from here on it may open the database."""
        try:
            # In one message: the successor never has one without the other. Both are copies; this
            # process keeps its own, to take back.
            socket.send_fds(self._channel, [frame(message)], [listener, lock])
        except OSError as error:
            raise HandoffFailed(f"successor pid {self.pid} is gone: {error}") from error

    async def serving(self) -> Serving:
        """Wait until it serves; every sign of life gives it more time. Raises as :meth:`ready`."""
        while True:
            message = None
            with trio.move_on_after(limits.SUCCESSOR_SERVING_SECONDS):
                message = await self._next()
            if isinstance(message, Serving):
                return message
            if message is None:
                raise HandoffFailed(
                    f"successor pid {self.pid} did not serve in time: it was silent for"
                    f" {limits.SUCCESSOR_SERVING_SECONDS:g} s; see the log"
                )
            if isinstance(message, CannotTakeOver | Ready | Settled):
                raise HandoffFailed(_describe(message))

    async def exited(self) -> int:
        """Wait for its end; the exit code, negative for a signal."""
        # A thread waits: pidfds are missing in older kernels, some containers and macOS, and only
        # a parent reaps its child, so no other process can take the exit away.
        return await trio.to_thread.run_sync(self._process.wait, abandon_on_cancel=True)

    async def wait_settled(self) -> None:
        """Wait until it has settled and may not be taken back from; for ever if it never does."""
        with contextlib.suppress(HandoffFailed):
            while not isinstance(await self._next(), Settled):
                pass
            self._settled = True
            return
        # A lost channel proves nothing; only its exit does, which the other task waits for.
        await trio.sleep_forever()

    def has_settled(self) -> bool:
        """Return True if it has settled, after reading what is still in the channel."""
        with contextlib.suppress(OSError, FrameError):
            while not self._settled and (data := self._channel.recv(limits.RECEIVE_BYTES)):
                self._buffer.feed(data)
                while (message := next_successor_message(self._buffer)) is not None:
                    self._settled = self._settled or isinstance(message, Settled)
        return self._settled

    async def end(self) -> None:
        """Kill it and see its exit, however long that takes."""
        # SIGKILL: a process that hangs, or was stopped, handles no other signal.
        self._process.kill()
        code = await self.exited()
        _log.info("hand-off: successor pid %d has ended with %d", self.pid, code)
        self._channel.close()

    def detach(self) -> None:
        """Leave it running. The channel closes when this process exits, which it may wait for."""
        # Its exit is for init to reap: no warning of ``subprocess`` when this process exits.
        self._process.returncode = self._process.returncode or 0

    async def _next(self) -> SuccessorMessage:
        while True:
            try:
                message = next_successor_message(self._buffer)
                if message is not None:
                    return message
                data = self._channel.recv(limits.RECEIVE_BYTES)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._channel)
                continue
            except (FrameError, OSError) as error:
                raise HandoffFailed(
                    f"protocol error from successor pid {self.pid}: {error}"
                ) from error
            if not data:
                raise HandoffFailed(f"successor pid {self.pid} has ended; its log says why")
            self._buffer.feed(data)


def _popen(paths: StorePaths, command: list[str], channel: int) -> subprocess.Popen[bytes]:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    log = os.open(paths.log, flags, 0o600)
    try:
        return subprocess.Popen(
            # A session of its own: Ctrl-C in the terminal of the old actor must not end both. In
            # "/" and with -P, the folder in which the old actor was started decides nothing.
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/",
            pass_fds=(channel,), start_new_session=True, umask=0o077,
        )  # fmt: skip
    finally:
        os.close(log)


def _describe(message: SuccessorMessage) -> str:
    if isinstance(message, CannotTakeOver):
        return message.message
    if isinstance(message, Settled):
        return "the successor gave up before it served; the log says why"
    return f"the successor said {type(message).__name__} out of turn"
