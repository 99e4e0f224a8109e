"""The store of a command that may change it.

It reads as :mod:`hermes_actor.cli.store` does. The first change, or a search that the index cannot
answer yet, connects to the actor, which is started if none is running.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hermes_actor import limits
from hermes_actor.api.provider import StoreMethods
from hermes_actor.cli.output import waiting_for
from hermes_actor.cli.store import ReadOnlyStore, closing_store
from hermes_actor.client.file_queries import FileQueries
from hermes_actor.client.reader import Reader
from hermes_protocol.operations import MessageAppend

if TYPE_CHECKING:
    from hermes_actor.client.interfaces import Answer, ChangeStream, Lease, WriterPort
    from hermes_actor.paths import StorePaths
    from hermes_protocol.operations import MessageRow, Operation

__all__ = ["CommandStore", "open_store"]

R = TypeVar("R")


class CommandStore(ReadOnlyStore, StoreMethods):
    """The methods of a SessionDB; connects to the actor when the first of them needs it."""

    def __init__(
        self,
        db: Path | None = None,
        timeout: float = limits.DEFAULT_TIMEOUT_SECONDS,
        *,
        may_be_new: bool = False,
    ) -> None:
        super().__init__(db, timeout, may_be_new=may_be_new)
        self._timeout = timeout
        self._late = _LatePort(self.paths, self._reopen_reader)
        self._port = self._late
        self._queries: FileQueries = FileQueries(self._reader, self._late, timeout)

    def _reopen_reader(self) -> None:
        self._reader = self._queries.reader = Reader(self.paths)

    def quiet(self) -> None:
        """Print no wait messages: a full-screen view owns the terminal."""
        self._late.quiet = True

    def append_row(self, session_id: str, row: MessageRow) -> int:
        """Append a message as it is stored, with its own time, and return its id."""
        return self._submit(MessageAppend(session_id=session_id, message=row))

    @property
    def transcripts(self) -> Path:
        """Folder in which hermes-agent keeps transcript files of these sessions."""
        return self.path.parent / "sessions"

    def close(self) -> None:
        super().close()
        self._late.release()


def open_store(
    db: Path | None, timeout: float = limits.DEFAULT_TIMEOUT_SECONDS, *, may_be_new: bool = False
) -> contextlib.AbstractContextManager[CommandStore]:
    """Open the store for one command; fail with one line if it cannot be opened.

    With *may_be_new* the file may be missing, and the first change creates it.
    """
    return closing_store(lambda: CommandStore(db, timeout, may_be_new=may_be_new))


class _LatePort:
    """Writer port that connects to the actor when it is first used."""

    def __init__(self, paths: StorePaths, on_open: Callable[[], None]) -> None:
        self._paths = paths
        self._real: WriterPort | None = None
        self._on_open = on_open
        self.quiet = False

    def _waiting(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self.quiet else waiting_for(self._paths)

    def open(self, timeout: float) -> WriterPort:
        if self._real is None:
            from hermes_actor.client.actor_client import acquire

            self._paths.db.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._waiting():
                self._real = acquire(self._paths, timeout)
            self._on_open()
        return self._real

    def submit(self, operation: Operation[R], timeout: float) -> R:
        port = self.open(timeout)
        with self._waiting():
            return port.submit(operation, timeout)

    def send(self, operations: Sequence[Operation[Any]], timeout: float) -> list[Answer]:
        return self.open(timeout).send(operations, timeout)

    def catch_up(self, through: int, timeout: float, *, damaged: int | None = None) -> None:
        port = self.open(timeout)
        with self._waiting():
            port.catch_up(through, timeout, damaged=damaged)

    def lease(self, timeout: float) -> Lease:
        return self.open(timeout).lease(timeout)

    def release(self) -> None:
        if self._real is not None:
            self._real.release()

    def statistics(self) -> dict[str, Any]:
        return {} if self._real is None else self._real.statistics()

    def subscribe(self, after: int | None, timeout: float) -> ChangeStream:
        return self.open(timeout).subscribe(after, timeout)
