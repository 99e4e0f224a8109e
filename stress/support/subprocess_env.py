"""What child processes of the tests do: they meet hostile files and disks and tell how it went."""

import contextlib
import ctypes
import json
import os
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self, cast


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
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        from hermes_actor import SessionDB

        db = SessionDB(Path(folder) / "warm.db", mode=mode)
        db.create_session("s", "cli")
        db.append_message("s", "user", "warm")
        db.search_messages("warm")
        outcome(lambda: db.append_message("nope", "user", "x"))
        db.close()


def open_without_privileges(path: str, mode: str) -> None:
    """Root may write everywhere, so it first becomes an unprivileged user."""
    warm_up(mode)
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    tell(outcome(lambda: open_and_close(path, mode)))


class Tmpfs:
    """A small disk of our own."""

    def __init__(self, folder: Path) -> None:
        self.filler = folder / "filler"

    def fill(self, leave: int = 0) -> None:
        with self.filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(b"x" * 4096):
                pass
        os.truncate(self.filler, self.filler.stat().st_size - leave)

    def free(self) -> None:
        self.filler.unlink()


class PageLimit:
    """Where nothing can be mounted: SQLite itself says that the file may not grow."""

    def __init__(self) -> None:
        self.pages = self.no_limit = 2**30
        connect, limit = sqlite3.connect, self

        def patched(*args: Any, **kwargs: Any) -> sqlite3.Connection:
            class Connection(kwargs.pop("factory", sqlite3.Connection)):  # type: ignore[misc]
                def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
                    if sql.lstrip().upper().startswith("BEGIN"):
                        super().execute(f"PRAGMA max_page_count = {limit.pages}").fetchall()
                    return cast("sqlite3.Cursor", super().execute(sql, *args))

            return connect(*args, factory=Connection, **kwargs)

        sqlite3.connect = patched  # type: ignore[assignment]

    def fill(self, leave: int = 0) -> None:
        self.pages = 1

    def free(self) -> None:
        self.pages = self.no_limit


@contextlib.contextmanager
def small_disk() -> Iterator[tuple[Path, Tmpfs | PageLimit]]:
    # An actor that is still ending may write to the folder while it is removed.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        mount = ["mount", "-t", "tmpfs", "-o", "size=6m", "none", name]
        if subprocess.run(mount, capture_output=True).returncode == 0:
            try:
                yield Path(name), Tmpfs(Path(name))
            finally:
                subprocess.run(["umount", "--lazy", name], check=True)
        else:
            yield Path(name), PageLimit()


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


def without_fts5() -> None:
    connect = sqlite3.connect

    def patched(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*args, **kwargs)
        drop_modules(connection)
        return connection

    sqlite3.connect = patched  # type: ignore[assignment]


def without_trigram() -> None:
    """SQLite before 3.34: it has FTS5 but not this tokenizer."""
    refuse("usingfts5", "trigram", error="no such tokenizer: trigram", name="SQLITE_ERROR")


def without_wal() -> None:
    """A file system that cannot share memory between processes."""
    refuse("journal_mode=wal", error="locking protocol", name="SQLITE_PROTOCOL")


def refuse(*words: str, error: str, name: str) -> None:
    """From now on, statements that contain all these words fail, on every new connection."""
    connect = sqlite3.connect

    def check(sql: str) -> None:
        text = "".join(sql.lower().split())
        if all(word in text for word in words):
            refusal = sqlite3.OperationalError(error)
            refusal.sqlite_errorcode = getattr(sqlite3, name)
            refusal.sqlite_errorname = name
            raise refusal

    class Cursor(sqlite3.Cursor):
        def execute(self, sql: str, *args: Any) -> Self:
            check(sql)
            return super().execute(sql, *args)

        def executescript(self, sql: str) -> sqlite3.Cursor:
            check(sql)
            return super().executescript(sql)

    def patched(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        class Connection(kwargs.pop("factory", sqlite3.Connection)):  # type: ignore[misc]
            def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
                check(sql)
                return cast("sqlite3.Cursor", super().execute(sql, *args))

            def executescript(self, sql: str) -> sqlite3.Cursor:
                check(sql)
                return cast("sqlite3.Cursor", super().executescript(sql))

            def cursor(self, factory: Any = Cursor) -> Any:
                return super().cursor(factory)

        return connect(*args, factory=Connection, **kwargs)

    sqlite3.connect = patched  # type: ignore[assignment]
