"""What child processes of the tests do: they meet hostile files and disks and tell how it went."""

import contextlib
import ctypes
import json
import os
import resource
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


def outcome(call: Callable[[], Any]) -> dict[str, Any]:
    """The value of a call, or the names of the classes of its error, and the error's text."""
    try:
        return {"value": call(), "classes": [], "text": ""}
    except Exception as error:
        classes = [f"{cls.__module__}.{cls.__name__}" for cls in type(error).__mro__]
        return {"value": None, "classes": classes, "text": str(error)}


def tell(result: Any) -> None:
    print(json.dumps(result))


def open_and_close(path: str, mode: str) -> None:
    from hermes_actor import SessionDB

    SessionDB(Path(path), mode=mode).close()


def warm_up(mode: str) -> None:
    """Use a store once, so that everything is imported while this process may still read it."""
    with tempfile.TemporaryDirectory() as folder:
        from hermes_actor import SessionDB

        db = SessionDB(Path(folder) / "warm.db", mode=mode)
        db.create_session("s", "cli")
        db.append_message("s", "user", "warm")
        db.search_messages("warm")
        outcome(lambda: db.append_message("nope", "user", "x"))
        db.close()


def open_without_privileges(path: str, mode: str) -> None:
    """Root may write everywhere, so it first becomes nobody."""
    warm_up(mode)
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    tell(outcome(lambda: open_and_close(path, mode)))


class Tmpfs:
    """A small disk of our own."""

    error = "hermes_actor.errors.DiskFull"

    def __init__(self, folder: Path) -> None:
        self.filler = folder / "filler"

    def fill(self, leave: int = 0) -> None:
        with self.filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(b"x" * 4096):
                pass
        os.truncate(self.filler, self.filler.stat().st_size - leave)

    def free(self) -> None:
        self.filler.unlink()


class SizeLimit:
    """Where nothing can be mounted: a limit on the size of files, met as an I/O error."""

    error = "hermes_actor.errors.StorageError"

    def fill(self, leave: int = 0) -> None:
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (max(leave, 65536), hard))

    def free(self) -> None:
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


@contextlib.contextmanager
def small_disk() -> Iterator[tuple[Path, Tmpfs | SizeLimit]]:
    with tempfile.TemporaryDirectory() as name:
        mount = ["mount", "-t", "tmpfs", "-o", "size=6m", "none", name]
        if subprocess.run(mount, capture_output=True).returncode == 0:
            try:
                yield Path(name), Tmpfs(Path(name))
            finally:
                subprocess.run(["umount", "--lazy", name], check=True)
        else:
            yield Path(name), SizeLimit()


def drop_modules(connection: sqlite3.Connection) -> None:
    """Make this connection one of a SQLite that was built without FTS5."""
    import _sqlite3

    library = ctypes.CDLL(_sqlite3.__file__)
    keep = (ctypes.c_char_p * 4)(b"json_each", b"json_tree", b"dbstat", None)
    # The handle is the first field behind the object header, in every CPython since 3.2.
    handle = ctypes.c_void_p.from_address(id(connection) + object.__basicsize__)
    assert library.sqlite3_drop_modules(handle, keep) == 0
    probe = outcome(lambda: connection.execute("CREATE VIRTUAL TABLE temp.probe USING fts5(x)"))
    assert probe["text"] == "no such module: fts5"


class NoTrigram(sqlite3.Connection):
    """A connection of a SQLite that knows FTS5 but is too old for the trigram tokenizer."""

    def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
        return self.cursor().execute(sql, *args)

    def executescript(self, sql: str) -> sqlite3.Cursor:
        return self.cursor().executescript(sql)

    def cursor(self, factory: Any = None) -> Any:
        return super().cursor(factory or NoTrigramCursor)


class NoTrigramCursor(sqlite3.Cursor):
    def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
        refuse_trigram(sql)
        return super().execute(sql, *args)

    def executescript(self, sql: str) -> sqlite3.Cursor:
        refuse_trigram(sql)
        return super().executescript(sql)


def refuse_trigram(sql: str) -> None:
    words = "".join(sql.lower().split())
    if "usingfts5" in words and "trigram" in words:
        raise sqlite3.OperationalError("no such tokenizer: trigram")


def without_fts5() -> None:
    connect = sqlite3.connect

    def patched(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        connection = connect(*args, **kwargs)
        drop_modules(connection)
        return connection

    sqlite3.connect = patched  # type: ignore[assignment]


def without_trigram() -> None:
    connect = sqlite3.connect
    sqlite3.connect = lambda *args, **kwargs: connect(  # type: ignore[assignment]
        *args, **{**kwargs, "factory": NoTrigram}
    )
