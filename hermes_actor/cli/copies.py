"""``hermes-actor backup`` and ``hermes-actor restore``."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from hermes_actor import exits
from hermes_actor.backup import back_up, backup_path, backups_of, weed
from hermes_actor.cli.files import place_for
from hermes_actor.cli.manners import (
    complain,
    confirmed,
    db_option,
    json_option,
    progress,
    say,
    size_text,
    waiting_for,
    yes_option,
)
from hermes_actor.cli.owner import has_owner, maintain
from hermes_actor.config import load
from hermes_actor.errors import Damaged, HermesActorError, NotADatabase, StorageError, from_sqlite
from hermes_actor.paths import Place, place_of
from hermes_actor.settings import BACKUP_KEEP
from hermes_actor.sqlite import connect_reader, sqlite3

__all__ = ["backup", "copy_store", "keep_option", "prepared", "put_content", "restore"]

keep_option = click.option(
    "--keep", type=click.IntRange(min=1), metavar="N",
    help="How many copies are kept; default: updates.backup_keep of config.yaml,"
    f" else {BACKUP_KEEP.default}.",
)  # fmt: skip


def copy_store(place: Place, keep: int | None, to: Path | None = None) -> Path:
    """Copy the store to the next free name, or *to*, and weed the older copies; the new one."""
    if keep is None:
        keep = load(place.db.parent, "updates").read(BACKUP_KEEP)
    target = to or backup_path(place.db)
    with progress(f"copying {place.db.name}") as tell:
        back_up(place.db, target, tell)
    if to is None:
        weed(place.db, keep)
    return target


@click.command()
@db_option
@keep_option
@click.option("--to", type=click.Path(path_type=Path), help="Copy to this file; removes no other.")
@json_option
def backup(db: Path | None, keep: int | None, to: Path | None, as_json: bool) -> int:
    """Copy the store while it is in use, verify the copy, and keep the newest few.

    Nobody is stopped or slowed down: the copy is made by a reader inside one snapshot, in small
    steps with pauses. It is one file, mode 0600, with everything that was acknowledged before it
    began, and appears under its name only after it was opened and checked. Without --to it goes to
    the folder "backups" beside the store.

    Exit codes: 0 the copy is there, 1 there is no store, or it could not be copied.

    \b
    Examples:
      hermes-actor backup
      hermes-actor backup --keep 14
      hermes-actor backup --to /mnt/usb/state.db
    """
    place = place_for(db)
    if not place.db.exists():
        complain(f"there is no store at {place.db}")
        return exits.REFUSED
    began = time.monotonic()
    target = copy_store(place, keep, to)
    document = {
        "path": str(target),
        "bytes": target.stat().st_size,
        "seconds": round(time.monotonic() - began, 3),
        "kept": [str(copy) for copy in backups_of(place.db)],
    }
    say(document, str(target), as_json)
    return exits.OK


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
    """Bring the content of a copy back into the store, also while it is in use.

    COPY is a file that "hermes-actor backup" has made, or any other copy of a store; without it,
    the newest one in the folder "backups". The present content is copied there first, so the same
    command again, without COPY, brings it back. Then the copy is checked, brought up to date if it
    is from an older version, and written into the file as one transaction: through the actor if
    one runs, else by this command, which owns the store for that time. Clients wait meanwhile and
    go on with the restored content. If the present file is too damaged for that and nobody serves
    it, it is moved aside.

    Exit codes: 0 restored or declined, 1 not restored; then nothing has changed.

    \b
    Examples:
      hermes-actor restore --list
      hermes-actor restore
      hermes-actor restore ~/.hermes/backups/state-20260301-101500-000000.backup.db --yes
    """
    place = place_for(db)
    copies = backups_of(place.db)
    if list_:
        _list(copies, as_json)
        return exits.OK
    source = copy or (copies[-1] if copies else None)
    if source is None or not source.is_file():
        complain(f"there is no copy at {source or backup_path(place.db).parent}")
        return exits.REFUSED
    theirs, ours = _count(source), _count(place.db) if place.db.exists() else "nothing"
    if not confirmed(f"Replace {place.db} ({ours}) by {source} ({theirs})?", yes):
        return exits.OK
    kept = None if no_backup or not place.db.exists() else _keep_present(place)
    with waiting_for(place), prepared(place, source) as ready:
        result = put_content(place, ready)
    text = f"restored {place.db} from {source}: {theirs}"
    kept = result.pop("moved", None) or kept
    if kept:
        text += f"\nthe content of before is in {kept}"
    document = {"restored": str(place.db), "from": str(source), "before": kept and str(kept)}
    say({**document, **result}, text, as_json)
    return exits.OK


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
            return f"unreadable: {explained.words}"
        raise NotADatabase(f"{db} is no store: {error}", words=str(error)) from error
    return f"{sessions} sessions, {messages} messages"


def _keep_present(place: Place) -> Path | None:
    target = backup_path(place.db)
    with progress("copying the present content") as tell:
        try:
            back_up(place.db, target, tell)
            return target
        except (Damaged, NotADatabase):
            # For the record. What cannot even be copied is moved aside as it is, or refused.
            with contextlib.suppress(StorageError):
                back_up(place.db, target, tell, damaged=True)
                return target
    return None


@contextlib.contextmanager
def prepared(place: Place, source: Path) -> Iterator[Path]:
    """A private copy of *source* that a writer can take: whole, up to date, of the same page size.

    It lies in the folder of the side files and goes with the block.
    """
    from hermes_actor.engine.opening import open_database
    from hermes_actor.engine.seams import Seams

    place.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    ready = place.folder / f"restore-{os.getpid()}.db"
    try:
        with progress("checking the copy") as tell:
            back_up(source, ready, tell)
        # A store of an older version is migrated here, where nobody waits for it.
        open_database(place_of(ready), Seams()).close()
        with contextlib.closing(sqlite3.connect(ready, isolation_level=None)) as conn:
            conn.execute("PRAGMA journal_mode = DELETE").fetchall()
            if (size := _page_size(place)) is not None:
                conn.execute(f"PRAGMA page_size = {size}")
                if conn.execute("PRAGMA page_size").fetchall() != [(size,)]:
                    conn.execute("VACUUM")
        yield ready
    except sqlite3.Error as error:
        if isinstance(error, HermesActorError):
            raise
        raise from_sqlite(error, source) from error
    finally:
        for suffix in ("", "-wal", "-shm", "-journal"):
            ready.with_name(ready.name + suffix).unlink(missing_ok=True)


def _page_size(place: Place) -> int | None:
    """That of the present file, which a WAL cannot change; ``None`` if there is none to ask."""
    if not place.db.exists():
        return None
    with contextlib.suppress(sqlite3.Error), contextlib.closing(connect_reader(place.db)) as conn:
        (size,) = conn.execute("PRAGMA page_size").fetchone()
        return int(size)
    return None


def put_content(place: Place, ready: Path) -> dict[str, Any]:
    """Have the owner take the content of *ready*. A file that cannot be opened is moved aside."""
    try:
        return maintain(place, "restore", ready)
    except (Damaged, NotADatabase):
        if has_owner(place):
            raise
    from hermes_actor.engine.ownership import OwnerLock

    lock = OwnerLock.acquire(place)
    try:
        moved = place.db.with_name(f"{place.db.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}")
        place.shm.unlink(missing_ok=True)  # it holds locks, no data
        for suffix in ("-wal", ""):
            with contextlib.suppress(FileNotFoundError):
                place.db.with_name(place.db.name + suffix).rename(f"{moved}{suffix}")
        ready.rename(place.db)
    finally:
        lock.release()
    # The next owner numbers on from what the copy says, and nobody knows its receipts.
    return {**maintain_new(place), "moved": str(moved)}


def maintain_new(place: Place) -> dict[str, Any]:
    """Give a file that has just been put in place an identity of its own."""
    with prepared(place, place.db) as ready:
        return maintain(place, "restore", ready)
