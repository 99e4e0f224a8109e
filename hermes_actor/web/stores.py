"""The stores that the pages show: files and servers of a home, each opened when it is looked at.

Looking starts no actor. The first change, or a search that the index cannot answer yet, connects to
the actor, which is started if none is running.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from hermes_actor import limits
from hermes_actor.agent_store.ports import default_target
from hermes_actor.agent_store.store import AgentStore
from hermes_actor.api.provider import StoreMethods
from hermes_actor.client.actor_client import acquire
from hermes_actor.client.file_queries import FileQueries
from hermes_actor.errors import Closed, HermesActorError, NotAllowed, NotFound
from hermes_actor.paths import (
    StorePaths,
    check_not_hijacked,
    readable,
    resolve_paths,
    stores_below,
)
from hermes_actor.providers.resolve import StoreSpec, choose_by_settings, choose_by_url, is_url
from hermes_actor.sqlite import connect_reader, sqlite3
from hermes_actor.store.inspection import identify, newest_change
from hermes_actor.store.queries import Query
from hermes_actor.web.reads import (
    READ_SECONDS,
    AgentReads,
    Slots,
    TimedReader,
    check_time,
    time_left,
)
from hermes_protocol.features import AGENTS, PLAIN, SESSIONS
from hermes_protocol.operations import Operation

if TYPE_CHECKING:
    from hermes_actor.client.interfaces import WriterPort

__all__ = ["ShownStore", "Stores"]

P = ParamSpec("P")
R = TypeVar("R")

_CHANGES = 2
"""Changes of one store at a time that pages have asked for: a backup may take minutes."""

_LOOK_SECONDS = 10.0
"""Validity of one look at the files of a home."""


UNREADABLE = "unreadable"
"""Kind of a file that is there and cannot be read: damaged, or no database."""


class Sessions(StoreMethods):
    """The methods of a SessionDB for one store; changes are refused if it is *read_only*."""

    def __init__(self, read_only: bool) -> None:
        self._timeout = limits.DEFAULT_TIMEOUT_SECONDS
        self._read_only = read_only

    def query(self, query: Query[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Answer *query* from a state that has every change acknowledged before the call.

        Raises :class:`DeadlineExceeded` if the page has no time left.
        """
        check_time()
        return self._query(query, *args, **kwargs)

    def _submit(self, operation: Operation[R]) -> R:
        if self._read_only:
            raise read_only_refusal()
        return super()._submit(operation)

    def close(self) -> None:
        """End the use of the store."""
        raise NotImplementedError


class FileSessions(Sessions):
    """Sessions in a file."""

    def __init__(self, paths: StorePaths, read_only: bool) -> None:
        super().__init__(read_only)
        check_not_hijacked(paths)
        self._paths = paths
        self._port: WriterPort | None = None
        self._connecting = threading.Lock()
        self._closed = False
        reader = TimedReader(paths)
        if reader.query(identify).is_outdated:
            if read_only:
                raise NotAllowed(
                    f"{paths.db} has the tables of an older version, and its actor would change"
                    " them: open it once without --read-only"
                )
            self._opened_port()  # the actor migrates the file before it welcomes a client
        self._queries: FileQueries = FileQueries(reader, self, READ_SECONDS)

    def catch_up(self, through: int, timeout: float, *, damaged: int | None = None) -> None:
        """Have the actor bring the full-text indexes up to date; see :class:`IndexOwner`."""
        self._opened_port().catch_up(through, timeout, damaged=damaged)

    def _opened_port(self) -> WriterPort:
        with self._connecting:
            if self._closed:
                raise Closed("this store is closed")
            if self._port is None:
                self._port = acquire(self._paths, time_left(self._timeout))
            return self._port

    def close(self) -> None:
        with self._connecting:
            port, self._port, self._closed = self._port, None, True
        self._queries.close()
        if port is not None:
            port.release()


