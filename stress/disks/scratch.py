"""Where the scratch files of these jobs lie."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["scratch"]

_MEMORY = Path("/dev/shm")


@contextmanager
def scratch(otherwise: Path) -> Iterator[Path]:
    """A folder in memory, where syncs cost nothing: the disk is simulated here anyway."""
    if not _MEMORY.is_dir():
        yield otherwise
        return
    folder = Path(tempfile.mkdtemp(prefix="hermes-stress-", dir=_MEMORY))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
