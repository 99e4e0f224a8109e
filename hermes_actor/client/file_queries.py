"""Queries of a file: answered in the calling process, with complete full-text indexes.

The owner of a file indexes messages after it has acknowledged them. A search therefore compares the
watermark in its own snapshot, and has the owner catch up when a message is not covered yet.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from hermes_actor import limits
from hermes_actor.errors import Damaged, IndexBehind, OpenError, SqlError
from hermes_actor.sqlite import sqlite3

# Imported for their answers.
from hermes_actor.store import messages, meta, replay
from hermes_actor.store.registry import ANSWER
from hermes_actor.store.search import matches, merge
from hermes_actor.store.search.coverage import read_indexes
from hermes_actor.store.sessions import (
    archive,
    counts,
    deletion,
    filters,
    insights,
    lineage,
    listing,
    session_tree,
    sessions,
    telegram_topics,
    titles,
)

if TYPE_CHECKING:
    from hermes_actor.client.interfaces import IndexOwner
    from hermes_actor.client.reader import Reader
    from hermes_actor.sqlite import Connection
    from hermes_actor.store.queries import Query

__all__ = ["FileQueries"]

_SUBJECTS = (
    archive, counts, deletion, filters, insights, lineage, listing, matches, merge, messages, meta,
    replay, session_tree, sessions, telegram_topics, titles,
)  # fmt: skip

P = ParamSpec("P")
R = TypeVar("R")

_CATCH_UPS = 3
"""Requests of one search to bring the indexes up to date. A restore or a rebuild can come between
the owner's answer and the snapshot, but not again and again."""


class FileQueries:
    """Answers queries from a reader of the file; *owner* keeps its full-text indexes."""

    def __init__(self, reader: Reader, owner: IndexOwner, timeout: float) -> None:
        self.reader = reader
        self._owner = owner
        self._timeout = timeout

    def query(self, query: Query[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Answer *query* from a state that has every change acknowledged before the call.

        Raises:
            IndexBehind: the full-text indexes could not be brought up to date in time.
            Closed: the reader was closed.
        """
        answer: Callable[..., R] = ANSWER[query]
        if query.view == "index":
            return self.with_complete_index(answer, *args, fallback=answer)
        if query.view == "snapshot":
            return self.reader.snapshot(answer, *args)
        return self.reader.query(answer, *args)

    def close(self) -> None:
        """Close the reader."""
        self.reader.close()

    def with_complete_index(
        self,
        function: Callable[..., R],
        *arguments: Any,
        fallback: Callable[..., R] | None = None,
        exact: bool = False,
    ) -> R:
        """Run *function* in a snapshot in which the indexes cover all that was there before.

        Args:
            exact: The indexes hold nothing else either, because the function does not join
                messages.
            fallback: Run instead if no owner can be reached to catch up, with the time until which
                it may take as its last argument.
        """
        schema, until = -1, time.monotonic() + self._timeout

        def check_and_run(
            conn: Connection, through: int | None = None
        ) -> tuple[int | None, R | None]:
            nonlocal schema
            # In the snapshot of the search itself: checked before it, a message could be added in
            # between.
            behind = matches.index_lag(conn, through, exact=exact)
            # Noted before the function runs: it says which index was found damaged, so that the
            # owner rebuilds once for all the searches that have met the same damage.
            schema = conn.layout_cookie
            return (behind, None) if behind is not None else (None, function(conn, *arguments))

        def attempt(through: int | None = None) -> tuple[int | None, R | None]:
            try:
                return self.reader.snapshot(check_and_run, through)
            except Damaged as error:
                if not self._is_index_damage(error, until):
                    raise
            self._owner.catch_up(0, max(0.0, until - time.monotonic()), damaged=schema)
            return self.reader.snapshot(check_and_run, through)

        behind, result = attempt()
        through, catch_ups = behind, 0
        while behind is not None:
            if catch_ups >= _CATCH_UPS:
                if not exact:
                    # The owner has brought them as far as it can.
                    return self.reader.snapshot(function, *arguments)
                # What is left of a large text that was deleted goes by and by.
                if time.monotonic() > until:
                    raise IndexBehind(
                        "the full-text indexes still hold deleted messages", done=0, total=behind
                    )
                time.sleep(limits.ASIDE_LOOK_SECONDS)
            catch_ups += 1
            try:
                self._owner.catch_up(through or 0, max(0.0, until - time.monotonic()))
            except OpenError:
                if fallback is None:
                    raise
                return self.reader.snapshot(fallback, *arguments, until)
            # Messages that have arrived meanwhile are not waited for.
            behind, result = attempt(through)
        return result  # type: ignore[return-value]

    def _is_index_damage(self, error: Damaged, until: float) -> bool:
        """Return True if a search failed by a damaged index, and not by a damaged table.

        Checked here and not by the owner, because it may mean to read all of the index, which
        would keep every writer waiting.
        """
        if getattr(error.__cause__, "sqlite_errorcode", None) == sqlite3.SQLITE_CORRUPT_VTAB:
            return True

        def read(conn: Connection) -> None:
            # A true result interrupts the statement, so the reading of a large index ends with the
            # time of the caller.
            conn.set_progress_handler(lambda: time.monotonic() > until, 10_000)
            try:
                read_indexes(conn)
            finally:
                conn.set_progress_handler(None, 0)

        try:
            self.reader.snapshot(read)
        except Damaged:
            return True
        except SqlError:
            return False  # interrupted: no time is left to find out
        return False
