"""The frames with which the actor answers: welcomes, refusals, results and errors."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

import hermes_protocol.messages as wire
from hermes_actor import limits
from hermes_actor.build import build_id
from hermes_actor.engine.kinds import LeaseLimits
from hermes_actor.errors import HermesActorError, IndexBehind
from hermes_actor.paths import readable
from hermes_actor.store.schema import SCHEMA_VERSION
from hermes_protocol.framing import frame

__all__ = ["done", "failed", "ok", "reject", "welcome"]

_encode = msgspec.msgpack.Encoder().encode

_log = logging.getLogger("hermes_actor.actor")


def welcome(
    phase: str,
    *,
    epoch: int = 0,
    file_id: bytes = b"",
    commit_no: int = 0,
    features: Sequence[str] = (),
    leases: LeaseLimits | None = None,
    ready: bool,
) -> bytes:
    """Return the answer to Hello; one that is not *ready* has the phase, and another follows.

    *leases* are the limits of interactive transactions, which the kind of the file decides.
    """
    allowed = wire.Limits(window=limits.WINDOW_REQUESTS, frame_bytes=limits.FRAME_MAX_BYTES)
    if leases is not None:
        allowed = msgspec.structs.replace(
            allowed, lease_seconds=leases.total, lease_idle_seconds=leases.idle
        )
    # Every text goes through readable(): a path that is not UTF-8 has surrogates, which the encoder
    # refuses, and an answer that cannot be encoded would end the connection without a reason.
    return frame(
        wire.Welcome(
            protocol=wire.PROTOCOL,
            phase=readable(phase),
            epoch=epoch,
            file_id=file_id,
            limits=allowed,
            durability="fsync",
            schema_version=SCHEMA_VERSION,
            build=build_id(),
            pid=os.getpid(),
            features=list(features),
            commit_no=commit_no,
            ready=ready,
        )
    )


def reject(error: BaseException) -> bytes:
    """Return the refusal of a client, before Welcome. It carries the protocols of this actor."""
    code, words = getattr(error, "code", "error"), getattr(error, "sqlite_message", None)
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
    """Return the good reply to request *seq*, or an error that says that only its result is lost.

    Maintenance (*commit_no* is ``None``) has no place in the order of changes: its number is 0.
    """
    if commit_no is None:
        return frame(wire.Ok(seq=seq, commit_no=0))
    # The change is committed: whatever happens to its answer, it must not look refused (G9).
    return _or_failed(seq, lambda: wire.Ok(seq=seq, commit_no=commit_no, result=result))


def done(ask: int, result: Any = None) -> bytes:
    """Return the good answer to an ask, or an error that says that only its result is lost."""
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
    """Return the refusal of a request (by its seq) or of an ask (by its negative number)."""
    message = readable(str(error))
    # With the progress as numbers: a caller can show it, or decide to wait on.
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
                words=readable(error.sqlite_message),
            )
        )
    # Untyped: the class is not known at the other end, so its name goes into the text. Values that
    # SQLite cannot take are the caller's fault and have a code of their own.
    code = "bad-value" if isinstance(error, ValueError | TypeError | OverflowError) else "error"
    return frame(wire.Failed(seq=number, code=code, message=f"{type(error).__name__}: {message}"))
