"""Databases that an actor owns, and those that the standard module opens by itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from hermes_actor.paths import StorePaths, resolve_paths

__all__ = ["Target", "owned_target"]

_LOCAL_MODES = frozenset({"ro", "memory"})
_LOCAL_PARAMETERS = frozenset({"immutable", "vfs", "nolock"})


class Target:
    """A file whose writes go to its actor. *must_exist*: it is not created (``mode=rw``)."""

    def __init__(self, path: Path, *, must_exist: bool = False) -> None:
        self.paths: StorePaths = resolve_paths(path)
        self.must_exist = must_exist

    def has_content(self) -> bool:
        """Return True if there is a file of more than no bytes."""
        try:
            return self.paths.db.stat().st_size > 0
        except OSError:
            return False

    def may_be_made(self) -> bool:
        """Return True if an actor may open or create the file; else SQLite says what is wrong."""
        db = self.paths.db
        return db.is_file() or (not self.must_exist and not db.exists() and db.parent.is_dir())


def owned_target(database: Any, uri: bool) -> Target | None:
    """Return the file of *database*, as ``sqlite3.connect`` takes it; ``None`` if it has no owner.

    No owner have databases in memory, temporary ones, and URIs that ask for reading only, for an
    immutable file, for no locks or for another VFS. What ``sqlite3.connect`` would refuse has none
    either, so that it is refused there.
    """
    try:
        text = os.fsdecode(database)
    except TypeError:
        return None
    if text in ("", ":memory:") or "\0" in text:
        return None
    if not uri or not text.startswith("file:"):
        return Target(Path(text))
    parts = urlsplit(text)
    options = parse_qs(parts.query, keep_blank_values=True)
    mode = options.get("mode", ["rwc"])[-1]
    path = os.fsdecode(unquote_bytes(parts.path))
    if (
        parts.netloc not in ("", "localhost")
        or mode in _LOCAL_MODES
        or mode not in ("rw", "rwc")
        or not _LOCAL_PARAMETERS.isdisjoint(options)
        or path in ("", ":memory:")
        or "\0" in path
    ):
        return None
    return Target(Path(path), must_exist=mode == "rw")


def unquote_bytes(path: str) -> bytes:
    """Return the bytes that *path* of a URI names."""
    return os.fsencode(unquote(path, errors="surrogateescape"))
