"""Indexing many ordinary messages aside, while the writer goes on with changes.

A slice indexes inside a transaction of the writer, so every other client waits for FTS5. When many
messages wait, they are indexed in chunks instead: a thread builds the segments of a chunk in
private databases, and the writer copies the finished pages in one short transaction, together with
the texts, the sizes, the totals and the watermark. So a crash leaves either all of a chunk or
nothing of it.

Nothing is held while a thread works. The transaction that places a chunk therefore compares
everything with what the thread was given: the watermark, the texts, and that no other program has
indexed one of these messages. If anything differs, the chunk is thrown away and its messages are
left to slices, which know how to go on from any state. The same holds for a chunk that fails.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from hermes_actor import limits
from hermes_actor.engine.health import failing_index
from hermes_actor.engine.index.indexer import TEXT_BYTES
from hermes_actor.engine.index.segments import build_rows, is_known_format, place_rows
from hermes_actor.engine.index.structure import UnknownFormat
from hermes_actor.engine.index.work_aside import Work
from hermes_actor.engine.meta_table import get_internal, set_internal
from hermes_actor.store.rows import scalar
from hermes_actor.store.schema import INDEXED_TEXT
from hermes_actor.store.search.coverage import TABLES

if TYPE_CHECKING:
    from hermes_actor.engine.environment import Environment
    from hermes_actor.sqlite import Connection

__all__ = ["BulkIndexer"]

_log = logging.getLogger("hermes_actor.engine")

# As bytes: what other programs have stored as text need not be UTF-8.
_TEXT = f"CAST({INDEXED_TEXT.format('m.')} AS BLOB)"


class _Chunk(Work):
    """Messages that follow each other, in a thread, and then their segments."""

    def __init__(self, above: int, rows: list[tuple[int, bytes]]) -> None:
        super().__init__()
        self.above, self.through = above, rows[-1][0]
        self.rows = rows
        self._ended = threading.Event()

    def run(self) -> None:
        try:
            super().run()
        finally:
            self._ended.set()

    def _build(self) -> None:
        # Tried out here and not in the writer: it takes as long as many changes do.
        if not is_known_format():
            raise UnknownFormat("this SQLite keeps its indexes in a form that is not known")
        for table in TABLES:
            # The only place to stop at: the rows of a table are one statement.
            if self._given_up:
                break
            self._built.append((table, build_rows(table, self.rows)))

    def wait(self, seconds: float) -> None:
        """Return when everything is built, or after *seconds*."""
        self._ended.wait(seconds)

    def place(self, conn: Connection) -> bool:
        """Make the chunk part of the indexes in the open transaction, the watermark included.

        Returns False, and changes nothing, if the file is no longer as it was read.
        """
        if get_internal(conn, "watermark") != self.above:
            return False
        # Changed or deleted since; this alone makes sure that the indexes get the texts of the
        # messages as they are (G4).
        if _read(conn, self.above, self.through) != self.rows:
            return False
        with failing_index():
            if _is_indexed(conn, self.above, self.through):
                return False
            for table, built in self._built:
                place_rows(conn, table, built, self.rows)
        # In the transaction of the entries: the watermark can never be ahead of the indexes.
        set_internal(conn, "watermark", self.through)
        return True


class BulkIndexer:
    """The chunks of one writer: up to two in threads, placed in the order of their messages."""

    def __init__(self, env: Environment) -> None:
        self.refusal: str | None = None
        """Reason why nothing is indexed in this way, if there is one."""
        self._env = env
        self._chunks: list[_Chunk] = []
        self._left_to_slices = 0
        """Messages up to this id are left to slices."""

    @property
    def is_working(self) -> bool:
        """True if a chunk is being built, or waits to be placed."""
        return bool(self._chunks)

    def begin(self, conn: Connection, watermark: int, through: int) -> None:
        """Start threads for messages above *watermark* and up to *through*, if they are enough.

        Takes no lock. Raises :class:`IndexFailed`.
        """
        if self._chunks and self._chunks[0].above != watermark:
            # A slice came in between, or everything was derived again.
            self.give_up()
        while self.refusal is None and len(self._chunks) < limits.BULK_CHUNKS:
            above = self._chunks[-1].through if self._chunks else watermark
            # A full chunk or nothing: what is built for a few rows costs as much again to merge.
            if through - above < limits.BULK_ROWS or above < self._left_to_slices:
                break
            if scalar(conn, "PRAGMA encoding") != "UTF-8":
                # A private database is, and takes the bytes of a text as they are.
                self.refusal = "the file is not in UTF-8"
                break
            rows = _next_rows(conn, above)
            # Few, between large texts: slices are as good.
            if len(rows) < max(1, limits.BULK_ROWS // 8):
                break
            with failing_index():
                if _is_indexed(conn, above, rows[-1][0]):
                    break
            self._env.failpoint("bulk.build")
            self._chunks.append(_Chunk(above, rows))
            self._env.start(self._chunks[-1].run)

    def wait(self, seconds: float) -> None:
        """Return when the next chunk can be placed, or after *seconds*."""
        if self._chunks:
            self._chunks[0].wait(seconds)

    @property
    def is_ready(self) -> bool:
        """True if the next chunk has come to its end, in whatever way."""
        return bool(self._chunks) and self._chunks[0].finished

    def place(self, conn: Connection) -> int | None:
        """Place the next chunk in the open transaction; returns the new watermark.

        ``None``: nothing was changed, and its messages are left to slices. The caller calls
        :meth:`placed` after the commit, or :meth:`give_up`. Raises :class:`IndexFailed`.
        """
        chunk = self._chunks[0]
        error = chunk.error
        if error is None:
            try:
                if chunk.place(conn):
                    return chunk.through
            except UnknownFormat as unknown:
                error = unknown
        if isinstance(error, UnknownFormat):
            self.refusal = str(error)
        if error is not None:
            words = str(error) or type(error).__name__
            _log.warning("messages are indexed in slices, and not aside: %s", words)
        self._left_to_slices = chunk.through
        self.give_up()
        return None

    def placed(self) -> None:
        """Close the chunk that was placed, once its transaction is committed."""
        self._chunks.pop(0).close()

    def give_up(self) -> None:
        """Forget all chunks; their messages are still above the watermark."""
        while self._chunks:
            self._chunks.pop().close()


def _next_rows(conn: Connection, above: int) -> list[tuple[int, bytes]]:
    """Return the texts of the next chunk, which ends before the first text that is large."""
    rows, size = list[tuple[int, bytes]](), 0
    for message_id, text in conn.execute(
        f"SELECT m.id, CASE WHEN {TEXT_BYTES} <= ? THEN {_TEXT} END FROM messages m"
        " WHERE m.id > ? ORDER BY m.id LIMIT ?",
        (limits.INDEX_ASIDE_BYTES, above, limits.BULK_ROWS),
    ):
        if text is None or (rows and size + len(text) > limits.BULK_BYTES):
            break
        rows.append((message_id, text))
        size += len(text)
    return rows


def _read(conn: Connection, above: int, through: int) -> list[tuple[int, bytes]]:
    # Not the text of one that has become large: it may have many megabytes.
    return conn.execute(
        f"SELECT m.id, CASE WHEN {TEXT_BYTES} <= ? THEN {_TEXT} END FROM messages m"
        " WHERE m.id > ? AND m.id <= ? ORDER BY m.id",
        (limits.INDEX_ASIDE_BYTES, above, through),
    ).fetchall()


def _is_indexed(conn: Connection, above: int, through: int) -> bool:
    """Return True if one of the messages, or another row with such an id, is indexed already."""
    return any(
        scalar(conn, f"SELECT 1 FROM {table}_docsize WHERE id > ? AND id <= ?", (above, through))
        for table in TABLES
    )
