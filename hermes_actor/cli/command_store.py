"""The store of a command that may change it: its writer is asked for when it is needed.

Reading is as in :mod:`hermes_actor.cli.store`. The first change, or a search that the index
cannot answer yet, brings the actor.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hermes_actor.api.provider import StoreMethods
from hermes_actor.cli.output import waiting_for
from hermes_actor.cli.store import DEFAULT_TIMEOUT_SECONDS, ReadOnlyStore, closing_store
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
    """The methods of a SessionDB, without a connection to the actor until one is needed."""

    def __init__(
        self,
        db: Path | None = None,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
        *,
        may_be_new: bool = False,
    ) -> None:
        super().__init__(db, timeout, may_be_new=may_be_new)
        self._timeout = timeout
        self._late = _LatePort(self.paths, self._now_there_is_a_file)
        self._port = self._late
        self._queries: FileQueries = FileQueries(self._reader, self._late, timeout)

    def _now_there_is_a_file(self) -> None:
        self._reader = self._queries.reader = Reader(self.paths)

    def quiet(self) -> None:
        """Say nothing while the actor is waited for: somebody has the whole screen."""
        self._late.silent = True

    def append_row(self, session_id: str, row: MessageRow) -> int:
        """Add a message as it is stored, with its own time; the message id."""
        return self._submit(MessageAppend(session_id=session_id, message=row))

    @property
    def transcripts(self) -> Path:
        """Where other programs keep the transcript files of these sessions."""
        return self.path.parent / "sessions"

    def close(self) -> None:
        super().close()
        self._late.release()


def open_store(
    db: Path | None, timeout: float = DEFAULT_TIMEOUT_SECONDS, *, may_be_new: bool = False
) -> contextlib.AbstractContextManager[CommandStore]:
    """The store for the time of one command; one line if it cannot be opened.

    *may_be_new*: the command adds to a store, and the first change makes it.
    """
    return closing_store(lambda: CommandStore(db, timeout, may_be_new=may_be_new))


class _LatePort:
    """The way to the actor, opened when it is used first."""

    def __init__(self, paths: StorePaths, on_open: Callable[[], None]) -> None:
        self._paths = paths
        self._real: WriterPort | None = None
        self._on_open = on_open
        self.silent = False

    def _waiting(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self.silent else waiting_for(self._paths)

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
