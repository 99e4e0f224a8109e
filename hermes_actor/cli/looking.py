"""The store of a command that only looks: the file, read in this process.

Nothing is started and nothing is created for it. Only a file of an old version needs its owner
first, who brings it up to date. Everything here is quick to import: `sessions list` should be there
before you have finished reading its name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from hermes_actor.cli.errors import fail
from hermes_actor.cli.files import check_content, check_file, file_for, new_store_for, no_store
from hermes_actor.client.reader import Reader
from hermes_actor.errors import (
    CannotOpen,
    CannotRead,
    HermesActorError,
    NotADatabase,
    OpenError,
    StorageError,
)
from hermes_actor.paths import check_not_hijacked, resolve_paths
from hermes_actor.sqlite import Connection, connect_alone
from hermes_actor.store.schema import FTS_SQL, FTS_TRIGRAM_SQL, OWN_SQL, SCHEMA_SQL
from hermes_protocol.operations import MessageRow, SessionRow

__all__ = ["DEFAULT_TIMEOUT_SECONDS", "ReadOnlyStore", "kept_open", "looking"]

R = TypeVar("R")
S = TypeVar("S", bound="ReadOnlyStore")

DEFAULT_TIMEOUT_SECONDS = 30.0
"""How long a command waits for the actor."""

_NEEDED = {
    "sessions": frozenset(SessionRow.__struct_fields__),
    "messages": frozenset(MessageRow.__struct_fields__) - {"calls"},
}
"""Columns that every file has once its owner has opened it."""


class ReadOnlyStore:
    """A store that is only read."""

    _reader: Reader

    def __init__(
        self,
        db: Path | None = None,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
        *,
        may_be_new: bool = False,
    ) -> None:
        self.path = file_for(db)
        self.paths = resolve_paths(self.path)
        check_not_hijacked(self.paths)
        if check_file(self.paths):
            self._reader = Reader(self.paths)
            if not self._reader.query(check_content, self.paths):
                self._reader.close()
                self._reader = _Empty(self.paths)
            elif self._reader.query(_is_old):
                self._bring_up_to_date(timeout)
        elif may_be_new:
            new_store_for(db)
            self._reader = _Empty(self.paths)
        else:
            no_store(db, self.paths)

    def _bring_up_to_date(self, timeout: float) -> None:
        from hermes_actor.client.shared_clients import share

        share(self.paths, timeout).release()

    def read(self, function: Callable[..., R], *arguments: Any) -> R:
        """``function(connection, *arguments)`` in one state of the file."""
        return self._reader.snapshot(function, *arguments)

    def close(self) -> None:
        self._reader.close()


def looking(db: Path | None) -> contextlib.AbstractContextManager[ReadOnlyStore]:
    """The store for the time of one command; one line if it cannot be opened."""
    return kept_open(lambda: ReadOnlyStore(db))


@contextlib.contextmanager
def kept_open(open_: Callable[[], S]) -> Iterator[S]:
    """What *open_* gives, closed at the end; refuses what cannot be opened or read."""
    try:
        store = open_()
    except (OpenError, StorageError, OSError) as error:
        fail(f"Could not open session database: {error}")
    with contextlib.closing(store):
        try:
            yield store
        except (OpenError, CannotOpen, CannotRead, NotADatabase) as error:
            fail(f"Could not open session database: {error}")
        except HermesActorError as error:
            fail(str(error))


def _is_old(conn: Connection) -> bool:
    return any(
        not needed <= {row[1] for row in conn.execute(f"PRAGMA table_info({table})")}
        for table, needed in _NEEDED.items()
    )


class _Empty(Reader):
    """Reads of a file that is empty, or not there yet: reading changes nothing."""

    def _look(self) -> None:
        pass

    def _connect(self) -> Connection:
        conn = connect_alone()
        # With its indexes, which are complete: a search does not ask for an actor either.
        for script in (SCHEMA_SQL, FTS_SQL, FTS_TRIGRAM_SQL, OWN_SQL):
            conn.executescript(script)
        return conn
