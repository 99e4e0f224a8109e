"""A private folder in which very large texts are indexed: in files, not in memory.

One database for each full-text table: the texts as they were and as they should be, the statements
that index them, and in the end the private table with its one segment. The writer's thread puts the
texts in, another process builds (:mod:`hermes_actor.engine.index.build_process`), and the thread
opens what was built. The folder is removed in every case; connections that are open by then keep
their files until they are closed. What a crash leaves is removed by the next owner.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Self

from hermes_actor.engine.index.build_script import Step, build_all
from hermes_actor.engine.index.entries import Entry
from hermes_actor.engine.index.segments import Built, build_steps, keep_texts
from hermes_actor.engine.index.structure import UnknownFormat
from hermes_actor.sqlite import connect_alone

if TYPE_CHECKING:
    from hermes_actor.paths import StorePaths
    from hermes_actor.sqlite import Connection

__all__ = ["BuildFailed", "BuildFolder", "BuildHere", "remove_leftovers"]

_PREFIX = "aside-"
_numbers = itertools.count(1)

# Whatever interrupts a build, its files are thrown away: nothing is kept for a rollback, and
# nothing is synced. Without a journal SQLite looks for no second file either, which lets a
# connection outlive the folder. A small cache: FTS5 writes its segment once, in order.
_PRAGMAS = (
    "PRAGMA journal_mode = OFF",
    "PRAGMA synchronous = OFF",
    "PRAGMA locking_mode = EXCLUSIVE",
    "PRAGMA cache_size = -2048",
)


class BuildFailed(Exception):
    """Texts could not be indexed apart from the actor; the message says why."""


class BuildFolder:
    """A new folder among the side files of *paths*, for the time of a ``with`` block."""

    def __init__(self, paths: StorePaths) -> None:
        # Numbered: the thread of a build that was given up may still be at its own.
        self.path = paths.folder / f"{_PREFIX}{os.getpid()}-{next(_numbers)}"

    def __enter__(self) -> Self:
        # The folder of the side files is there, unless it was removed under the owner.
        self.path.parent.mkdir(mode=0o700, exist_ok=True)
        self.path.mkdir(mode=0o700)
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Remove what is there. Calling it again is harmless."""
        shutil.rmtree(self.path, ignore_errors=True)

    def add(self, table: str, entries: Iterable[Entry]) -> None:
        """Keep what is to be changed in *table*."""
        path = self.path / f"{table}.db"
        # Before SQLite does, whose files are as open as the umask of an embedding program.
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        conn = _open(path)
        try:
            keep_texts(conn, entries)
            conn.execute("CREATE TABLE steps (sql TEXT, row INTEGER, text TEXT)")
            steps = [*map(Step, _PRAGMAS), *build_steps(conn, table)]
            conn.executemany("INSERT INTO steps VALUES (?, ?, ?)", steps)
        finally:
            conn.close()

    def open(self, table: str) -> Built:
        """Return what was built for *table*. It stays usable when the folder is gone.

        Raises :class:`BuildFailed` if it is not what this build of the actor expects.
        """
        conn = _open(self.path / f"{table}.db")
        try:
            ((removed,),) = conn.execute("SELECT COUNT(old) FROM texts").fetchall()
            return Built(conn, lambda: _entries(conn), removed)
        except UnknownFormat as error:
            conn.close()
            raise BuildFailed(str(error)) from error
        except BaseException:
            conn.close()
            raise


class BuildHere:
    """The same interface as a process of its own, in the caller's thread.

    For hosts that must be deterministic, and where no process can be started.
    """

    def __init__(self, folder: Path, _size: int) -> None:
        self._folder = folder

    def wait(self) -> None:
        """Build everything, in the calling thread. Raises the error of SQLite."""
        build_all(str(self._folder), connect_alone)

    def kill(self) -> None:
        """It has ended when :meth:`wait` has."""


def remove_leftovers(paths: StorePaths) -> None:
    """Remove folders of owners that have ended without doing so. Call it as the owner."""
    for left in paths.folder.glob(f"{_PREFIX}*"):
        shutil.rmtree(left, ignore_errors=True)


def _open(path: Path) -> Connection:
    conn = connect_alone(path)
    try:
        for pragma in _PRAGMAS:
            conn.execute(pragma)
    except BaseException:
        conn.close()
        raise
    return conn


def _entries(conn: Connection) -> Iterator[Entry]:
    # Each by a statement that has ended before it is used: an open one keeps a copy of the row.
    for (message_id,) in conn.execute("SELECT id FROM texts ORDER BY id").fetchall():
        sql = "SELECT id, old, new FROM texts WHERE id = ?"
        yield Entry(*conn.execute(sql, (message_id,)).fetchall()[0])
