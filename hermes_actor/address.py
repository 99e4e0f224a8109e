"""Reaching the socket of an actor although the kernel allows only about 100 bytes of path."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hermes_actor.paths import Place

__all__ = ["address_of"]

_MAX_PATH_BYTES = 100


@contextlib.contextmanager
def address_of(place: Place) -> Iterator[str]:
    """An address for ``bind`` or ``connect`` that is valid inside the block."""
    path = str(place.sock)
    if len(os.fsencode(path)) <= _MAX_PATH_BYTES:
        yield path
        return
    folder = os.open(place.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/sock"
    finally:
        os.close(folder)
