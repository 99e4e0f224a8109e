"""``hermes-actor vacuum`` and ``hermes-actor detach``."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path
from typing import Any

import click

from hermes_actor import exit_codes, limits
from hermes_actor.cli.files import store_for
from hermes_actor.cli.output import (
    confirm,
    db_option,
    json_option,
    print_error,
    print_result,
    progress,
    size_text,
    waiting,
    waiting_for,
    yes_option,
)
from hermes_actor.cli.owner import has_owner, index_fully, owned_writer
from hermes_actor.client.control import ask_status
from hermes_actor.client.ending import stop_actor
from hermes_actor.client.spawn import start_lock
from hermes_actor.errors import from_sqlite
from hermes_actor.paths import StorePaths
from hermes_actor.sqlite import connect_reader, sqlite3

__all__ = ["detach", "vacuum"]

_ROOM = 2.2
"""A VACUUM writes the content to a temporary file and then to the WAL; the rest is margin."""

_SAMPLE_BYTES = 8 * 1024 * 1024
_WRITES = 3
"""The content is written to the temporary file, to the WAL, and back into the file."""

_TIMEOUT_SECONDS = 3600.0


@click.command()
@db_option
@click.option("--report", is_flag=True, help="Only tell what could be gained.")
@yes_option
@json_option
def vacuum(db: Path | None, report: bool, yes: bool, as_json: bool) -> int:
    """Tell how much of the file is unused, and give it back to the system.

    Deleted rows leave free pages, which new rows use. A VACUUM writes the whole file anew without
    them; everybody who writes waits for that long, and the expected time is told before you are
    asked. Readers go on. It is refused unless 2.2 times the size of the file is free on the disk:
    a full disk in the middle would help nobody.

    Exit codes: 0 done or only reported, 1 refused or declined.

    \b
    Examples:
      hermes-actor vacuum --report
      hermes-actor vacuum
      hermes-actor vacuum --yes --json
    """
    paths = store_for(db)
    found = _space(paths)
    if not as_json:
        print(f"file      {size_text(found['bytes'])}, WAL {size_text(found['wal_bytes'])}")
        print(f"unused    {size_text(found['unused_bytes'])}")
        print(f"disk      {size_text(found['free_bytes'])} free, {size_text(found['needed_bytes'])}"
              f" needed")  # fmt: skip
        print(f"pause     about {found['pause_s']} s for everybody who writes", flush=True)
    if report:
        if as_json:
            print_result(found, "", as_json)
        return exit_codes.OK
    if found["free_bytes"] < found["needed_bytes"]:
        print_error(
            f"not enough room on the disk of {paths.db}: {size_text(found['free_bytes'])} free,"
            f" {size_text(found['needed_bytes'])} needed; nothing was changed"
        )
        return exit_codes.REFUSED
    confirm("Rewrite the file?", yes)
    began = time.monotonic()
    with waiting_for(paths):
        _vacuum(paths)
    after = paths.db.stat().st_size
    found |= {"bytes_after": after, "seconds": round(time.monotonic() - began, 3)}
    text = f"done in {found['seconds']} s: {size_text(found['bytes'])} are {size_text(after)} now"
    print_result(found, text, as_json)
    return exit_codes.OK


def _space(paths: StorePaths) -> dict[str, Any]:
    try:
        with contextlib.closing(connect_reader(paths.db)) as conn:
            page, pages, free = (
                conn.execute(f"PRAGMA {name}").fetchall()[0][0]
                for name in ("page_size", "page_count", "freelist_count")
            )
    except sqlite3.Error as error:
        raise from_sqlite(error, paths.db) from error
    size = page * pages
    return {
        "database": str(paths.db),
        "bytes": size,
        "unused_bytes": page * free,
        "wal_bytes": paths.wal.stat().st_size if paths.wal.exists() else 0,
        "free_bytes": shutil.disk_usage(paths.db.parent).free,
        "needed_bytes": int(_ROOM * size),
        "pause_s": max(1, round(_WRITES * (size - page * free) / _speed(paths))),
    }


def _speed(paths: StorePaths) -> float:
    """Bytes a second that this disk takes, from a small trial beside the store."""
    trial = paths.db.with_name(f".{paths.db.name}.trial-{os.getpid()}")
    block = os.urandom(_SAMPLE_BYTES)
    descriptor = os.open(trial, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        began = time.perf_counter()
        with open(descriptor, "wb", buffering=0) as file:
            while block:
                block = block[file.write(block) :]
            os.fsync(descriptor)
        return _SAMPLE_BYTES / max(time.perf_counter() - began, 1e-6)
    except OSError as error:
        error.filename = str(trial)  # a write does not name its file
        raise
    finally:
        trial.unlink(missing_ok=True)


def _vacuum(paths: StorePaths) -> None:
    from hermes_actor import SessionDB

    mode = "actor" if has_owner(paths) else "embedded"
    db = SessionDB(paths.db, mode=mode, timeout=_TIMEOUT_SECONDS)
    try:
        db.vacuum()
    finally:
        db.close()


@click.command()
@db_option
@yes_option
@json_option
def detach(db: Path | None, yes: bool, as_json: bool) -> int:
    """Leave the file as another program would have left it, and end the actor.

    The full-text indexes are completed, then every table and index whose name begins with
    hermes_actor_ is removed, and with them which sessions were archived in a file of version 11,
    and titles that wait for their session. No session and no message is touched. Use it before
    you go back to a program that opens the file by itself. If programs are still connected it is
    refused, and they are named: their next call would bring everything back.

    Exit codes: 0 detached, 1 refused, declined or not possible.

    \b
    Example:
      hermes-actor detach
    """
    paths = store_for(db)
    clients = _clients(paths)
    if clients:
        print_error(f"still connected: {', '.join(clients)}; end them first")
        return exit_codes.REFUSED
    confirm(f"Remove everything of hermes-actor from {paths.db}?", yes)
    from hermes_actor.engine.admin_tasks import detach as remove

    if has_owner(paths) and (found := ask_status(paths)) is not None:
        # While it is still served: a large backlog may take long.
        with progress("indexing messages") as tell:
            index_fully(paths, found["index"]["newest"], tell)
    # Nobody starts the next actor before the file is as it should be.
    with start_lock(paths, time.monotonic() + limits.DEFAULT_TIMEOUT_SECONDS):
        with waiting(lambda: f"the end of the actor of {paths.db}"):
            if has_owner(paths):
                stop_actor(paths, limits.DEFAULT_TIMEOUT_SECONDS)
        with waiting(lambda: "indexing what is left"), owned_writer(paths) as writer:
            gone = remove(writer)
    print_result(
        {"database": str(paths.db), "removed": gone},
        f"{paths.db} holds nothing of hermes-actor any more; the folder {paths.folder} may go",
        as_json,
    )
    return exit_codes.OK


def _clients(paths: StorePaths) -> list[str]:
    found = ask_status(paths) if has_owner(paths) else None
    if found is None:
        return []
    return [
        f"pid {one['pid']} ({one['name']})"
        for one in found["connections"]
        if one["pid"] != os.getpid()
    ]