class ServerSessions(Sessions):
    """Sessions on a server."""

    def __init__(self, chosen: StoreSpec, read_only: bool) -> None:
        super().__init__(read_only)
        # The time of its reads; that of changes is this object's.
        self._provider = chosen.open(READ_SECONDS)
        self._port, self._queries = self._provider._port, self._provider._queries

    def close(self) -> None:
        self._provider.close()


def read_only_refusal() -> NotAllowed:
    """Return the error of every change in read-only mode."""
    return NotAllowed("these pages were started with --read-only: nothing can be changed here")


class ShownStore:
    """One store: its name in addresses, what it holds, and the object that reads it."""

    def __init__(
        self, name: str, kind: str, target: StorePaths | StoreSpec, home: Path, *, read_only: bool
    ) -> None:
        self.name, self.kind, self.home, self.read_only = name, kind, home, read_only
        self.paths = target if isinstance(target, StorePaths) else None
        self.server = None if isinstance(target, StorePaths) else target
        self.fault = ""
        """Reason for which the file cannot be read."""
        self._opened: Sessions | AgentStore | None = None
        self._opening = threading.Lock()
        self._reads, self._changes = Slots(self.address), Slots(self.address, _CHANGES)

    @property
    def address(self) -> str:
        """The store for people: a path, or a URL without its password."""
        return str(self.paths.db) if self.paths is not None else str(self._spec.address)

    @property
    def _spec(self) -> StoreSpec:
        assert self.server is not None
        return self.server

    @property
    def sessions(self) -> Sessions:
        """The store as one of sessions. Raises :class:`NotFound` for another kind."""
        opened = self._open()
        if not isinstance(opened, Sessions):
            raise NotFound(f"{self.address} holds no sessions")
        return opened

    @property
    def agents(self) -> AgentStore:
        """The store as one of agents. Raises :class:`NotFound` for another kind."""
        opened = self._open()
        if not isinstance(opened, AgentStore):
            raise NotFound(f"{self.address} holds no agents")
        return opened

    def file(self) -> StorePaths:
        """Return the paths of the file. Raises :class:`NotAllowed` for a server."""
        if self.paths is None:
            raise NotAllowed(f"{self.address} is on a server: this is for files only")
        return self.paths

    def newest_change(self) -> int | None:
        """Return the ``commit_no`` after which a live page goes on that is rendered now.

        ``None`` if the store cannot be read. Starts no actor.
        """
        try:
            if self.paths is not None:
                # Not its status: an actor that opens the file has no number yet.
                with contextlib.closing(connect_reader(self.paths.db)) as conn:
                    return newest_change(conn)
            port: Any = self.agents.port if self.kind == AGENTS else self.sessions._opened_port()
            newest: int = port.newest_change(READ_SECONDS)
            return newest
        except (sqlite3.Error, OSError, HermesActorError):
            return None

    async def read(self, function: Callable[..., R], *arguments: Any) -> R:
        """Return what a function reads in a thread; see :meth:`Slots.read`."""
        return await self._reads.read(function, *arguments)

    async def change(self, function: Callable[..., R], *arguments: Any) -> R:
        """Return what a function that changes the store returns; see :meth:`Slots.change`."""
        return await self._changes.change(function, *arguments)

    def _open(self) -> Sessions | AgentStore | None:
        with self._opening:
            if self._opened is None:
                self._opened = self._new()
            return self._opened

    def _new(self) -> Sessions | AgentStore | None:
        if self.kind == AGENTS:
            return AgentReads(self.paths if self.paths is not None else self._spec.url)
        if self.kind != SESSIONS:
            return None
        if self.paths is not None:
            return FileSessions(self.paths, self.read_only)
        return ServerSessions(self._spec, self.read_only)

    def close(self) -> None:
        """Close what was opened; a later read opens it again."""
        with self._opening:
            opened, self._opened = self._opened, None
        if opened is not None:
            with contextlib.suppress(HermesActorError):
                opened.close()


