"""Maintenance by whoever owns the store: the actor if one runs, else this process with the lock."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import hermes_protocol.messages as wire
from hermes_actor import limits
from hermes_actor.client.asking import ask, ask_status
from hermes_actor.client.core import decode_result
from hermes_actor.errors import IndexBehind, NotRunning, Unsupported
from hermes_actor.holders import lock_holder

if TYPE_CHECKING:
    from pathlib import Path

    from hermes_actor.engine.writer import Writer
    from hermes_actor.paths import Place

__all__ = ["has_owner", "index_fully", "maintain", "owned_writer"]

_PATIENCE_SECONDS = 3600.0
"""The store of a large home takes minutes; what is waited for is told meanwhile."""

_SLICE_SECONDS = 0.5
"""Between two reports of progress."""


def has_owner(place: Place) -> bool:
    """Whether a process owns *place* now. Never starts one, not even by socket activation."""
    return lock_holder(place) is not None


def maintain(place: Place, task: str, path: Path | None = None) -> dict[str, Any]:
    """Have the owner of *place* do *task*; become the owner if there is none.

    Raises :class:`Unsupported` if the owner does not serve, or is too old for it, and whatever the
    task raises.
    """
    if has_owner(place):
        message = _ask(place, task, str(path or ""))
        result: dict[str, Any] = decode_result(message, dict[str, Any])
        return result
    with owned_writer(place) as writer:
        from hermes_actor.engine.maintenance import maintain as run

        return run(writer, task, str(path or ""), time.monotonic() + _PATIENCE_SECONDS)


def _ask(place: Place, task: str, path: str) -> bytes:
    try:
        return ask(
            place,
            lambda n: wire.Maintain(ask=n, task=task, path=path, patience=_PATIENCE_SECONDS),
            _PATIENCE_SECONDS,
            name=task,
        )
    except NotRunning as error:
        owner = lock_holder(place)
        if owner is None:
            raise
        # It has hung up: a program in embedded mode, or an actor that does not know the message.
        raise Unsupported(
            f"pid {owner} owns {place.db} and cannot do that: it is older than this command"
            f" (hermes-actor handoff), or uses the store in embedded mode (end it)"
        ) from error


@contextlib.contextmanager
def owned_writer(place: Place) -> Iterator[Writer]:
    """Own *place* for the block, in this process. Raises :class:`Owned` if somebody else does."""
    from hermes_actor.engine.ownership import OwnerLock
    from hermes_actor.engine.writer import Writer

    lock = OwnerLock.acquire(place)
    try:
        writer = Writer(place, on_epoch=lock.describe, patience=limits.ACTOR_OPEN_BUSY_SECONDS)
        try:
            yield writer
        finally:
            writer.close()
    finally:
        lock.release()


def index_fully(
    place: Place, through: int, tell: Callable[[int, int], None] = lambda _done, _total: None
) -> None:
    """Have both full-text indexes cover the messages up to *through*, in slices.

    Changes go on meanwhile. *tell* gets the message that is indexed, and the last one.
    """
    if not has_owner(place):
        with owned_writer(place) as writer:
            while writer.index_slice(limits.INDEX_SLICE_IDLE_SECONDS):
                tell(min(writer.watermark, through), through)
        return
    while True:
        found = ask_status(place)
        if found is None:
            raise NotRunning(f"the actor of {place.db} has ended")
        tell(min(found["index"]["watermark"], through), through)
        with contextlib.suppress(IndexBehind):
            ask(
                place,
                lambda n: wire.CatchUp(ask=n, through=through, patience=_SLICE_SECONDS),
                _PATIENCE_SECONDS,
                name="catch-up",
            )
            return
