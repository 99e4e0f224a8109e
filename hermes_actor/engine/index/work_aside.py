"""Segments that are built aside for the full-text indexes, from the thread to their place.

The thread works on private databases and nothing is held meanwhile. The writer then copies what
was built, compares the texts, and either puts it into place or throws it away: see
:mod:`hermes_actor.engine.index.large_texts` and :mod:`hermes_actor.engine.index.bulk`.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from hermes_actor import limits
from hermes_actor.engine.health import failing_index
from hermes_actor.engine.index.build_folder import BuildFolder
from hermes_actor.engine.index.entries import Entry, entry_of
from hermes_actor.engine.index.notes import remove_notes
from hermes_actor.engine.index.segments import (
    Built,
    build,
    is_staged,
    place,
    stage,
    unused_number,
)

if TYPE_CHECKING:
    from hermes_actor.engine.environment import Builder, Environment
    from hermes_actor.paths import StorePaths
    from hermes_actor.sqlite import Connection

__all__ = ["TextWork", "TextWorkApart", "Work", "size_of"]


class Work:
    """Segments that a thread builds in private databases, for the writer to copy."""

    def __init__(self) -> None:
        self.finished = False
        self.error: BaseException | None = None
        self._built: list[tuple[str, Built]] = []
        self._given_up = False

    def run(self) -> None:
        """In the thread: build everything."""
        try:
            self._build()
        except BaseException as error:
            # Kept for the writer, which decides what it means: no caller waits for this thread.
            self.error = error
        # Last: as soon as it is set, the writer reads the rest without a lock. Each side sets its
        # flag before it reads the other's, so one of the two closes what was built.
        self.finished = True
        if self._given_up:
            self.give_up()

    def _build(self) -> None:
        raise NotImplementedError

    def give_up(self) -> None:
        """Keep nothing. FTS5 cannot be interrupted: the thread ends with the text that it is at."""
        self._given_up = True
        if self.finished:
            while self._built:
                self._built.pop()[1].close()

    def close(self) -> None:
        """Like :meth:`give_up`, at the end of the writer's life."""
        self.give_up()


class TextWork(Work):
    """Some texts in a thread, and then their segments on the way into the tables."""

    is_apart = False
    """True if a process of its own does it."""

    def __init__(self, ids: list[int], parts: dict[str, list[Entry]]) -> None:
        super().__init__()
        self.ids = ids
        self.size = size_of(parts)
        self._parts = parts
        self._number: int | None = None
        self._after = 0

    def _build(self) -> None:
        for table, entries in self._parts.items():
            # The only place to stop at: inside a row FTS5 cannot be interrupted.
            if self._given_up:
                break
            self._built.append((table, build(table, entries)))

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
            # The copy took several transactions; its pages may have gone with a rebuild meanwhile.
            if not is_staged(conn, table, self._number, built):
                return False
        # In the transaction that places. Nothing was locked while the thread worked, so this alone
        # makes sure that the index gets the text of the message as it is (G4).
        if any(entry_of(conn, table, entry.id) != entry for entry in built.entries()):
            return False
        env.failpoint("aside.place")
        with failing_index():
            place(conn, table, self._number, built)
        # In memory before the commit: if that fails, the caller gives up all work, and the note,
        # which is still there, begins it again.
        self._number = None
        self._built.pop(0)
        built.close()
        if not self._built:
            # With the last table: a note that went earlier would let a search rely on an index that
            # lacks the text (G4).
            remove_notes(conn, self.ids, aside=True)
        return True

    @property
    def is_placed(self) -> bool:
        """True if the indexes have everything, once the open transaction is committed."""
        return self.finished and not self._built


class TextWorkApart(TextWork):
    """A text that is too large for the memory of this process."""

    is_apart = True

    def __init__(
        self, ids: list[int], parts: dict[str, list[Entry]], paths: StorePaths, env: Environment
    ) -> None:
        super().__init__(ids, parts)
        self._folder = BuildFolder(paths)
        self._env = env
        self._builder: Builder | None = None
        # Held from the check of _given_up to the start of the process: otherwise one could start
        # just after give_up() has looked for one to kill.
        self._starting = threading.Lock()
        self._began, self._ended = False, threading.Event()

    def run(self) -> None:
        self._began = True
        try:
            super().run()
        finally:
            self._ended.set()

    def _build(self) -> None:
        tables = list(self._parts)
        with self._folder as folder:
            for table in tables:
                # From here on the texts lie in the folder, and no longer in memory.
                folder.add(table, self._parts.pop(table))
            with self._starting:
                if self._given_up:
                    return
                self._builder = self._env.start_builder(folder.path, self.size)
            try:
                self._builder.wait()
            finally:
                # After success as well, where it is harmless: no process stays, whatever happens.
                self._builder.kill()
            for table in tables:
                # While the folder is there; what is open stays usable without it.
                self._built.append((table, folder.open(table)))

    def give_up(self) -> None:
        """Keep nothing, and end the process at once."""
        with self._starting:
            self._given_up = True
        if self._builder is not None and not self.finished:
            self._builder.kill()
        super().give_up()

    def close(self) -> None:
        """Also have the thread remove its folder: the actor is about to end."""
        self.give_up()
        # A thread that has not begun will see that it was given up before it starts a process.
        if self._began:
            self._ended.wait(limits.ASIDE_CLOSE_SECONDS)


def size_of(parts: dict[str, list[Entry]]) -> int:
    """Return the bytes of text that the largest of the private tables takes."""
    return max(
        (sum(len(e.old or b"") + len(e.new or b"") for e in some) for some in parts.values()),
        default=0,
    )
