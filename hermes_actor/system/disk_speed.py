"""Measurement of the write speed of a disk."""

from __future__ import annotations

import os
import time
from pathlib import Path

__all__ = ["measure_write_speed"]

_SAMPLE_BYTES = 8 * 1024 * 1024
"""Large enough for a disk to show its speed, small enough for a full one."""


def measure_write_speed(path: Path) -> float:
    """Return the bytes per second that the disk of *path* takes, with fsync.

    A file is written under the new name *path*, and removed. Raises :class:`OSError`, with the name
    of the file.
    """
    # Random: zeros would measure the file systems that compress, or leave holes.
    block = os.urandom(_SAMPLE_BYTES)
    # O_EXCL: a file that is there by chance is never overwritten (G15).
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        began = time.perf_counter()
        with open(descriptor, "wb", buffering=0) as file:
            # Without a buffer one write may take a part only, when the disk fills up.
            while block:
                block = block[file.write(block) :]
            os.fsync(descriptor)
        return _SAMPLE_BYTES / max(time.perf_counter() - began, 1e-6)
    except OSError as error:
        error.filename = str(path)  # an error of write() does not name the file
        raise
    finally:
        path.unlink(missing_ok=True)
