"""The store as a command sees it: read at once, its writer asked for when something changes.

Most commands only look. They read the file in this process and start nothing; the first change, a
search that the index cannot answer yet, or a file of an old version brings the actor.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hermes_actor.cli.manners import waiting_for
from hermes_actor.cli.refusing import refuse
from hermes_actor.client.reader import Reader
from hermes_actor.errors import OpenError, StorageError
from hermes_actor.methods.keeping import KeepingMethods
from hermes_actor.methods.listing import ListMethods
from hermes_actor.methods.messages import MessageMethods
from hermes_actor.methods.sessions import SessionMethods
from hermes_actor.paths import Place, check_place, default_db_path, place_of
from hermes_actor.sqlite import Connection, sqlite3
from hermes_actor.store.schema import SCHEMA_SQL
from hermes_protocol.operations import MessageRow, Operation, SessionRow

if TYPE_CHECKING:
    from hermes_actor.client.port import Answer, ChangeSource, Lease, WriterPort

__all__ = ["Store", "opened"]

R = TypeVar("R")

_PATIENCE_SECONDS = 30.0

_NEEDED = {
    "sessions": frozenset(SessionRow.__struct_fields__),
    "messages": frozenset(MessageRow.__struct_fields__) - {"calls"},
}
"""Columns that every file has once its owner has opened it."""


class Store(SessionMethods, MessageMethods, ListMethods, KeepingMethods):
    """The methods of a SessionDB, without a connection to the actor until one is needed."""

    def __init__(self, db: Path | None = None, patience: float = _PATIENCE_SECONDS) -> None:
        self.path = db or default_db_path()
        self.place = place_of(self.path)
        self._patience = patience
        self._late = port = _LatePort(self.place)
        self._port = port
        check_place(self.place)
        self._reader = Reader(self.place)
        if not self.path.exists():
            self._reader = _NoFile(self.place)
            port.on_open = self._has_a_file
        elif self._reader.query(_is_old):
            port.open(patience)

    def _has_a_file(self) -> None:
        self._reader = Reader(self.place)

    def read(self, function: Callable[..., R], *arguments: Any) -> R:
        """``function(connection, *arguments)`` in one state of the file."""
        return self._reader.snapshot(function, *arguments)

    def search(self, function: Callable[..., R], *arguments: Any) -> R:
        """The same, once the full-text indexes cover everything."""
        return self._with_complete_index(function, *arguments)

    def be_silent(self) -> None:
        """Say nothing while the actor is waited for: somebody has the whole screen."""
        self._late.silent = True

    @property
    def transcripts(self) -> Path:
        """Where other programs keep the transcript files of these sessions."""
        return self.path.parent / "sessions"

    def close(self) -> None:
        self._reader.close()
        if self._port is not None:
            self._port.release()


@contextlib.contextmanager
def opened(db: Path | None, patience: float = _PATIENCE_SECONDS) -> Iterator[Store]:
    """The store for the time of one command; one line if it cannot be opened."""
    try:
        store = Store(db, patience)
    except (OpenError, StorageError, OSError) as error:
        refuse(f"Could not open session database: {error}")
    with contextlib.closing(store):
        try:
            yield store
        except (OpenError, StorageError) as error:
            refuse(f"Could not open session database: {error}")


def _is_old(conn: Connection) -> bool:
    return any(
        not needed <= {row[1] for row in conn.execute(f"PRAGMA table_info({table})")}
        for table, needed in _NEEDED.items()
    )


class _NoFile(Reader):
    """Reads of a store that nobody has written to yet: it is empty, and looking creates nothing."""

    def _look(self) -> None:
        pass

    def _open(self) -> Connection:
        conn = sqlite3.connect(
            ":memory:", factory=Connection, isolation_level=None, check_same_thread=False
        )
        conn.executescript(SCHEMA_SQL)
        return conn


class _LatePort:
    """The way to the actor, opened when it is used first."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._real: WriterPort | None = None
        self.on_open: Callable[[], None] = lambda: None
        self.silent = False

    def _waiting(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self.silent else waiting_for(self._place)

    def open(self, patience: float) -> WriterPort:
        if self._real is None:
            from hermes_actor.client.channels import share

            self._place.db.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._waiting():
                self._real = share(self._place, patience)
            self.on_open()
        return self._real

    def submit(self, operation: Operation[R], patience: float) -> R:
        port = self.open(patience)
        with self._waiting():
            return port.submit(operation, patience)

    def send(self, operations: Sequence[Operation[Any]], patience: float) -> list[Answer]:
        return self.open(patience).send(operations, patience)

    def catch_up(self, through: int, patience: float, *, verify: bool = False) -> None:
        port = self.open(patience)
        with self._waiting():
            port.catch_up(through, patience, verify=verify)

    def lease(self, patience: float) -> Lease:
        return self.open(patience).lease(patience)

    def release(self) -> None:
        if self._real is not None:
            self._real.release()

    def statistics(self) -> dict[str, Any]:
        return {} if self._real is None else self._real.statistics()

    def subscribe(self, after: int | None, patience: float) -> ChangeSource:
        return self.open(patience).subscribe(after, patience)
