"""The program of a process that indexes very large texts (see :mod:`.build_process`).

An actor runs this source from memory, as it was when the actor started: while an update replaces
the files of the installation, or after a broken one, the actor goes on with the code that it began
with (G12). So it imports the standard library alone, and runs the statements that it finds in the
databases of its folder: their order and meaning are the actor's.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

__all__ = ["BUILT", "Step", "build_all", "main", "run_steps"]

BUILT = "built"
"""Last word of a process that has built everything."""

_CHECK_SECONDS = 0.2
"""Between two checks that the parent lives."""


class Step(NamedTuple):
    """One statement. With a *row*: its parameters are the row's id and its *text*."""

    sql: str
    row: int | None = None
    text: str | None = None
    """Column of ``texts``: ``old`` or ``new``."""


def run_steps(conn: Any, steps: Iterable[Step]) -> None:
    """Run *steps* in a private database that has the table ``texts``."""
    for sql, row, text in steps:
        parameters: tuple[Any, ...] = ()
        if row is not None:
            # By a statement that has ended before the text is used: an open one keeps a copy.
            ((value,),) = conn.execute(f"SELECT {text} FROM texts WHERE id = ?", (row,)).fetchall()
            parameters = (row, value)
        conn.execute(sql, parameters).fetchall()


def build_all(folder: str, connect: Callable[[str], Any]) -> None:
    """Run the steps of every database of *folder*."""
    for name in sorted(os.listdir(folder)):
        if not name.endswith(".db"):
            continue
        conn = connect(os.path.join(folder, name))
        try:
            steps = conn.execute("SELECT sql, row, text FROM steps ORDER BY rowid").fetchall()
            run_steps(conn, [Step(*step) for step in steps])
        finally:
            conn.close()


def main() -> int:
    """Build everything in the folder that the arguments name. Returns the exit code."""
    parent, space, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    import sqlite3  # not by the actor, whose one door to it is hermes_actor.sqlite

    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    _bound_memory(space)
    try:
        build_all(folder, lambda path: sqlite3.connect(path, isolation_level=None))
    except MemoryError:
        _say(f"it needs more than the {space >> 20} MiB of memory that it may have")
        return 1
    except Exception as error:
        _say(f"{type(error).__name__}: {error}")
        return 1
    _say(BUILT)
    return 0


def _say(text: str) -> None:
    # Past the buffers of Python, which are written only when the interpreter ends well.
    os.write(1, f"{text}\n".encode())


def _end_with(parent: int) -> None:
    """End this process when its parent has: what it builds is then of no use.

    By its number: a pipe would stay open in whatever the parent has forked.
    """
    while os.getppid() == parent:
        time.sleep(_CHECK_SECONDS)
    # Not sys.exit(): it would end this thread alone, and FTS5 may be at a row for a minute.
    os._exit(1)


def _bound_memory(space: int) -> None:
    """Be the first to go if memory is short, and have no more than *space* in any case.

    Where a system lacks one of the two, the other remains; macOS ignores the limit.
    """
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (space, space))
