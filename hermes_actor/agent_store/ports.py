"""The way to a store: a file through its actor or embedded, or a server."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hermes_actor.agents.rows import FileRows, Rows
from hermes_actor.config import load
from hermes_actor.errors import BadConfig, Closed
from hermes_actor.paths import check_not_hijacked, default_home, prepared_folder, resolve_paths
from hermes_actor.settings import ACTOR_SECRETS_KEY_FILE, AGENTS_DSN
from hermes_protocol.features import AGENTS

if TYPE_CHECKING:
    from hermes_actor.client.interfaces import ChangeStream, WriterPort
    from hermes_actor.sqlite import Connection
    from hermes_protocol.operations import Operation

__all__ = ["Port", "default_file", "default_target", "key_file", "open_port"]

R = TypeVar("R")


def default_file() -> Path:
    """Return ``HERMES_HOME/agents.db``."""
    return default_home() / "agents.db"


def default_target() -> Path | str:
    """Return what ``agents.dsn`` in ``config.yaml`` names, else the file of the home."""
    home = default_home()
    if (home / "config.yaml").exists():
        from hermes_actor.providers.resolve import is_url

        dsn = load(home, "agents").read(AGENTS_DSN)
        if dsn and not is_url(dsn):
            # Each process would resolve a path against its own working folder.
            raise BadConfig(f"agents.dsn is not the URL of a store: {dsn[:80]!r}")
        if dsn:
            return dsn
    return default_file()


def key_file(home: Path) -> Path:
    """Return the file with the key for secrets of *home*, existing or not."""
    if (home / "config.yaml").exists():
        named = load(home, "actor").read(ACTOR_SECRETS_KEY_FILE)
        if named:
            return Path(named).expanduser()
    return home / "agents.key"


class Port(ABC):
    """One open store."""

    address: str
    home: Path
    """The folder of key and fall-back files."""

    @property
    def key_file(self) -> Path:
        """The file with the key for secrets, existing or not."""
        return key_file(self.home)

    @abstractmethod
    def submit(self, operation: Operation[R], timeout: float) -> R:
        """Have *operation* applied, exactly once; return its result when it is durable."""

    @abstractmethod
    def ask(self, question: Callable[[Rows], R], timeout: float) -> R:
        """Return ``question(rows)`` from one snapshot with every acknowledged change."""

    @abstractmethod
    def subscribe(self, after: int | None, timeout: float) -> ChangeStream:
        """Return the changes after ``commit_no`` *after*, or from now on."""

    @abstractmethod
    def close(self) -> None:
        """End this use; calling it again is harmless."""


class FilePort(Port):
    """A file: changes go to its writer, reads open it in this process."""

    def __init__(self, db: Path | str, mode: str, timeout: float) -> None:
        from hermes_actor.client.reader import Reader

        paths = resolve_paths(prepared_folder(db))
        check_not_hijacked(paths)
        self.address, self.home = str(paths.db), paths.db.parent
        self._connect = partial(_writer, paths, "actor" if mode == "on demand" else mode, timeout)
        self._writer: WriterPort | None = None if mode == "on demand" else self._connect()
        self._connecting = threading.Lock()
        self._closed = False
        self._reader = Reader(paths, timeout)

    def submit(self, operation: Operation[R], timeout: float) -> R:
        return self._opened().submit(operation, timeout)

    def ask(self, question: Callable[[Rows], R], timeout: float) -> R:
        self._check_open()

        def run(conn: Connection) -> R:
            return question(FileRows(conn))

        return self._reader.snapshot(run)

    def subscribe(self, after: int | None, timeout: float) -> ChangeStream:
        return self._opened().subscribe(after, timeout)

    def close(self) -> None:
        with self._connecting:
            writer, self._writer = self._writer, None
            self._closed = True
        self._reader.close()
        if writer is not None:
            writer.release()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("this AgentStore is closed")

    def _opened(self) -> WriterPort:
        with self._connecting:
            self._check_open()
            if self._writer is None:
                self._writer = self._connect()
            return self._writer


def _writer(paths: Any, mode: str, timeout: float) -> WriterPort:
    if mode == "actor":
        from hermes_actor.client.actor_client import acquire

        return acquire(paths, timeout, kind=AGENTS)
    if mode == "embedded":
        from hermes_actor.embedded import share

        return share(paths, AGENTS)
    raise ValueError(f"unknown mode {mode!r}; use 'actor', 'on demand' or 'embedded'")


def open_port(store: Path | str | None, mode: str, timeout: float) -> Port:
    """Open the store that *store*, or else the settings of the home, name."""
    target = default_target() if store is None else store
    if target == "":
        # Mostly a variable that is not set: it must not lead to a file of no name.
        raise ValueError("an empty text names no store; None is the store of HERMES_HOME")
    from hermes_actor.providers.resolve import choose_by_url, is_url

    if isinstance(target, Path) or not is_url(target):
        return FilePort(target, mode, timeout)
    chosen = choose_by_url(target)
    if chosen.file is not None:
        return FilePort(str(chosen.file), mode, timeout)
    if mode not in ("actor", "on demand"):
        raise BadConfig(f"mode={mode!r} is for files; the store is one of {chosen.name}")
    from hermes_actor.providers.agents import open_server

    return open_server(chosen.name, target, timeout)
