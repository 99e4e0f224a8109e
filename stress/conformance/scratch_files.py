"""Files in the place of databases in memory, used again once a test has done with them."""

from __future__ import annotations

import contextlib
import sqlite3
import weakref
from collections.abc import Callable
from pathlib import Path

__all__ = ["Connect", "ScratchFiles"]

Connect = Callable[..., sqlite3.Connection]

_OBJECTS = (
    "SELECT type, name FROM sqlite_master"
    " WHERE name NOT LIKE 'sqlite~_%' ESCAPE '~' AND name NOT LIKE 'hermes~_actor~_%' ESCAPE '~'"
    " AND type <> 'index' ORDER BY type = 'table', rowid DESC"
)
"""What a test has left, tables last: views and triggers may depend on them."""


_TRACES = (
    "SELECT user_version, (SELECT 1 FROM sqlite_master WHERE name = 'sqlite_sequence'"
    " OR name LIKE 'sqlite~_stat%' ESCAPE '~') FROM pragma_user_version"
)
"""What cannot be taken away again, or is never."""


class ScratchFiles:
    """Empty databases for a run, few of them: each has an actor of its own."""

    def __init__(self, folder: Path, connect: Connect) -> None:
        self._folder, self._connect = folder, connect
        self._free: list[Path] = []
        self._lent: dict[Path, weakref.ref[sqlite3.Connection]] = {}
        self.made = 0

    def take(self) -> Path:
        """Return the path of an empty database, or of one that is still to be made."""
        if self._free:
            return self._free.pop()
        self.made += 1
        return self._folder / f"memory-{self.made}.db"

    def lend(self, path: Path, conn: sqlite3.Connection) -> None:
        """Keep in mind that *conn* uses *path*."""
        # Those of the standard module cannot be watched; their files cost nothing.
        with contextlib.suppress(TypeError):
            self._lent[path] = weakref.ref(conn)

    def reclaim(self) -> None:
        """Empty the files whose connections are closed; one that resists is not used again."""
        for path, conn in list(self._lent.items()):
            if _is_open(conn()):
                continue
            del self._lent[path]
            with contextlib.suppress(sqlite3.Error):
                self._empty(path)
                self._free.append(path)

    def _empty(self, path: Path) -> None:
        with contextlib.closing(self._connect(path, isolation_level=None)) as conn:
            if conn.execute(_TRACES).fetchone() != (0, None):
                raise sqlite3.NotSupportedError("a file that shows what was in it")
            for _ in range(3):  # dropping one may take others with it
                for kind, name in conn.execute(_OBJECTS).fetchall():
                    with contextlib.suppress(sqlite3.OperationalError):
                        conn.execute(f'DROP {kind} "{name}"')
                if not conn.execute(_OBJECTS).fetchall():
                    break
            else:
                raise sqlite3.OperationalError("something is left in the file")


def _is_open(conn: sqlite3.Connection | None) -> bool:
    if conn is None:
        return False
    try:
        return conn.total_changes >= 0
    except sqlite3.ProgrammingError as error:
        return "closed" not in str(error)
