"""A store as its rows: what a migration reads from one side and writes to the other.

Everything takes the path of all calls of a SessionDB: queries go to the reader, one kind of
operation to the writer. So a lost connection is retried, a part is applied once however often it is
sent, and only its actor writes a file.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from hermes_actor.errors import Unsupported
from hermes_actor.store import queries, raw_rows
from hermes_protocol.operations import RowsCopy
from hermes_protocol.values import to_value

if TYPE_CHECKING:
    from hermes_actor.api.provider import SessionDBProvider
    from hermes_actor.store.raw_rows import StoredRow, StoreSummary

__all__ = ["BatchWriter", "MigrationEndpoint"]

_UNDER_WAY = 3
"""Parts that are sent before the first of them is acknowledged."""
_FILE_PART_BYTES = 512 << 10
"""Below the size of a frame: larger operations are written twice."""
_SERVER_PART_BYTES = 2 << 20
_PART_ROWS = 2_000
_TIMEOUT_SECONDS = 120.0
"""For one part: a server may be restarted meanwhile."""
_INDEX_STEP = 20_000
"""Messages per indexing request."""


class MigrationEndpoint:
    """One side of a migration: the rows of an open store.

    Raises :class:`Unsupported` for a provider that does not give access to its rows.
    """

    def __init__(self, db: SessionDBProvider, address: str) -> None:
        reader, port = getattr(db, "_queries", None), getattr(db, "_port", None)
        if reader is None or port is None:
            raise Unsupported(
                f"the provider {db.provider} of {address} does not give out its rows; sessions"
                " can be moved by export and import"
            )
        self.db = db
        self.address = address
        self._port: Any = port
        self._database: Any = getattr(port, "database", None)

    @property
    def part_bytes(self) -> int:
        """Size in bytes above which a part is sent; smaller for a file than for a server."""
        return _FILE_PART_BYTES if self._database is None else _SERVER_PART_BYTES

    def facts(self) -> StoreSummary:
        """Return identity, counts, highest ids and bookmark of the store."""
        return self.db._query(queries.store_summary)

    def sessions(self) -> Iterator[tuple[int, StoredRow]]:
        """Yield all sessions in creation order, each with its position."""
        after = raw_rows.LOWEST
        while page := self.db._query(queries.session_page, after):
            for place, *row in page:
                yield place, tuple(row)
            after = page[-1][0]

    def messages(self, through: int, session_id: str | None = None) -> Iterator[list[StoredRow]]:
        """Yield pages of messages in id order, up to *through*; of one session or of all."""
        after = raw_rows.LOWEST
        while page := self.db._query(queries.message_page, after, through, session_id):
            yield page
            after = page[-1][0]

    def table(self, name: str) -> list[StoredRow] | None:
        """Return all rows of a small table; ``None`` if the store has no such table."""
        return self.db._query(queries.table_rows, name)

    def write(self, part: RowsCopy) -> None:
        """Write one part, and return once it is acknowledged. Raises the errors of the store."""
        self._port.submit(part, _TIMEOUT_SECONDS)

    def parts(self, table: str, columns: tuple[str, ...], run: str, **options: Any) -> BatchWriter:
        """Return a writer of rows of *table*, whose parts are refused once another run begins.

        *options* are fields of :class:`RowsCopy` for the first part; ``update`` holds for all.
        """
        return BatchWriter(self._port, self.part_bytes, table, columns, {"run": run}, options)

    # --- search indexes ----------------------------------------------------------------------

    def before_copy(self) -> None:
        """Drop the search indexes of an empty store on a server: building them last is cheaper."""
        if self._database is not None:
            from hermes_actor.providers.sql.transfer import drop_search

            drop_search(self._database)

    def build_search(self, newest: int, tell: Any) -> int | None:
        """Make every message findable; return the number of index entries.

        ``None`` for a server. *tell* gets the highest id that is indexed, and *newest*.
        """
        if self._database is not None:
            from hermes_actor.providers.sql.transfer import build_search

            build_search(self._database)
            return None
        for through in (*range(_INDEX_STEP, newest, _INDEX_STEP), newest):
            self._port.catch_up(through, _TIMEOUT_SECONDS)
            tell(through, newest)
        return self.db._query(queries.indexed_count)


class BatchWriter:
    """Collector of rows that writes them in parts; a part carries a bookmark."""

    def __init__(
        self,
        port: Any,
        part_bytes: int,
        table: str,
        columns: tuple[str, ...],
        expect: dict[str, str],
        options: dict[str, Any],
    ) -> None:
        self._port = port
        self._most = part_bytes
        self._table = table
        self._columns = list(columns)
        self._expect = expect
        self._options = options
        self._rows: list[list[Any]] = []
        self._size = 0
        self._sent: deque[Any] = deque()
        self.written = 0

    def add(self, row: StoredRow, bookmark: dict[str, str] | None = None) -> None:
        """Add a row; send a part with *bookmark* if it is full."""
        # Bytes are rare, and this is done for every row.
        self._rows.append([*map(to_value, row)] if bytes in map(type, row) else [*row])
        self._size += raw_rows.size_of(row)
        if self._size > self._most or len(self._rows) >= _PART_ROWS:
            self.flush(bookmark)

    def flush(self, bookmark: dict[str, str] | None = None) -> None:
        """Send the collected rows as one part, and wait while too many parts are unacknowledged.

        Raises the error of an earlier part that failed.
        """
        if self._rows:
            part = RowsCopy(
                table=self._table,
                columns=self._columns,
                rows=self._rows,
                bookmark=bookmark or {},
                expect=self._expect,
                # A program that writes to an unfinished target gets a number above all that came
                # so far, and is detected by it.
                last_id=max(0, int((bookmark or {}).get("through", 0))),
                **self._options,
            )
            self._options = {key: v for key, v in self._options.items() if key == "update"}
            # The next one is refused if this one fails, so a bookmark is never ahead of the rows.
            self._expect = {**self._expect, **(bookmark or {})}
            self.written += len(self._rows)
            self._rows, self._size = [], 0
            self._sent.extend(self._port.send([part], _TIMEOUT_SECONDS))
        while len(self._sent) >= _UNDER_WAY:
            self._sent.popleft().result()

    def finish(self, bookmark: dict[str, str] | None = None) -> None:
        """Send the rest, and return once every part is acknowledged.

        Raises the error of the first part that failed.
        """
        self.flush(bookmark)
        while self._sent:
            self._sent.popleft().result()
