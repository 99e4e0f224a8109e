"""Replacement of the content of a store, by that of a backup or by salvaged rows.

The present content is copied first, and replaced only in the state in which it was copied.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

from hermes_actor.client.control import has_owner
from hermes_actor.errors import (
    BadValue,
    Damaged,
    HermesActorError,
    NotADatabase,
    StorageError,
    from_sqlite,
    wrong_kind,
)
from hermes_actor.paths import StorePaths, resolve_paths
from hermes_actor.recovery.backup import backup_path, create_backup, stamp
from hermes_actor.recovery.scratch import scratch
from hermes_actor.recovery.store_owner import replace_content, run_maintenance
from hermes_actor.sqlite import connect_alone, connect_reader, sqlite3
from hermes_actor.store.inspection import page_usage, recorded_kind
from hermes_actor.store.sessions.counts import PlainCounts, StoreCounts, plain_counts, store_counts
from hermes_protocol.features import PLAIN, SESSIONS

__all__ = [
    "Replacement", "Step", "count_rows", "has_content", "kind_to_restore", "prepared_copy",
    "replace_store",
]  # fmt: skip

Step = Callable[[str], AbstractContextManager[Callable[[int, int], None]]]
"""Announces a step by its name; what it gives takes the progress of the step, done and total."""


@contextlib.contextmanager
def _silent(_name: str) -> Iterator[Callable[[int, int], None]]:
    yield lambda _done, _total: None


class Replacement(NamedTuple):
    """Outcome of :func:`replace_store`."""

    result: dict[str, Any]
    """Result document of the owner."""
    kept: Path | None
    """Copy of the replaced content, if there was any and it was to be kept."""


def has_content(paths: StorePaths) -> bool:
    """Return True if there is anything to copy: an empty file without a log holds nothing."""
    return paths.db.exists() and (paths.db.stat().st_size > 0 or paths.wal.exists())


def kind_to_restore(paths: StorePaths, source: Path) -> str:
    """Return the kind of the store, or of *source* if there is no store that says one.

    Raises :class:`WrongKind` if *source* is of another kind than the store.
    """
    ours, theirs = _recorded_kind(paths.db), _recorded_kind(source)
    if ours is not None and theirs not in (None, ours):
        raise wrong_kind(source, str(theirs), ours)
    return ours or theirs or SESSIONS


def _recorded_kind(db: Path) -> str | None:
    with contextlib.suppress(sqlite3.Error), contextlib.closing(connect_reader(db)) as conn:
        return recorded_kind(conn)
    return None  # there is none, or it cannot be read


def count_rows(db: Path, kind: str = SESSIONS) -> StoreCounts | PlainCounts:
    """Count what a store of *kind*, or a copy of one, holds.

    Raises a :class:`StorageError` if it cannot be read, :class:`BadValue` if it is a database of
    another program.
    """
    try:
        with contextlib.closing(connect_reader(db)) as conn:
            return plain_counts(conn) if kind == PLAIN else store_counts(conn)
    except sqlite3.Error as error:
        explained = from_sqlite(error, db)
        if isinstance(explained, StorageError):
            raise explained from error
        raise BadValue(f"{db} is not a store: {error}") from error


@contextlib.contextmanager
def prepared_copy(
    paths: StorePaths, source: Path, step: Step = _silent, *, kind: str = SESSIONS
) -> Iterator[Path]:
    """Give a private copy of *source* that the owner of *paths* can take over, for the block.

    It is verified, migrated to the current schema, has the page size of the present file, and is in
    the side folder. Raises the errors of :func:`create_backup` and of a migration.
    """
    from hermes_actor.engine.environment import Environment
    from hermes_actor.engine.startup.open_database import open_database

    with scratch(paths) as ready:
        try:
            with step("checking the backup") as progress:
                create_backup(source, ready, progress)
            # Migrated here, where no client waits for it.
            open_database(resolve_paths(ready), Environment(), kind=kind).conn.close()
            with contextlib.closing(connect_alone(ready)) as conn:
                conn.execute("PRAGMA journal_mode = DELETE").fetchall()
                if (size := _page_size(paths)) is not None:
                    conn.execute(f"PRAGMA page_size = {size}")
                    if conn.execute("PRAGMA page_size").fetchall() != [(size,)]:
                        conn.execute("VACUUM")
        except sqlite3.Error as error:
            if isinstance(error, HermesActorError):
                raise
            raise from_sqlite(error, source) from error
        yield ready


def _page_size(paths: StorePaths) -> int | None:
    """Return the page size of the present file, which a WAL cannot change; ``None`` if unknown."""
    if not paths.db.exists():
        return None
    with contextlib.suppress(sqlite3.Error), contextlib.closing(connect_reader(paths.db)) as conn:
        return page_usage(conn).page_bytes
    return None


def replace_store(
    paths: StorePaths,
    prepare: Callable[[], AbstractContextManager[Path]],
    *,
    keep: bool = True,
    damaged: bool = False,
    step: Step = _silent,
    kind: str = SESSIONS,
) -> Replacement:
    """Replace the content of the store by the file that *prepare* gives, in one transaction.

    With *keep* the replaced content is copied to ``backups`` first. If the store changes meanwhile,
    both *prepare* and the copy are repeated while changes are held, so the copy is complete.
    *kind* is that of a file that does not say its own. *damaged* says that the present content is
    known to be damaged, and is copied unverified. A file that cannot be opened, and that no process
    owns, is renamed instead. Raises as :func:`replace_content`; nothing has changed then, unless
    ``executed`` is not ``no``.
    """
    kept: Path | None = None
    is_new = not has_content(paths)

    @contextlib.contextmanager
    def with_copy() -> Iterator[Path]:
        nonlocal kept
        kept = None if is_new and _is_empty(paths, kind) else _keep_present(paths, damaged, step)
        try:
            with prepare() as ready:
                yield ready
        except HermesActorError as error:
            if kept is not None and error.executed == "no":
                kept.unlink()  # of another state, or not needed
            raise

    try:
        if keep:
            return Replacement(replace_content(paths, with_copy, kind=kind), kept)
        with prepare() as ready:
            return Replacement(run_maintenance(paths, "restore", ready, kind=kind), None)
    except (Damaged, NotADatabase):
        if has_owner(paths):
            raise
    with prepare() as ready:
        moved = _move_aside(paths, ready)
    # Epoch, commit number and receipts in the file are those of the copy: replace them like those
    # of any other content, so that no client takes them for its own.
    with prepared_copy(paths, paths.db, step, kind=kind) as ready:
        return Replacement(run_maintenance(paths, "restore", ready), moved)


def _is_empty(paths: StorePaths, kind: str) -> bool:
    with contextlib.suppress(StorageError):
        return not any(count_rows(paths.db, kind))
    return False


def _keep_present(paths: StorePaths, damaged: bool, step: Step) -> Path:
    target = backup_path(paths.db)
    with step("backing up the current content") as progress:
        try:
            create_backup(paths.db, target, progress, damaged=damaged)
        except (Damaged, NotADatabase):
            if damaged:
                raise
            create_backup(paths.db, target, progress, damaged=True)
    return target


def _move_aside(paths: StorePaths, ready: Path) -> Path:
    """Rename a file that cannot be opened, move *ready* in its place, and return the new name."""
    from hermes_actor.engine.ownership import OwnerLock

    lock = OwnerLock.acquire(paths, "command")
    try:
        moved = paths.db.with_name(f"{paths.db.name}.damaged-{stamp()}")
        paths.shm.unlink(missing_ok=True)  # holds locks, no data
        # The log first: a database must never be beside the log of another one.
        for suffix in ("-wal", ""):
            with contextlib.suppress(FileNotFoundError):
                paths.db.with_name(paths.db.name + suffix).rename(f"{moved}{suffix}")
        ready.rename(paths.db)
    finally:
        lock.release()
    return moved
