"""``hermes-actor restore``: replace the content of the store by that of a copy."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import click

from hermes_actor import exit_codes
from hermes_actor.cli.backup import has_content
from hermes_actor.cli.options import db_option, json_option, yes_option
from hermes_actor.cli.output import (
    confirm,
    print_error,
    print_result,
    progress,
    size_text,
    waiting_for,
)
from hermes_actor.cli.store import creatable_paths
from hermes_actor.client.control import has_owner
from hermes_actor.errors import Damaged, HermesActorError, NotADatabase, StorageError, from_sqlite
from hermes_actor.paths import StorePaths, resolve_paths
from hermes_actor.recovery.backup import (
    backup_path,
    create_backup,
    list_backups,
    stamp,
)
from hermes_actor.recovery.scratch import scratch
from hermes_actor.recovery.store_owner import replace_content, run_maintenance
from hermes_actor.sqlite import connect_reader, sqlite3

__all__ = ["prepared", "put_content", "restore"]


_EMPTY = "0 sessions, 0 messages"


@click.command()
@db_option
@click.argument("copy", type=click.Path(path_type=Path), required=False)
@click.option("--list", "list_", is_flag=True, help="Show the copies there are, and do nothing.")
@click.option("--no-backup", is_flag=True, help="Do not copy the present content first.")
@yes_option
@json_option
def restore(
    db: Path | None, copy: Path | None, list_: bool, no_backup: bool, yes: bool, as_json: bool
) -> int:
    """Restore a backup, even while the store is in use.

    COPY is a file that "hermes-actor backup" has made, or any other copy of a store; without it,
    the newest one in the folder "backups". It is checked, and brought up to date if it is from an
    older version. The present content is copied to "backups", so the same command again, without
    COPY, brings it back. Then the copy is written into the file as one transaction: through the
    actor if one runs, else by this command, which owns the store for that time. If the store has
    changed since its content was copied, nothing is replaced: the content is copied again, and
    clients wait for that. They go on with the restored content. If the present file is too damaged
    for that and no actor serves it, it is moved aside.

    Exit codes: 0 restored, 1 declined or not restored; then nothing has changed, unless the message
    says that this is not known.

    \b
    Examples:
      hermes-actor restore --list
      hermes-actor restore
      hermes-actor restore ~/.hermes/backups/state-20260301-101500-000000.backup.db --yes
    """
    paths = creatable_paths(db)
    copies = list_backups(paths.db)
    if list_:
        _list(copies, as_json)
        return exit_codes.OK
    source = copy or (copies[-1] if copies else None)
    if source is None or not source.is_file():
        print_error(f"there is no copy at {source or backup_path(paths.db).parent}")
        return exit_codes.REFUSED
    theirs, ours = _count(source), _count(paths.db) if has_content(paths) else "nothing"
    confirm(f"Replace {paths.db} ({ours}) by {source} ({theirs})?", yes)
    with waiting_for(paths), prepared(paths, source) as ready:
        result, kept = put_content(paths, lambda: contextlib.nullcontext(ready), keep=not no_backup)
    text = f"restored {paths.db} from {source}: {theirs}"
    if kept is not None:
        text += f"\nthe previous content is in {kept}"
    document = {"restored": str(paths.db), "from": str(source), "before": kept and str(kept)}
    print_result({**document, **result}, text, as_json)
    return exit_codes.OK


def _list(copies: list[Path], as_json: bool) -> None:
    found = [{"path": str(copy), "bytes": copy.stat().st_size} for copy in copies]
    if as_json:
        print(json.dumps(found))
    elif not found:
        print("no copies; make one: hermes-actor backup")
    else:
        for one, copy in zip(found, copies, strict=True):
            print(f"{size_text(copy.stat().st_size):>10}  {one['path']}")


def _count(db: Path) -> str:
    """How much is in a store, for people. Raises if a copy is not one."""
    try:
        with contextlib.closing(connect_reader(db)) as conn:
            (sessions,) = conn.execute("SELECT COUNT(*) FROM sessions").fetchone()
            (messages,) = conn.execute("SELECT COUNT(*) FROM messages").fetchone()
    except sqlite3.Error as error:
        explained = from_sqlite(error, db)
        if isinstance(explained, StorageError):
            return f"unreadable: {explained.sqlite_message}"
        raise NotADatabase(f"{db} is no store: {error}", sqlite_message=str(error)) from error
    return f"{sessions} sessions, {messages} messages"


@contextlib.contextmanager
def prepared(paths: StorePaths, source: Path) -> Iterator[Path]:
    """A private copy of *source* that a writer can take: whole, up to date, of the same page size.

    It lies in the folder of the side files and goes with the block.
    """
    from hermes_actor.engine.environment import Environment
    from hermes_actor.engine.open_database import open_database

    with scratch(paths) as ready:
        try:
            with progress("checking the copy") as tell:
                create_backup(source, ready, tell)
            # A store of an older version is migrated here, where nobody waits for it.
            open_database(resolve_paths(ready), Environment()).close()
            with contextlib.closing(sqlite3.connect(ready, isolation_level=None)) as conn:
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
    """That of the present file, which a WAL cannot change; ``None`` if there is none to ask."""
    if not paths.db.exists():
        return None
    with contextlib.suppress(sqlite3.Error), contextlib.closing(connect_reader(paths.db)) as conn:
        (size,) = conn.execute("PRAGMA page_size").fetchone()
        return int(size)
    return None


def put_content(
    paths: StorePaths,
    made: Callable[[], AbstractContextManager[Path]],
    *,
    keep: bool = True,
    damaged: bool = False,
) -> tuple[dict[str, Any], Path | None]:
    """Put what *made* gives in the place of the present content; what the owner says of it.

    And, with *keep*, a copy of the content that was replaced, to its last change. *made* is called
    again, and the copy made again, if there are changes meanwhile. A file that cannot be opened is
    moved aside, and is the copy then. *damaged*: the present content is known to be.
    """
    kept: Path | None = None
    is_new = not has_content(paths)

    @contextlib.contextmanager
    def with_copy() -> Iterator[Path]:
        nonlocal kept
        kept = None if is_new and _count(paths.db) == _EMPTY else _keep_present(paths, damaged)
        try:
            with made() as ready:
                yield ready
        except HermesActorError as error:
            if kept is not None and error.executed == "no":
                kept.unlink()  # it is of another state, or of no use
            raise

    try:
        if keep:
            return replace_content(paths, with_copy), kept
        with made() as ready:
            return run_maintenance(paths, "restore", ready), None
    except (Damaged, NotADatabase):
        if has_owner(paths):
            raise
    with made() as ready:
        moved = _move_aside(paths, ready)
    # The next owner numbers on from what the copy says, and nobody knows its receipts.
    with prepared(paths, paths.db) as ready:
        return run_maintenance(paths, "restore", ready), moved


def _keep_present(paths: StorePaths, damaged: bool) -> Path:
    """Copy the present content to "backups", sound or not."""
    target = backup_path(paths.db)
    with progress("copying the present content") as tell:
        try:
            create_backup(paths.db, target, tell, damaged=damaged)
        except (Damaged, NotADatabase):
            if damaged:
                raise
            create_backup(paths.db, target, tell, damaged=True)  # for the record
    return target


def _move_aside(paths: StorePaths, ready: Path) -> Path:
    """Give a file that nobody can open another name, and its own to *ready*; the other name."""
    from hermes_actor.engine.ownership import OwnerLock

    lock = OwnerLock.acquire(paths)
    try:
        moved = paths.db.with_name(f"{paths.db.name}.damaged-{stamp()}")
        paths.shm.unlink(missing_ok=True)  # it holds locks, no data
        for suffix in ("-wal", ""):
            with contextlib.suppress(FileNotFoundError):
                paths.db.with_name(paths.db.name + suffix).rename(f"{moved}{suffix}")
        ready.rename(paths.db)
    finally:
        lock.release()
    return moved
