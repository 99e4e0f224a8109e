"""What all methods stand on: the way to the writer, and the readers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from hermes_actor import limits
from hermes_actor.client.reader import Reader
from hermes_actor.errors import Closed, Damaged, IndexBehind, OpenError, SqlError
from hermes_actor.sqlite import sqlite3
from hermes_actor.store.search import matches
from hermes_actor.store.search.coverage import read_indexes
from hermes_actor.store.surrogates import without_surrogates

if TYPE_CHECKING:
    from hermes_actor.client.interfaces import WriterPort
    from hermes_actor.sqlite import Connection
    from hermes_protocol.operations import Operation

__all__ = ["Methods"]

R = TypeVar("R")

_CATCH_UPS = 3
"""How often a search has the indexes brought up to date. A restore or a rebuild can come between
the owner's answer and the snapshot, but not again and again."""


class Methods:
    """Changes go to the port, reads to the reader."""

    _port: WriterPort | None
    _reader: Reader
    _timeout: float

    def _submit(self, operation: Operation[R]) -> R:
        port = self._port
        if port is None:
            raise Closed("this SessionDB is closed")
        try:
            return port.submit(operation, self._timeout)
        except UnicodeEncodeError:
            # Lone surrogates cannot be stored. In the text of a message that is the caller's
            # error; anywhere else it must not cost the change.
            clean = without_surrogates(operation)
            if clean is operation:
                raise
            return port.submit(clean, self._timeout)

    def _with_complete_index(
        self,
        function: Callable[..., R],
        *arguments: Any,
        alone: Callable[..., R] | None = None,
        exact: bool = False,
    ) -> R:
        """Run *function* in a snapshot in which the indexes cover all that was there before.

        *exact*: and hold nothing else, because the function does not join messages.

        If no owner can be had to bring them so far, *alone* is run instead, with the time until
        which it may take as its last argument.
        """

        schema, until = -1, time.monotonic() + self._timeout

        def ask(conn: Connection, through: int | None = None) -> tuple[int | None, R | None]:
            nonlocal schema
            behind = matches.index_lag(conn, through, exact=exact)
            schema = conn.layout_cookie
            return (behind, None) if behind is not None else (None, function(conn, *arguments))

        port = self._port
        if port is None:
            raise Closed("this SessionDB is closed")

        def look(through: int | None = None) -> tuple[int | None, R | None]:
            try:
                return self._reader.snapshot(ask, through)
            except Damaged as error:
                if not self._index_is_to_blame(error, until):
                    raise
            port.catch_up(0, max(0.0, until - time.monotonic()), damaged=schema)
            return self._reader.snapshot(ask, through)

        behind, result = look()
        through, catch_ups = behind, 0
        while behind is not None:
            if catch_ups >= _CATCH_UPS:
                if not exact:
                    # The owner has brought them as far as it can.
                    return self._reader.snapshot(function, *arguments)
                # What is left of a large text that was deleted goes by and by.
                if time.monotonic() > until:
                    raise IndexBehind(
                        "the full-text indexes still hold deleted messages", done=0, total=behind
                    )
                time.sleep(limits.ASIDE_LOOK_SECONDS)
            catch_ups += 1
            try:
                port.catch_up(through or 0, max(0.0, until - time.monotonic()))
            except OpenError:
                if alone is None:
                    raise
                return self._reader.snapshot(alone, *arguments, until)
            # Messages that have arrived meanwhile are not waited for.
            behind, result = look(through)
        return result  # type: ignore[return-value]

    def _index_is_to_blame(self, error: Damaged, until: float) -> bool:
        """Whether a search failed by a damaged index, and not by a damaged table.

        Found out here, because it may mean to read all of the index: the owner would keep every
        writer waiting meanwhile.
        """
        if getattr(error.__cause__, "sqlite_errorcode", None) == sqlite3.SQLITE_CORRUPT_VTAB:
            return True

        def read(conn: Connection) -> None:
            conn.set_progress_handler(lambda: time.monotonic() > until, 10_000)
            try:
                read_indexes(conn)
            finally:
                conn.set_progress_handler(None, 0)

        try:
            self._reader.snapshot(read)
        except Damaged:
            return True
        except SqlError:
            return False  # interrupted: there is no time left to tell
        return False
