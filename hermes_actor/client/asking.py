"""One question to the actor that is there: it is never started for that, nor waited for."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

import hermes_protocol.messages as wire
from hermes_actor.client.core import ClientCore
from hermes_actor.client.reaching import connect_once, nobody_serves, wait_readable
from hermes_actor.errors import DeadlineExceeded, NotRunning
from hermes_protocol.framing import FrameError

if TYPE_CHECKING:
    from hermes_actor.paths import Place

__all__ = ["ask", "ask_status"]

_STATUS_SECONDS = 5.0


def ask(
    place: Place, make: Callable[[int], msgspec.Struct], patience: float, *, name: str
) -> bytes:
    """The result of one ask, on a connection of its own.

    Raises :class:`NotRunning` if nobody serves, and whatever the answer says.
    """
    core, deadline = ClientCore(name=name), time.monotonic() + patience
    try:
        with contextlib.closing(connect_once(place)) as sock:
            reply, question = core.ask(make)
            sock.sendall(core.hello() + question)
            while not reply.done:
                wait_readable(sock, deadline)
                data = sock.recv(1 << 16, socket.MSG_DONTWAIT)
                if not data:
                    raise NotRunning(f"the actor of {place.db} has just ended")
                core.receive(data)
    except TimeoutError as error:
        raise DeadlineExceeded(f"the actor of {place.db} does not answer") from error
    except FrameError as error:
        raise NotRunning(f"whoever serves {place.db} is no actor: {error}") from error
    except OSError as error:
        if nobody_serves(error) or isinstance(error, ConnectionError):
            raise NotRunning(f"no actor serves {place.db}") from error
        raise
    if reply.error is not None:
        raise reply.error
    return reply.result or b""


def ask_status(place: Place, patience: float = _STATUS_SECONDS) -> dict[str, Any] | None:
    """The status document of the actor; ``None`` if there is none."""
    try:
        told = ask(place, lambda n: wire.StatusRequest(ask=n), patience, name="status")
    except NotRunning:
        return None
    document: dict[str, Any] = msgspec.json.decode(told)
    return document
