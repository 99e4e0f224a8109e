"""``sessions.json``: a copy of the routes for people and older programs, never read back by us.

The snapshot is taken under the lock of the folder, so an older one never replaces a newer one, with
any number of processes. A copy that was not written is written with the next change.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from hermes_actor.gateway.folder_lock import folder_lock
from hermes_actor.store import queries

if TYPE_CHECKING:
    from hermes_actor.session_db import SessionDB

__all__ = ["Mirror"]

_log = logging.getLogger("hermes_actor.gateway")

_PAUSE_SECONDS = 1.0
"""Least time between two copies that only differ in times of use."""
_LEFT_OVER_SECONDS = 60.0
"""Age from which a temporary file belongs to a process that has died."""


class Mirror:
    """The index file of one folder; a thread of its own writes it."""

    def __init__(self, db: SessionDB, folder: Path, scope: str) -> None:
        self._db = db
        self._folder = folder
        self._scope = scope
        self._guard = threading.Lock()
        self._writing = threading.Lock()
        self._dirty = False
        self._timer: threading.Timer | None = None
        self._written = 0.0

    @property
    def path(self) -> Path:
        """The index file."""
        return self._folder / "sessions.json"

    def changed(self, *, soon: bool) -> None:
        """Have the file written: at once, or with *soon* at most once a second.

        It is written by another thread: a message does not wait for it.
        """
        with self._guard:
            self._dirty = True
            if self._timer is not None:
                return
            wait = max(0.0, self._written + _PAUSE_SECONDS - time.monotonic()) if soon else 0.0
            self._timer = threading.Timer(wait, self._write_quietly)
            self._timer.daemon = True
            self._timer.start()

    def flush(self) -> None:
        """Write the file now if routes have changed since; errors are logged."""
        with self._guard:
            timer = self._timer
        if timer is not None:
            timer.cancel()
        # Also when nothing is left to write: another thread may be at it.
        self._write_quietly()

    def _write_quietly(self) -> None:
        with self._writing:
            with self._guard:
                dirty, self._timer, self._dirty = self._dirty, None, False
            if not dirty:
                return
            try:
                self.write()
                self._written = time.monotonic()
            except Exception as error:
                with self._guard:
                    self._dirty = True
                _log.warning("%s was not written: %s", self.path, error)

    def write(self) -> None:
        """Write the routes of the scope as they are now. Raises ``OSError``."""
        with folder_lock(self._folder / ".sessions.lock"):
            # After the lock: what is read now is newer than any file that was written before.
            routes = self._db._query(queries.all_routes, self._scope)
            self._replace({route.key: route.entry for route in routes})
            self._sweep()

    def _replace(self, entries: dict[str, object]) -> None:
        handle, name = tempfile.mkstemp(dir=self._folder, prefix=".sessions_", suffix=".tmp")
        try:
            with open(handle, "w", encoding="utf-8") as file:
                json.dump(entries, file, indent=2)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, self.path)
        except BaseException:
            with suppress(OSError):
                os.unlink(name)
            raise
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _sweep(self) -> None:
        """Remove temporary files of processes that have died while they wrote."""
        for left in self._folder.glob(".sessions_*.tmp"):
            with suppress(OSError):
                if time.time() - left.stat().st_mtime > _LEFT_OVER_SECONDS:
                    left.unlink()
