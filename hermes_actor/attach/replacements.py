"""Files that hermes-agent puts in the place of a store: an imported archive, a restored snapshot.

Written over the file that an actor serves, they would be taken for damage, and what was
acknowledged since the archive was made would be gone. So what is written is collected beside the
store, and becomes its content by way of its owner, in one transaction, after the present content
was copied to ``backups``. Programs that have the store open go on with the new content.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hermes_actor.attach.boot import is_store
from hermes_actor.client.control import has_owner, stop_actor
from hermes_actor.client.spawn import start_lock
from hermes_actor.errors import BadValue, Damaged, HermesActorError, NotADatabase, WrongKind
from hermes_actor.paths import StorePaths, resolve_paths
from hermes_actor.recovery.backup import backup_path, create_backup
from hermes_actor.recovery.restore import (
    has_content,
    kind_to_restore,
    prepared_copy,
    replace_store,
)
from hermes_actor.recovery.scratch import remove_store, scratch
from hermes_actor.recovery.store_owner import changes_held

__all__ = ["NewContent", "copy_file", "move_file", "watch_removals"]

_SECONDS = 20.0
"""Longest wait for the end of an actor, and for others that start one."""

_HEADER = b"SQLite format 3\0"


class NewContent(io.BufferedWriter):
    """A file that is open to be written over a store, as ``open(store, "wb")`` returns it.

    ``close`` replaces the content of the store. It raises ``OSError`` if what was written is no
    whole database; the store stays as it is. Not closed, or left by an exception, it changes
    nothing.
    """

    def __init__(self, store: str | os.PathLike[str]) -> None:
        self._paths = resolve_paths(Path(store))
        self._stack = contextlib.ExitStack()
        self._part = self._stack.enter_context(scratch(self._paths))
        super().__init__(io.FileIO(self._part, "wb"))

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._give_up()
        self.close()

    def __del__(self) -> None:
        self._give_up()

    def close(self) -> None:
        """Make what was written the content of the store."""
        if self.closed:
            return
        super().close()
        with self._stack:
            _replace(self._paths, self._part)

    def _give_up(self) -> None:
        if not self.closed:
            super().close()
            self._stack.close()


def copy_file(original: Callable[..., Any], src: Any, dst: Any, **named: Any) -> Any:
    """Copy like *original* of ``shutil``; a store becomes one whole file, and the copy of a file
    onto a store its content."""
    source, target = Path(os.fsdecode(src)), Path(os.fsdecode(dst))
    target = target / source.name if target.is_dir() else target
    if _is_kept(target):
        with scratch(resolve_paths(target)) as part:
            original(src, part, **named)
            _replace(resolve_paths(target), part)
        return dst
    watch_removals()
    if _is_kept(source):
        with contextlib.suppress(HermesActorError):
            # One that is damaged is copied as it is, as evidence.
            create_backup(source, target)
            if original is not shutil.copyfile:
                shutil.copymode(source, target)
            return dst
    return original(src, dst, **named)


def move_file(original: Callable[..., Any], src: Any, dst: Any, **named: Any) -> Any:
    """Move like ``shutil.move``; what is moved onto a store becomes its content."""
    source, target = Path(os.fsdecode(src)), Path(os.fsdecode(dst))
    paths = resolve_paths(target)
    removed = _removed.pop(paths, None)
    if removed is not None:
        removed.put_back()
    if source.is_file() and _is_kept(target):
        _replace(paths, source)
        source.unlink()
        return dst
    return original(src, dst, **named)


# --- stores that are removed first ----------------------------------------------------------------


class _Removed:
    """A store that the program removes: it is kept under another name, and changes wait, until
    something else is moved into its place.

    Without an actor a copy is kept, and none is started meanwhile, which would begin an empty
    store.
    """

    def __init__(self, paths: StorePaths) -> None:
        self._paths = paths
        self._stack = contextlib.ExitStack()
        until = time.monotonic() + _SECONDS
        if has_owner(paths):
            self._kept = self._stack.enter_context(scratch(paths))
            self._stack.enter_context(changes_held(paths))
        else:
            self._kept = backup_path(paths.db)
            self._stack.enter_context(start_lock(paths, until))
        # A program that has removed it for good must not keep others waiting.
        self._timer = threading.Timer(_SECONDS, self._stack.close)
        self._timer.daemon = True
        self._timer.start()
        self._keep()

    def _keep(self) -> None:
        if self._kept.parent == self._paths.folder:
            # Another name of the same file: the actor goes on with it, once it is put back.
            os.link(self._paths.db, self._kept)
            return
        try:
            create_backup(self._paths.db, self._kept)
        except (Damaged, NotADatabase):
            create_backup(self._paths.db, self._kept, damaged=True)

    def put_back(self) -> None:
        """Put the store back for its owner, which then takes over what replaces it: so epoch,
        receipts and the numbers of commits go on."""
        self._timer.cancel()
        with self._stack:
            if self._paths.db.exists():
                pass
            elif self._kept.parent == self._paths.folder:
                os.link(self._kept, self._paths.db)
            else:
                remove_store(self._paths.db)  # a log of before must not be beside it
                part = self._paths.folder / f"restore-{os.getpid()}.db"
                shutil.copyfile(self._kept, part)
                part.rename(self._paths.db)


_removed: dict[StorePaths, _Removed] = {}
_homes: tuple[str, ...] = ()
_is_watching = False
_own = threading.Event()
"""Set while it is this module that removes a store."""


def watch_removals(homes: Sequence[str] | None = None) -> None:
    """Notice, from the first copy on, that the program removes a store of *homes*: it moves the
    copy into its place then.

    ``Path.unlink`` can be noticed by a hook for audits only, which Python cannot remove again. So a
    process that copies nothing into a home has none.
    """
    global _homes, _is_watching
    if homes is not None:
        _homes = tuple(homes)
    elif not _is_watching:
        _is_watching = True
        sys.addaudithook(_on_event)


def _on_event(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "os.remove" or _own.is_set():
        return
    try:
        path, folder = arguments
        if folder == -1 and is_store(path, _homes) and _is_kept(Path(os.fsdecode(path))):
            paths = resolve_paths(Path(os.fsdecode(path)))
            if paths not in _removed:
                _removed[paths] = _Removed(paths)
    except Exception as error:
        # It is removed all the same; the actor, if there is one, saves what it has.
        sys.stderr.write(f"hermes-actor: {path} was removed beside us: {error}\n")


# --- the replacement ------------------------------------------------------------------------------


def _is_kept(path: Path) -> bool:
    """Return True if *path* is a store with content, or with an owner."""
    return is_store(path, _homes) and has_content(resolve_paths(path))


def _replace(paths: StorePaths, source: Path) -> None:
    """Make *source* the content of the store. Raises ``OSError``."""
    try:
        if _is_database(source):
            kind = kind_to_restore(paths, source)
            replace_store(paths, lambda: prepared_copy(paths, source, kind=kind), kind=kind)
        else:
            raise NotADatabase("it does not begin as one")
    except (WrongKind, BadValue):
        with _kept_away(paths):
            shutil.copyfile(source, part := paths.folder / f"restore-{os.getpid()}.db")
            _own.set()
            try:
                remove_store(paths.db)
            finally:
                _own.clear()
            part.rename(paths.db)
    except HermesActorError as error:
        raise OSError(
            errno.EIO,
            f"the store stays as it is, the new content is refused: {error}",
            str(paths.db),
        ) from error


@contextlib.contextmanager
def _kept_away(paths: StorePaths) -> Iterator[None]:
    """Keep a copy of the store, and actors away from its file, which another one replaces."""
    with start_lock(paths, time.monotonic() + _SECONDS):
        if has_owner(paths):
            stop_actor(paths, _SECONDS)
        create_backup(paths.db, backup_path(paths.db))
        yield


def _is_database(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_HEADER)) == _HEADER