class Stores:
    """The stores of a home, or the one that was asked for.

    *only* is a file or a URL.
    """

    def __init__(self, home: Path, only: str | None = None, *, read_only: bool = False) -> None:
        self.home, self.read_only = home, read_only
        self._only = only
        self._known: dict[str, ShownStore] = {}
        self._looking = threading.Lock()
        self._look_again = 0.0

    def all(self) -> list[ShownStore]:
        """Return the stores by name. Looks at the files of the home now and then."""
        with self._looking:
            if time.monotonic() >= self._look_again:
                self._known = {
                    name: self._kept(name, store) for name, store in self._found().items()
                }
                self._look_again = time.monotonic() + _LOOK_SECONDS
            return [self._known[name] for name in sorted(self._known)]

    def _kept(self, name: str, found: ShownStore) -> ShownStore:
        """Return the store that is known by *name*, unless its file holds something else now."""
        known = self._known.get(name)
        if known is not None and known.kind == found.kind:
            return known
        if known is not None:
            known.close()
        return found

    def named(self, name: str) -> ShownStore:
        """Return the store of a name. Raises :class:`NotFound`."""
        known = self._known.get(name)
        if known is not None:
            return known
        for store in self.all():
            if store.name == name:
                return store
        raise NotFound(f"there is no store {name[:80]!r} here")

    def close(self) -> None:
        """Close every store that was opened."""
        for store in self._known.values():
            store.close()

    def _found(self) -> dict[str, ShownStore]:
        if self._only is not None:
            targets = [choose_by_url(self._only) if is_url(self._only) else Path(self._only)]
        else:
            targets = self._targets()
        found: dict[str, ShownStore] = {}
        for target in targets:
            if isinstance(target, StoreSpec) and target.file is None:
                kind = AGENTS if self._is_of_agents(target) else SESSIONS
                name = f"{target.name}-{kind}"
                store = ShownStore(name, kind, target, self.home, read_only=self.read_only)
            else:
                path = target.file if isinstance(target, StoreSpec) else target
                paths = resolve_paths(path or Path())
                seen, fault = kind_of(paths)
                if seen is None:
                    continue
                name = self._name(paths)
                home = paths.db.parent
                store = ShownStore(name, seen, paths, home, read_only=self.read_only)
                store.fault = fault
            found.setdefault(store.name, store)
        return found

    def _targets(self) -> list[StoreSpec | Path]:
        targets: list[StoreSpec | Path] = [paths.db for paths in stores_below(self.home)]
        # Files that no actor has served yet, and what the settings name.
        chosen, agents = choose_by_settings(self.home), default_target()
        targets += [chosen or self.home / "state.db"]
        targets += [choose_by_url(agents) if isinstance(agents, str) else agents]
        return targets

    def _is_of_agents(self, target: StoreSpec) -> bool:
        if self._only is None:
            agents = default_target()
            chosen = choose_by_settings(self.home)
            return target.url == agents and (chosen is None or chosen.url != target.url)
        return False

    def _name(self, paths: StorePaths) -> str:
        """Return the path below the home as one segment of an address."""
        try:
            below = paths.db.relative_to(self.home.resolve())
        except ValueError:
            return readable(paths.db.name)
        return "~".join(map(readable, below.parts))


def kind_of(paths: StorePaths) -> tuple[str | None, str]:
    """Return the kind of the store in a file, and its fault if it cannot be read.

    The kind is ``None`` if there is nothing that can be shown.
    """
    try:
        with contextlib.closing(connect_reader(paths.db)) as conn:
            found = identify(conn)
    except sqlite3.Error as error:
        # What is there and cannot be read is shown: a store that is gone from the list looks lost.
        return (UNREADABLE, str(error)) if paths.db.is_file() else (None, "")
    if found.is_empty or (found.kind is None and found.missing_table is not None):
        return None, ""
    return (found.kind if found.kind in (AGENTS, PLAIN) else SESSIONS), ""
