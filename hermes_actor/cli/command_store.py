"""The store of a command that may change it.

It reads as :mod:`hermes_actor.cli.store` does. The first change, or a search that the index cannot
answer yet, connects to the actor, which is started if none is running.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from hermes_actor import limits
from hermes_actor.api.provider import StoreMethods
from hermes_actor.cli.errors import fail
from hermes_actor.cli.output import waiting_for
from hermes_actor.cli.store import ReadOnlyStore, closing_store
from hermes_actor.client.file_queries import FileQueries
from hermes_actor.client.reader import Reader
from hermes_protocol.operations import MessageAppend, MessageRow, Operation

if TYPE_CHECKING:
    from hermes_actor.client.interfaces import WriterPort

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
        self._port: WriterPort | None = None
        self._queries: FileQueries = FileQueries(self._reader, self, timeout)
        self._quiet = False

    def quiet(self) -> None:
        """Print no wait messages: a full-screen view owns the terminal."""
        self._quiet = True

    def find_session(self, given: str) -> str:
        """Return the id that *given* means: exact, else the only one that begins so; else fail."""
        found = self.resolve_session_id(given) if given else None
        if found is None:
            fail(f"Session '{given}' not found.", prefix="")
        return found

    def append_row(self, session_id: str, row: MessageRow) -> int:
        """Append a message as it is stored, with its own time, and return its id."""
        return self._submit(MessageAppend(session_id=session_id, message=row))

    @property
    def transcripts(self) -> Path:
        """Folder in which hermes-agent keeps transcript files of these sessions."""
        return self.path.parent / "sessions"

    def catch_up(self, through: int, timeout: float, *, damaged: int | None = None) -> None:
        """Have the actor bring the full-text indexes up to date; see :class:`IndexOwner`."""
        port = self._connected(timeout)
        with self._waiting():
            port.catch_up(through, timeout, damaged=damaged)

    def _submit(self, operation: Operation[R]) -> R:
        self._opened_port()
        with self._waiting():
            return super()._submit(operation)

    def _opened_port(self) -> WriterPort:
        return self._connected(self._timeout)

    def _connected(self, timeout: float) -> WriterPort:
        """Return the port to the actor; connect when it is first used."""
        if self._port is None:
            from hermes_actor.client.actor_client import acquire

            self.paths.db.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._waiting():
                self._port = acquire(self.paths, timeout)
            # The actor has created the file if there was none.
            self._reader = self._queries.reader = Reader(self.paths)
        return self._port

    def _waiting(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self._quiet else waiting_for(self.paths)

    def close(self) -> None:
        """Close the reader, and the port to the actor if it was opened."""
        super().close()
        if self._port is not None:
            self._port.release()


def open_store(
    db: Path | None, timeout: float = limits.DEFAULT_TIMEOUT_SECONDS, *, may_be_new: bool = False
) -> contextlib.AbstractContextManager[CommandStore]:
    """Open the store for one command; fail with one line if it cannot be opened.

    With *may_be_new* the file may be missing, and the first change creates it.
    """
    return closing_store(lambda: CommandStore(db, timeout, may_be_new=may_be_new))
