"""The state machines of :mod:`hermes_protocol` with the errors and the limits of this package."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

import hermes_protocol.messages as wire
from hermes_actor import limits
from hermes_actor._version import __version__
from hermes_actor.errors import (
    HermesActorError,
    IncompatibleProtocol,
    IndexBehind,
    ValueTooLarge,
    by_code,
)
from hermes_protocol.client import ClientProtocol
from hermes_protocol.features import PLAIN, SESSIONS

if TYPE_CHECKING:
    from hermes_protocol.operations import Operation
    from hermes_protocol.subscription import SubscriptionProtocol

__all__ = ["client_protocol", "encode", "error_from", "stages", "subscription_protocol"]

_encode = msgspec.msgpack.Encoder().encode


def client_protocol(
    name: str,
    after_welcome: Callable[[ClientProtocol], bytes] = lambda _protocol: b"",
    *,
    kind: str = PLAIN,
) -> ClientProtocol:
    """Make the client's end of a connection, for a program that the actor's status calls *name*.

    *kind* is the kind of file whose operations it uses.
    """
    return ClientProtocol(
        name, build=__version__, kind=kind, error_from=error_from, after_welcome=after_welcome
    )


def subscription_protocol(
    name: str, after: int | None, *, kind: str = SESSIONS
) -> SubscriptionProtocol:
    """Make the subscriber's end of a connection: the changes after ``commit_no`` *after*."""
    from hermes_protocol.subscription import SubscriptionProtocol  # few programs subscribe

    return SubscriptionProtocol(name, after, build=__version__, kind=kind, error_from=error_from)


def error_from(message: wire.Failed | wire.Reject) -> HermesActorError:
    """Return the typed error of a refusal; :class:`HermesActorError` for a code that is unknown."""
    if isinstance(message, wire.Reject) and message.code == "protocol":
        return IncompatibleProtocol(
            f"{message.message}: this client speaks {wire.PROTOCOL},"
            f" the actor {message.oldest} to {message.newest}"
        )
    # A newer actor may have codes that this build does not know; their text still says all.
    kind = by_code.get(message.code, HermesActorError)
    error: HermesActorError = kind(message.message)
    error.sqlite_message = message.words or message.message
    if isinstance(message, wire.Failed):
        error.executed = message.executed
        if isinstance(error, IndexBehind):
            error.done, error.total = message.done, message.total
    return error


def encode(operation: Operation[Any]) -> bytes | None:
    """Encode an operation; ``None`` if it must be staged (see :meth:`ClientProtocol.stages`).

    Raises :class:`ValueTooLarge` for one that no actor takes.
    """
    encoded = _encode(operation)
    if len(encoded) > limits.STAGED_MAX_BYTES:
        raise ValueTooLarge(
            f"an operation may have {limits.STAGED_MAX_BYTES} bytes, and this one has"
            f" {len(encoded)}; send several smaller ones"
        )
    # Not kept: of several large operations of one call, one at a time is held encoded.
    # Twice the size of a part: still below the largest frame, with its envelope.
    return encoded if len(encoded) <= 2 * limits.STAGE_PART_BYTES else None


def stages(protocol: ClientProtocol, operation: Operation[Any]) -> list[bytes]:
    """Split an operation that :func:`encode` does not return into encoded parts."""
    return protocol.stages(operation, limits.STAGE_PART_BYTES)
