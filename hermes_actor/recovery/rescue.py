"""Last copy of a store whose home is deleted under a running actor.

The owner still has the file open, so all of it can be read. Copies are in the user's state folder,
are listed by ``hermes-actor status``, and are removed after a week.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hermes_actor.paths import state_folder

if TYPE_CHECKING:
    from hermes_actor.paths import StorePaths

__all__ = ["list_rescued", "rescue_folder", "rescue_path", "should_rescue"]

_KEPT_SECONDS = 7 * 24 * 3600


def rescue_folder() -> Path:
    """Return the folder of the copies, outside of any home."""
    return state_folder() / "rescued"


def rescue_path(paths: StorePaths) -> Path:
    """Return the path for a copy of the store; its name contains the folders of the original."""
    name = "_".join((*paths.db.parent.parts[1:], paths.db.stem))
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return rescue_folder() / f"{name}-{stamp}-{os.getpid()}.db"


def should_rescue(paths: StorePaths, size: int) -> bool:
    """Return True if a copy of *size* bytes makes sense.

    Not for a store in the folder for temporary files, and only if twice its size is free.
    """
    temporary = Path(tempfile.gettempdir()).resolve()
    if paths.db.is_relative_to(temporary) or rescue_folder().is_relative_to(paths.db.parent):
        return False
    with contextlib.suppress(OSError):
        folder = rescue_folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        room = os.statvfs(folder)
        return room.f_bavail * room.f_frsize > 2 * size
    return False


def list_rescued() -> list[Path]:
    """Return the copies that are younger than a week, and remove older ones."""
    kept = []
    with contextlib.suppress(OSError):
        for copy in sorted(rescue_folder().glob("*.db")):
            if time.time() - copy.stat().st_mtime > _KEPT_SECONDS:
                copy.unlink(missing_ok=True)
            else:
                kept.append(copy)
    return kept
