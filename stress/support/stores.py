"""Stores of every kind, for tests that must hold on all of them."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hermes_actor import SessionDB
from support import servers
from support.sqlite_form import on_copy

KINDS = ("actor", "embedded", "postgresql", "mysql")
SERVERS = ("postgresql", "mysql")


class Opener:
    """Stands for the class SessionDB: opens stores, and has its static methods and constants."""

    def __init__(self, open_: Callable[[Path | str], Any]) -> None:
        self._open = open_

    def __call__(self, db_path: Path | str) -> Any:
        return self._open(db_path)

    def __getattr__(self, name: str) -> Any:
        return getattr(SessionDB, name)


class Stores:
    """Opens stores of one kind; a path stands for a store on every kind."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._urls: dict[Path, str] = {}
        self._opened: list[Any] = []

    @property
    def on_server(self) -> bool:
        return self.kind in SERVERS

    def url(self, path: Path | str) -> str:
        """The store that *path* stands for."""
        path = Path(path)
        if not self.on_server:
            return f"sqlite:///{path}?mode={self.kind}"
        if path not in self._urls:
            self._urls[path] = servers.new_store(self.kind)
        return self._urls[path]

    def open(self, db_path: Path | str, **options: Any) -> Any:
        if self.on_server:
            db = SessionDB(self.url(db_path), **options)
        else:
            db = SessionDB(Path(db_path), mode=self.kind, **options)
        self._opened.append(db)
        return db

    @property
    def opener(self) -> Opener:
        return Opener(self.open)

    def sql(self, db: Any, query: str, *args: Any) -> list[tuple[Any, ...]]:
        """Rows of SQL in the form that a file has."""
        if self.on_server:
            return on_copy(db, query, *args)
        return [tuple(row) for row in db._conn.execute(query, args).fetchall()]

    def close(self) -> None:
        for db in self._opened:
            db.close()
        self._opened.clear()


def chosen_kinds() -> list[str]:
    """Kinds of stores that this run of the tests is for."""
    return os.environ.get("STORE_KINDS", " ".join(KINDS)).split()
