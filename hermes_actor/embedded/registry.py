"""The writers of this process: one for each file, shared by all that open it."""

from __future__ import annotations

import atexit
from pathlib import Path

from hermes_actor.embedded.writer import EmbeddedWriter, close_inherited_locks
from hermes_actor.errors import ActorBroken, wrong_kind
from hermes_actor.paths import StorePaths
from hermes_actor.system.shared import SharedObjects
from hermes_protocol.features import PLAIN, SESSIONS

__all__ = ["share"]


class _Registry(SharedObjects["Path", EmbeddedWriter]):
    """The writers of this process, by file."""

    def __init__(self) -> None:
        super().__init__()
        self._replaced: set[Path] = set()

    def share(self, paths: StorePaths, kind: str = SESSIONS) -> EmbeddedWriter:
        """Return the writer of *paths*, started if this process has none yet.

        *kind*: see :func:`hermes_actor.client.actor_client.acquire`. Raises :class:`WrongKind`,
        :class:`ActorBroken` if the files were replaced while an earlier writer of this
        process had them open, and the reason why a writer has stopped.
        """
        with self.lock:
            writer = self.get(paths.db)
            # While a writer that stopped has users there is no second one; a new user gets its
            # reason.
            if writer is not None and writer.stopped:
                raise writer.why_stopped()
            if paths.db in self._replaced:
                raise ActorBroken(
                    f"the files of {paths.db} were replaced under this process; restart it"
                )
            writer = self.acquire(paths.db, lambda: EmbeddedWriter(paths, self.end_use, kind))
            found = writer.kind
            if kind not in (PLAIN, found):
                self.end_use(writer)
                raise wrong_kind(paths.db, found, kind)
            return writer

    def end_use(self, writer: EmbeddedWriter) -> None:
        """End one use of *writer*. With the last one it finishes its work and closes the file."""
        # The lock is held until the writer has stopped: the next one needs its owner lock.
        with self.lock:
            if self.release(writer.paths.db, writer):
                writer.stop()
                if writer.files_replaced:
                    self._replaced.add(writer.paths.db)

    def stop_all(self) -> None:
        """Stop every writer. Runs at exit, for programs that forget to close."""
        for writer in self.clear():
            writer.stop()

    def after_fork(self) -> None:
        """Forget the writers: they, and their locks, are the parent's."""
        super().after_fork()
        self.clear()
        close_inherited_locks()


_registry = _Registry()
share = _registry.share
atexit.register(_registry.stop_all)
