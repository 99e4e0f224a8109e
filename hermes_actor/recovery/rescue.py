"""When the home is deleted under a running actor: one last copy, outside of it.

The owner still holds the file open, so all of it can be read. Copies lie in the user's state
folder, are listed by ``hermes-actor status``, and are removed after a week.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hermes_actor.paths import StorePaths

__all__ = ["list_rescued", "rescue_folder", "rescue_path", "should_rescue"]

_KEPT_SECONDS = 7 * 24 * 3600


def rescue_folder() -> Path:
    """``XDG_STATE_HOME`` or its default, which no home of an agent lies in."""
    state = os.environ.get("XDG_STATE_HOME", "").strip()
    base = Path(state) if state else Path.home() / ".local" / "state"
    return base / "hermes-actor" / "rescued"


def rescue_path(paths: StorePaths) -> Path:
    """Where the copy of *place* goes; the folders are in the name, so that people know it again."""
    name = "_".join((*paths.db.parent.parts[1:], paths.db.stem))
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return rescue_folder() / f"{name}-{stamp}-{os.getpid()}.db"


def should_rescue(paths: StorePaths, size: int) -> bool:
    """Whether a copy of *size* bytes makes sense: not of a temporary store, and only with room."""
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
    """The copies that are there, after those that are too old have been removed."""
    kept = []
    with contextlib.suppress(OSError):
        for copy in sorted(rescue_folder().glob("*.db")):
            if time.time() - copy.stat().st_mtime > _KEPT_SECONDS:
                copy.unlink(missing_ok=True)
            else:
                kept.append(copy)
    return kept
