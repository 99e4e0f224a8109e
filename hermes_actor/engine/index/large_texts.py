"""Indexing large texts aside, so that no change waits for them.

A large text is indexed in a thread, in private databases, one for each full-text table. A very
large one is indexed in a process that the thread waits for: FTS5 needs up to 120 times the size of
a row in memory (:mod:`hermes_actor.engine.index.build_process`). The writer then copies the result
in short transactions: pages first, a bounded number in each, and with the last ones what makes them
part of the index (see :mod:`hermes_actor.engine.index.segments`). Nothing is held while the thread
works. So at the end the texts are compared with those that it was given; if a message was changed
or deleted meanwhile, or another program has indexed it, the work is thrown away and begun again. A
crash leaves pages that no index knows of; they are removed before the next text.

A process that fails costs its own text only: that is tried again, after longer and longer pauses.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from hermes_actor import limits
from hermes_actor.engine.health import failing_index
from hermes_actor.engine.index.build_folder import remove_leftovers as remove_folders
from hermes_actor.engine.index.entries import Entry, change, entries_of
from hermes_actor.engine.index.notes import has_notes, is_noted, remove_notes
from hermes_actor.engine.index.segments import is_known_format, remove_leftovers
from hermes_actor.engine.index.structure import UnknownFormat
from hermes_actor.engine.index.work_aside import TextWork, TextWorkApart, size_of
from hermes_actor.errors import StorageError
from hermes_actor.store.search.coverage import TABLES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hermes_actor.engine.environment import Environment
    from hermes_actor.paths import StorePaths
    from hermes_actor.sqlite import Connection

__all__ = ["LargeTextIndexer"]

_log = logging.getLogger("hermes_actor.engine")


class _Failure(NamedTuple):
    """A text whose process has failed."""

    tries: int
    again: float
    """Time of the next try, by the clock of the environment."""
    words: str


class LargeTextIndexer:
    """The large texts of one writer. Every method but :meth:`step` is harmless at any time."""

    def __init__(self, env: Environment, paths: StorePaths) -> None:
        self.env = env
        self.paths = paths
        self.is_due = True
        """True if there may be something to do: a note, or work that waits for the writer."""
        self.refusal: str | None = None
        """Reason why texts cannot be indexed aside; idle time then indexes them in one piece."""
        self._work: TextWork | None = None
        self._failures: dict[int, _Failure] = {}
        self._resume_at: float | None = None
        """Time when there is something to do, if all that is noted has failed and waits."""
        # At the start of an owner, under its lock: no other process can be building in them.
        remove_folders(paths)

    def pause(self, *, idle: bool) -> float | None:
        """After how many seconds :meth:`step` has something to do; ``None`` if it has nothing."""
        if not self.is_due or (self.refusal is not None and not idle):
            return None
        # Looked at now and then: nothing wakes a writer that sleeps in the queue of its host.
        if self._is_building:
            return limits.ASIDE_LOOK_SECONDS
        if self._resume_at is not None:
            return max(0.0, self._resume_at - self.env.monotonic())
        return 0.0

    def wake(self) -> None:
        """There are notes, perhaps new ones."""
        self.is_due, self._resume_at = True, None

    @property
    def is_working(self) -> bool:
        """True if texts are being built or copied."""
        return self._work is not None

    @property
    def is_delayed(self) -> bool:
        """True if all that is left are texts that have failed, and none of them is due."""
        return self._resume_at is not None and self.env.monotonic() < self._resume_at

    @property
    def failure(self) -> str | None:
        """The text that has failed most often, and why; ``None`` if none has."""
        # A copy: the status is made in another thread, while the writer goes on.
        failures = [*self._failures.values()]
        return max(failures, key=lambda one: one.tries).words if failures else None

    @property
    def tries(self) -> int:
        """Number of tries of the text of :attr:`failure`."""
        return max((one.tries for one in [*self._failures.values()]), default=0)

    @property
    def failed_ids(self) -> list[int]:
        """Messages whose text has failed and was not settled since."""
        return [*self._failures]

    def forget_failures(self, ids: list[int] | None = None) -> None:
        """Try again at once: these texts are others now, or all are."""
        for message_id in self.failed_ids if ids is None else ids:
            self._failures.pop(message_id, None)
        self._resume_at = None

    @property
    def _is_building(self) -> bool:
        return self._work is not None and not self._work.finished

    @property
    def state(self) -> str:
        """For people: what becomes of large texts now."""
        if self.refusal is not None:
            return f"in one piece, in idle time: {self.refusal}"
        if self._work is None:
            failure = self.failure
            return "none" if failure is None else f"failing: {failure}"
        return "building" if self._is_building else "copying"

    def give_up(self) -> None:
        """Forget all work; the notes stay, so it is begun again."""
        if self._work is not None:
            self._work.give_up()
            self._work = None
        self.is_due, self.refusal = True, None

    def close(self) -> None:
        """Forget all work and leave nothing behind: neither a process nor a file."""
        if self._work is not None:
            self._work.close()
        self.give_up()

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
            # A process can fail by itself (killed, no memory, no disk): that costs its own text.
            # The error of a thread is one of maintenance, which logs it and begins again.
            if work.is_apart:
                self._put_off(work, work.error)
                return False
            raise _explain(work)
        if not work.step(conn, self.env):
            self.give_up()
            return False
        if work.is_placed:
            self.forget_failures(work.ids)
            self._work = None
        return True

    def _put_off(self, work: TextWork, error: BaseException) -> None:
        """Try this text again later; what else is noted goes on."""
        work.give_up()
        self._work = None
        # One: a text that needs a process comes alone.
        (message_id,) = work.ids
        tries = self._failures[message_id].tries + 1 if message_id in self._failures else 1
        pause = min(
            # The exponent has a bound: after some days of failures the power would overflow.
            limits.ASIDE_RETRY_FIRST_SECONDS * 2.0 ** min(tries - 1, 30),
            limits.ASIDE_RETRY_MOST_SECONDS,
        )
        words = (
            f"the text of message {message_id} ({work.size / 1e6:.1f} MB) is not indexed after"
            f" {tries} {'try' if tries == 1 else 'tries'}, the next one comes {pause:.0f} s later:"
            f" {str(error) or type(error).__name__}"
        )
        _log.warning("%s: %s", self.paths.db, words)
        again = self.env.monotonic() + pause
        self._failures[message_id] = _Failure(tries, again, words)

    def _begin(self, conn: Connection, idle: bool) -> bool:
        if not has_notes(conn, aside=True):
            return False
        if self.refusal is not None:
            self.forget_failures()
            # One text in a transaction, and in idle time only: all changes wait for it, perhaps for
            # seconds (G13).
            return idle and _index_at_once(conn, *self._next(conn, 1))
        # Tried out with the first large text, and not while the file is opened (G10).
        if not is_known_format():
            raise UnknownFormat("this SQLite keeps its indexes in a form that is not known")
        with failing_index():
            # Before the next copy: between two, all that no index knows of is a leftover.
            if any(remove_leftovers(conn, table, limits.ASIDE_STEP_PAGES) for table in TABLES):
                return True
        self._resume_at = None
        # Their notes went with a rebuild, or were settled in another way.
        self.forget_failures([n for n in self.failed_ids if not is_noted(conn, n, aside=True)])
        ids, parts = self._next(conn, limits.INDEX_STEP_ROWS)
        if not ids:
            # None are left if a pause has ended since: then the next step finds that text.
            self._resume_at = min(self._waiting().values(), default=None)
            return False
        # The tables hold the right texts already: a change was undone, or indexed elsewhere.
        if not parts:
            remove_notes(conn, ids, aside=True)
            return True
        self.env.failpoint("aside.build")
        if size_of(parts) > limits.ASIDE_THREAD_BYTES:
            self._work = TextWorkApart(ids, parts, self.paths, self.env)
        else:
            self._work = TextWork(ids, parts)
        # The thread alone holds the texts, and lets them go as soon as it can.
        del parts
        self.env.start(self._work.run)
        # Nothing was written: the caller rolls back, so no lock is held while the thread works.
        return False

    def _next(self, conn: Connection, rows: int) -> tuple[list[int], dict[str, list[Entry]]]:
        """Notes to settle together, and what they change in each table.

        A text that needs a process comes alone, so that a failure is its own. No notes at all if
        each of them has failed and waits.
        """
        ids, parts = list[int](), dict[str, list[Entry]]()
        for message_id in self._due(conn, rows):
            more = {table: [*entries] for table, entries in parts.items()}
            for table, entry in entries_of(conn, TABLES, message_id).items():
                if entry.old != entry.new:
                    more.setdefault(table, []).append(entry)
            if ids and size_of(more) > limits.ASIDE_THREAD_BYTES:
                break
            ids.append(message_id)
            parts = more
            if sum(size_of({table: entries}) for table, entries in parts.items()) >= (
                limits.ASIDE_STEP_BYTES
            ):
                break
        return ids, parts

    def _waiting(self) -> dict[int, float]:
        """Texts that have failed and are not due yet, and when they are."""
        now = self.env.monotonic()
        return {n: failure.again for n, failure in self._failures.items() if failure.again > now}

    def _due(self, conn: Connection, rows: int) -> Iterator[int]:
        """Messages that are noted, except those that have failed and wait.

        Texts that can be missed come first; what is left of a deleted message is never found.
        """
        waiting = self._waiting()
        noted = conn.execute(
            "SELECT id FROM hermes_actor_stale s WHERE aside = 1 ORDER BY NOT EXISTS"
            " (SELECT 1 FROM messages m WHERE m.id = s.id), id LIMIT ?",
            # So many more: those that wait are left out, and must not hide those behind them.
            (rows + len(waiting),),
        ).fetchall()
        return (n for (n,) in noted if n not in waiting)


def _index_at_once(conn: Connection, ids: list[int], parts: dict[str, list[Entry]]) -> bool:
    for table, entries in parts.items():
        for entry in entries:
            change(conn, table, entry)
    remove_notes(conn, ids, aside=True)
    return True


def _explain(work: TextWork) -> Exception:
    if isinstance(work.error, UnknownFormat):
        return work.error
    return StorageError(
        f"the text of message {work.ids[0]} cannot be indexed: {work.error or 'no memory'}"
    )
