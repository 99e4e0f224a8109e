"""The writers of this process: one for each file, shared by all that open it."""

from __future__ import annotations

import atexit
import os
import threading
from typing import TYPE_CHECKING

from hermes_actor.embedded.writer import EmbeddedWriter, close_inherited_locks
from hermes_actor.errors import ActorBroken

if TYPE_CHECKING:
    from pathlib import Path

    from hermes_actor.paths import StorePaths

__all__ = ["share"]


class _Registry:
    """The writers of this process, by file, with the number of their users."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._replaced: set[Path] = set()
        self._users: dict[Path, tuple[EmbeddedWriter, int]] = {}
        os.register_at_fork(after_in_child=self._after_fork)

    def share(self, paths: StorePaths) -> EmbeddedWriter:
        """The writer of *place*, started if this process has none yet."""
        with self._guard:
            writer, users = self._users.get(paths.db, (None, 0))
            if writer is not None and writer.stopped:
                raise writer.why_stopped()
            if paths.db in self._replaced:
                raise ActorBroken(
                    f"the files of {paths.db} were replaced under this process; start it again"
                )
            if writer is None:
                writer = EmbeddedWriter(paths, self.release)
            self._users[paths.db] = (writer, users + 1)
            return writer

    def release(self, writer: EmbeddedWriter) -> None:
        with self._guard:
            registered, users = self._users.get(writer.paths.db, (None, 0))
            if registered is not writer:
                return
            if users > 1:
                self._users[writer.paths.db] = (writer, users - 1)
                return
            del self._users[writer.paths.db]
            writer.stop()
            if writer.files_replaced:
                self._replaced.add(writer.paths.db)

    def stop_all(self) -> None:
        with self._guard:
            writers, self._users = list(self._users.values()), {}
        for writer, _ in writers:
            writer.stop()

    def _after_fork(self) -> None:
        """The parent's writers stay the parent's."""
        self._guard = threading.Lock()
        self._users = {}
        close_inherited_locks()


_registry = _Registry()
share = _registry.share
atexit.register(_registry.stop_all)
