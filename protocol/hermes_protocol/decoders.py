"""Decoders of msgspec types, each made by one thread while no other makes one and none forks.

msgspec fills in its description of a type at the first use of the type. A thread that uses the
type meanwhile reads half a description, and its process ends with a segmentation fault; so does a
child that was forked meanwhile. Every decoder of this project is therefore made here.
"""

from __future__ import annotations

import os
import threading
from typing import Any, TypeVar

import msgspec

__all__ = ["convert", "decoder"]

T = TypeVar("T")

_decoders: dict[Any, msgspec.msgpack.Decoder[Any]] = {}
# One that its thread can take twice: a signal handler may decode while a decoder is made.
_lock = threading.RLock()

# Held across a fork: a child has neither a lock that no thread releases nor half a description.
os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
)


def decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    """Return the decoder of *kind*, a type or a union of types."""
    made = _decoders.get(kind)
    if made is None:
        with _lock:
            made = _decoders.get(kind)
            if made is None:
                made = _decoders[kind] = msgspec.msgpack.Decoder(kind)
    return made


def convert(document: object, kind: type[T]) -> T:
    """Return *document*, made of built-in types, as *kind*. Raises ``ValueError`` if it is none."""
    decoder(kind)
    return msgspec.convert(document, kind)
