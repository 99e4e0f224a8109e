"""Words for figures of an actor, which `status` and `top` show alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hermes_actor.cli.output.formatting import count

if TYPE_CHECKING:
    from hermes_protocol.status import IndexStatus

__all__ = ["index_text", "wal_text"]


def wal_text(frames: int, checkpoints: Mapping[str, int]) -> str:
    """Return how full the write-ahead log is, and how often it was emptied.

    *checkpoints* are counted by kind and outcome; the text names no kind but those cut short.
    """
    done = count(sum(checkpoints.values()), "checkpoint")
    partial = sum(n for kind, n in checkpoints.items() if kind.endswith(".partial"))
    held = f", {partial:,} of them cut short by readers" if partial else ""
    return f"{count(frames, 'frame')}, {done}{held}"


def index_text(index: IndexStatus) -> str:
    """Return how many messages are not in the full-text indexes yet.

    That is no fault: a search indexes what it needs.
    """
    if not index.lag:
        return "up to date"
    return f"{index.lag:,} of {index.newest:,} messages to index; a search waits for them"
