"""The store of a command that may change it: a file, or a store on a server.

A file is read as :mod:`hermes_actor.cli.store` does. The first change, or a search that the index
cannot answer yet, connects to the actor, which is started if none is running.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from hermes_actor import limits
from hermes_actor.api.provider import StoreMethods
from hermes_actor.cli.output.console import waiting, waiting_for
from hermes_actor.cli.output.errors import fail
from hermes_actor.cli.store import ReadOnlyStore, closing_store, server_of
from hermes_actor.client.file_queries import FileQueries
from hermes_actor.client.reader import Reader
from hermes_actor.paths import StorePaths, default_home
from hermes_actor.store import queries
from hermes_actor.store.queries import Query
from hermes_protocol.operations import MessageAppend, MessageRow, Operation

if TYPE_CHECKING:
    from hermes_actor.client.interfaces import WriterPort
    from hermes_actor.providers.resolve import StoreSpec

__all__ = ["CommandStore", "ServerStore", "open_file", "open_store"]

P = ParamSpec("P")
R = TypeVar("R")

_LISTED = " Give more of it: hermes-actor sessions list"


class CommandStore(StoreMethods):
    """The methods of a SessionDB, for a command that may change the store."""

    address: str
    home: Path

    @property
    def file(self) -> StorePaths | None:
        """Paths of the file, unless the store is on a server."""
        return None

    @property
    def many_hosts(self) -> bool:
        """True if programs on other hosts may use the store as well."""
        return False

    @property
    def protected(self) -> tuple[StorePaths, ...]:
        """Files that the output of a command must not overwrite."""
        return () if self.file is None else (self.file,)

    @property
    def transcripts(self) -> Path:
        """Folder in which hermes-agent keeps transcript files of these sessions."""
        return self.home / "sessions"

    def quiet(self) -> None:
        """Print no wait messages: a full-screen view owns the terminal."""

    def query(self, query: Query[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Answer *query* from a state that has every change acknowledged before the call."""
        return self._query(query, *args, **kwargs)

    def find_session(self, given: str) -> str:
        """Return the id that *given* means: exact, else the only one that begins so; else fail."""
        found = self.resolve_session_id(given) if given else None
        if found is None:
            several = self.query(queries.ids_with_prefix, given, 2) if given else []
            why = "is the beginning of several ids" if several else "not found"
            fail(f"Session '{given}' {why}." + _LISTED * bool(several), prefix="")
        return found

    def append_row(self, session_id: str, row: MessageRow) -> int:
        """Append a message as it is stored, with its own time, and return its id."""
        return self._submit(MessageAppend(session_id=session_id, message=row))

    def close(self) -> None:
        """End the use of the store."""
        if self._port is not None:
            self._port.release()


class ServerStore(CommandStore):
    """A store on a server."""

    def __init__(self, chosen: StoreSpec, timeout: float = limits.DEFAULT_TIMEOUT_SECONDS) -> None:
        self.address, self.home = chosen.address, default_home()
        with waiting(lambda: f"connecting to {chosen.address}"):
            self._provider = chosen.open(timeout)
        self._port = self._provider._port
        self._queries, self._timeout = self._provider._queries, timeout

    @property
    def many_hosts(self) -> bool:
        """True if programs on other hosts may use the store as well."""
        return self._provider.capabilities.many_hosts

    def close(self) -> None:
        """Close the connections."""
        self._provider.close()


class FileStore(CommandStore, ReadOnlyStore):
    """A file. It connects to the actor when the first method needs it."""

    def __init__(
        self,
        db: Path | None = None,
        timeout: float = limits.DEFAULT_TIMEOUT_SECONDS,
        *,
        may_be_new: bool = False,
    ) -> None:
        ReadOnlyStore.__init__(self, db, timeout, may_be_new=may_be_new)
        self._timeout = timeout
        self._port: WriterPort | None = None
        self._queries: FileQueries = FileQueries(self._reader, self, timeout)
        self._quiet = False

    @property
    def file(self) -> StorePaths:
        """Paths of the file."""
        return self.paths

    def quiet(self) -> None:
        """Print no wait messages: a full-screen view owns the terminal."""
        self._quiet = True

    def read(self, function: Callable[..., R], *arguments: Any) -> R:
        """Return ``function(connection, *arguments)``, run in one snapshot."""
        return self._reader.snapshot(function, *arguments)

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
        self._reader.close()
        super().close()


def open_store(
    db: Path | None, timeout: float = limits.DEFAULT_TIMEOUT_SECONDS, *, may_be_new: bool = False
) -> contextlib.AbstractContextManager[CommandStore]:
    """Open the store for one command; fail with one line if it cannot be opened.

    With *may_be_new* a file may be missing, and the first change creates it.
    """
    server = server_of(db)
    if server is not None:
        return closing_store(lambda: ServerStore(server, timeout))
    return open_file(db, timeout, may_be_new=may_be_new)


def open_file(
    db: Path | None, timeout: float = limits.DEFAULT_TIMEOUT_SECONDS, *, may_be_new: bool = False
) -> contextlib.AbstractContextManager[FileStore]:
    """Open a file for a command that works on nothing else."""
    return closing_store(lambda: FileStore(db, timeout, may_be_new=may_be_new))
