"""Questions to the actor that is there: it is never started for that, nor waited for."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

import hermes_protocol.messages as wire
from hermes_actor.client.connect import dial, is_not_listening, silent_actor, wait_readable
from hermes_actor.client.protocol import client_protocol
from hermes_actor.errors import (
    DeadlineExceeded,
    HermesActorError,
    NotRunning,
    OutcomeUnknown,
    Unsupported,
)
from hermes_protocol.framing import FrameError

if TYPE_CHECKING:
    from hermes_actor.paths import StorePaths

__all__ = ["Questions", "ask", "ask_status"]

_STATUS_SECONDS = 5.0


class Questions:
    """A connection for asks, on which the actor has said Welcome.

    Only then is anything asked: a question that waits in the socket of an actor that stands still
    would be answered, and done, after its caller has given it up.
    """

    def __init__(self, paths: StorePaths, deadline: float, *, name: str) -> None:
        """Raises :class:`NotRunning` if nobody serves, :class:`DeadlineExceeded`, or a refusal."""
        self._paths = paths
        self._protocol = client_protocol(name)
        self._began = time.monotonic()
        with self._explained():
            self._sock = dial(paths, deadline)
        try:
            with self._explained():
                self._sock.sendall(self._protocol.hello())
                while not self._protocol.phase:
                    self._receive(deadline)
        except BaseException:
            self.close()
            raise

    def ask(self, make: Callable[[int], msgspec.Struct], deadline: float) -> bytes:
        """The result of one ask.

        Raises what the answer says. If none comes, what was asked for may have been done:
        :class:`OutcomeUnknown`, from :class:`NotRunning` if the actor has hung up.
        """
        reply, question = self._protocol.ask(make)
        try:
            with self._explained():
                self._sock.sendall(question)
                while not reply.done:
                    self._receive(deadline)
        except (NotRunning, DeadlineExceeded) as error:
            raise OutcomeUnknown(f"{error}; what it was asked for may have been done") from error
        if reply.error is not None:
            raise reply.error
        return reply.result or b""

    def _receive(self, deadline: float) -> None:
        wait_readable(self._sock, deadline)
        data = self._sock.recv(1 << 16, socket.MSG_DONTWAIT)
        if not data:
            raise NotRunning(f"the actor of {self._paths.db} has just ended")
        self._protocol.receive(data)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        paths = self._paths
        try:
            yield
        except HermesActorError:
            raise
        except TimeoutError as error:
            raise DeadlineExceeded(silent_actor(paths, None, self._began, str(error))) from error
        except FrameError as error:
            raise NotRunning(f"whoever serves {paths.db} is no actor: {error}") from error
        except OSError as error:
            if is_not_listening(error) or isinstance(error, ConnectionError):
                raise NotRunning(f"no actor serves {paths.db}") from error
            raise

    def close(self) -> None:
        self._sock.close()


def ask(
    paths: StorePaths, make: Callable[[int], msgspec.Struct], timeout: float, *, name: str
) -> bytes:
    """The result of one ask, on a connection of its own. Raises as :class:`Questions`."""
    deadline = time.monotonic() + timeout
    with contextlib.closing(Questions(paths, deadline, name=name)) as questions:
        return questions.ask(make, deadline)


def ask_status(paths: StorePaths, timeout: float = _STATUS_SECONDS) -> dict[str, Any] | None:
    """The status document of the actor; ``None`` if there is none."""
    try:
        told = ask(paths, lambda n: wire.StatusRequest(ask=n), timeout, name="status")
    except NotRunning:
        return None
    except OutcomeUnknown as error:
        # To look changes nothing, so nothing is unknown.
        if isinstance(error.__cause__, DeadlineExceeded):
            raise error.__cause__ from None
        return None
    try:
        # Not msgspec's: older actors quote a path that is not UTF-8 as half a surrogate pair.
        document = json.loads(told)
    except ValueError:
        document = None
    if not isinstance(document, dict) or not document.keys() >= {"pid", "phase", "version"}:
        raise Unsupported(f"the status of the actor of {paths.db} cannot be read by this build")
    return document
