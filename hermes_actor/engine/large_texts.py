"""Indexing large texts aside, so that no change waits for them.

A large text is indexed in a thread, in private databases, one for each full-text table. The writer
then copies the result in short transactions: pages first, a bounded number in each, and with the
last ones what makes them part of the index (see :mod:`hermes_actor.engine.fts_segments`). Nothing
is held while the thread works. So at the end the texts are compared with those that it was given;
if a message was changed or deleted meanwhile, or another program has indexed it, the work is thrown
away and begun again. A crash leaves pages that no index knows of; they are removed before the next
text.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from hermes_actor import limits
from hermes_actor.engine.fts_segments import (
    Built,
    UnknownFormat,
    build,
    is_known_format,
    is_staged,
    place,
    remove_leftovers,
    stage,
    unused_number,
)
from hermes_actor.engine.health import failing_index
from hermes_actor.engine.index_entries import Entry, change, entry_of
from hermes_actor.engine.index_notes import has_notes, remove_notes
from hermes_actor.errors import StorageError
from hermes_actor.store.search.coverage import TABLES

if TYPE_CHECKING:
    from hermes_actor.engine.environment import Environment
    from hermes_actor.sqlite import Connection

__all__ = ["Aside"]

_log = logging.getLogger("hermes_actor.engine")


class _Work:
    """Some texts in a thread, and then their segments on the way into the tables."""

    def __init__(self, ids: list[int], parts: dict[str, list[Entry]]) -> None:
        self.ids = ids
        self.finished = False
        self.error: BaseException | None = None
        self._parts = parts
        self._built: list[tuple[str, Built]] = []
        self._given_up = False
        self._number: int | None = None
        self._after = 0

    def run(self) -> None:
        """In the thread: build everything."""
        try:
            for table, entries in self._parts.items():
                if self._given_up:
                    break
                self._built.append((table, build(table, entries)))
        except BaseException as error:
            self.error = error
        self.finished = True
        if self._given_up:
            self.give_up()

    def give_up(self) -> None:
        """Keep nothing. FTS5 cannot be interrupted: the thread ends with the text that it is at."""
        self._given_up = True
        if self.finished:
            while self._built:
                self._built.pop()[1].close()

    def step(self, conn: Connection, env: Environment) -> bool:
        """Do a bounded part inside the open transaction; whether it has been of use."""
        table, built = self._built[0]
        env.failpoint("aside.stage")
        with failing_index():
            if self._number is None:
                self._number, self._after = unused_number(conn, table), 0
            after = stage(conn, table, self._number, built, self._after, limits.ASIDE_STEP_BYTES)
            if after is not None:
                self._after = after
                return True
            if not is_staged(conn, table, self._number, built):
                return False
        if any(entry_of(conn, table, entry.id) != entry for entry in built.entries):
            return False
        env.failpoint("aside.place")
        with failing_index():
            place(conn, table, self._number, built)
        self._number = None
        self._built.pop(0)
        built.close()
        if not self._built:
            remove_notes(conn, self.ids, aside=True)
        return True

    @property
    def is_placed(self) -> bool:
        return self.finished and not self._built


class Aside:
    """The large texts of one writer. Every method but :meth:`step` is harmless at any time."""

    def __init__(self, env: Environment) -> None:
        self.env = env
        self.is_due = True
        """Whether there may be something to do: a note, or work that waits for the writer."""
        self.refusal: str | None = None
        """Why texts cannot be indexed aside; they are then indexed in idle time, in one piece."""
        self._work: _Work | None = None

    def pause(self, *, idle: bool) -> float | None:
        """After how many seconds :meth:`step` has something to do; ``None`` if it has nothing."""
        if not self.is_due or (self.refusal is not None and not idle):
            return None
        return limits.ASIDE_LOOK_SECONDS if self._is_building else 0.0

    @property
    def is_working(self) -> bool:
        return self._work is not None

    @property
    def _is_building(self) -> bool:
        return self._work is not None and not self._work.finished

    @property
    def state(self) -> str:
        """For people: what becomes of large texts now."""
        if self.refusal is not None:
            return f"in one piece, in idle time: {self.refusal}"
        if self._work is None:
            return "none"
        return "building" if self._is_building else "copying"

    def give_up(self) -> None:
        """Forget all work; the notes stay, so it is begun again."""
        if self._work is not None:
            self._work.give_up()
            self._work = None
        self.is_due, self.refusal = True, None

    def step(self, conn: Connection, *, idle: bool) -> bool:
        """Do the next bounded part inside an open transaction; whether that must be committed.

        The caller calls :meth:`give_up` if it is not, or raises. *idle*: nothing waits, and what
        cannot be done aside may be done in one piece.
        """
        try:
            return self._step(conn, idle)
        except UnknownFormat as error:
            self.give_up()
            self.refusal = str(error)
            _log.warning("large texts are indexed in one piece, in idle time: %s", error)
            return False

    def _step(self, conn: Connection, idle: bool) -> bool:
        work = self._work
        if work is None:
            return self._begin(conn, idle)
        if work.error is not None:
            raise _explain(work)
        if not work.step(conn, self.env):
            self.give_up()
            return False
        if work.is_placed:
            self._work = None
        return True

    def _begin(self, conn: Connection, idle: bool) -> bool:
        if not has_notes(conn, aside=True):
            return False
        if self.refusal is not None:
            return idle and _index_at_once(conn, *self._next(conn, 1))
        if not is_known_format():
            raise UnknownFormat("this SQLite keeps its indexes in a form that is not known")
        with failing_index():
            if any(remove_leftovers(conn, table, limits.ASIDE_STEP_PAGES) for table in TABLES):
                return True
        ids, parts = self._next(conn, limits.INDEX_STEP_ROWS)
        if not parts:
            remove_notes(conn, ids, aside=True)
            return True
        self.env.failpoint("aside.build")
        self._work = _Work(ids, parts)
        self.env.start(self._work.run)
        return False

    @staticmethod
    def _next(conn: Connection, rows: int) -> tuple[list[int], dict[str, list[Entry]]]:
        """Notes to settle together, and what they change in each table.

        Texts that can be missed come first; what is left of a deleted message is never found.
        """
        noted = conn.execute(
            "SELECT id FROM hermes_actor_stale s WHERE aside = 1 ORDER BY NOT EXISTS"
            " (SELECT 1 FROM messages m WHERE m.id = s.id), id LIMIT ?",
            (rows,),
        ).fetchall()
        ids, parts, size = list[int](), dict[str, list[Entry]](), 0
        for (message_id,) in noted:
            ids.append(message_id)
            for table in TABLES:
                entry = entry_of(conn, table, message_id)
                if entry.old != entry.new:
                    parts.setdefault(table, []).append(entry)
                    size += len(entry.old or b"") + len(entry.new or b"")
            if size >= limits.ASIDE_STEP_BYTES:
                break
        return ids, parts


def _index_at_once(conn: Connection, ids: list[int], parts: dict[str, list[Entry]]) -> bool:
    for table, entries in parts.items():
        for entry in entries:
            change(conn, table, entry)
    remove_notes(conn, ids, aside=True)
    return True


def _explain(work: _Work) -> Exception:
    if isinstance(work.error, UnknownFormat):
        return work.error
    return StorageError(
        f"the text of message {work.ids[0]} cannot be indexed: {work.error or 'no memory'}"
    )
