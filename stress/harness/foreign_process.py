"""Another program that opens the file beside its owner: run as a script, KIND PATH.

It works until its standard input ends and then tells, as one JSON line, how often it did what it
does and which errors it met. It uses plain ``sqlite3`` and nothing of the product.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import sqlite3
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

HERTZ = 100


def over(seconds: float) -> bool:
    return bool(select.select([0], [], [], seconds)[0])


def reader(path: str) -> None:
    """Opens, reads and closes, as a status line of some tool would."""
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as conn:
        conn.execute("SELECT COUNT(*) FROM sessions").fetchall()


def raw(path: str) -> None:
    """Opens and closes the files without SQLite, as a virus scanner or a copying tool does."""
    for suffix in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(path + suffix, os.O_RDONLY)
            os.read(descriptor, 100)
            os.close(descriptor)


def opener(path: str) -> None:
    """Opens for reading and writing, reads, and closes: it may checkpoint, it writes nothing."""
    with contextlib.closing(sqlite3.connect(path, timeout=5)) as conn:
        conn.execute("SELECT COUNT(*) FROM sessions").fetchall()


def backup(path: str) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as conn,
        contextlib.closing(sqlite3.connect(Path(folder) / "copy.db")) as copy,
    ):
        conn.backup(copy)
        assert copy.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


KINDS: dict[str, Callable[[str], None]] = {
    "reader": reader,
    "raw": raw,
    "opener": opener,
    "backup": backup,
}


def main() -> int:
    act, path = KINDS[sys.argv[1]], sys.argv[2]
    times, errors = 0, list[str]()
    while not over(1 / HERTZ):
        try:
            act(path)
        except (sqlite3.Error, OSError, AssertionError) as error:
            errors.append(f"{type(error).__name__}: {error}")
        times += 1
    print(json.dumps({"times": times, "errors": errors[:5], "failed": len(errors)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
