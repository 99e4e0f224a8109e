"""``hermes-actor vacuum``: shrink the file by rewriting it without its unused pages."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path
from typing import Any

import click

from hermes_actor import limits
from hermes_actor.cli.every_store import for_every_store
from hermes_actor.cli.options import db_option, json_option, yes_option
from hermes_actor.cli.output.console import confirm, print_result, size_text, waiting_for
from hermes_actor.cli.output.errors import fail
from hermes_actor.cli.store import existing_paths
from hermes_actor.client.control import has_owner
from hermes_actor.client.interfaces import WriterPort
from hermes_actor.errors import from_sqlite
from hermes_actor.paths import StorePaths
from hermes_actor.sqlite import connect_reader, sqlite3
from hermes_actor.store.inspection import page_usage
from hermes_actor.system.disk_speed import measure_write_speed
from hermes_protocol.features import PLAIN
from hermes_protocol.operations import Vacuum

__all__ = ["vacuum"]

_ROOM = 2.2
"""A VACUUM writes the content to a temporary file and to the WAL; the rest is margin."""

_WRITES = 3
"""The content is written to the temporary file, to the WAL, and by a checkpoint to the file."""


@click.command()
@db_option
@click.option("--report", is_flag=True, help="Report what could be gained; change nothing.")
@yes_option
@json_option
@for_every_store()
def vacuum(db: Path | None, report: bool, yes: bool, as_json: bool) -> None:
    """Shrink the file by rewriting it without its unused pages.

    Deleted rows leave free pages, which new rows use. A VACUUM rewrites the whole file without
    them. Writers wait meanwhile, and the expected time is shown before you are asked; readers
    continue. It is refused unless 2.2 times the size of the file is free on the disk, because a
    disk that fills up half-way would help no one.

    Exit codes: 0 done or only reported, 1 refused or declined.

    \b
    Examples:
      hermes-actor vacuum --all --report
      hermes-actor vacuum
      hermes-actor vacuum --yes --json
    """
    paths = existing_paths(db, PLAIN)
    found = _space(paths)
    if not as_json:
        print(f"file      {size_text(found['bytes'])}, WAL {size_text(found['wal_bytes'])}")
        print(f"unused    {size_text(found['unused_bytes'])}")
        print(f"disk      {size_text(found['free_bytes'])} free, {size_text(found['needed_bytes'])}"
              f" needed")  # fmt: skip
        print(f"pause     about {found['pause_s']} s for writers", flush=True)
    if report:
        if as_json:
            print_result(found, "", as_json)
        return
    if found["free_bytes"] < found["needed_bytes"]:
        fail(
            f"not enough free space to rewrite {paths.db}: {size_text(found['free_bytes'])} free,"
            f" {size_text(found['needed_bytes'])} needed; nothing was changed"
        )
    confirm("Rewrite the file?", yes)
    began = time.monotonic()
    with waiting_for(paths):
        _vacuum(paths)
    after = paths.db.stat().st_size
    found |= {"bytes_after": after, "seconds": round(time.monotonic() - began, 3)}
    before = size_text(found["bytes"])
    text = f"done in {found['seconds']} s: from {before} to {size_text(after)}"
    print_result(found, text, as_json)


def _space(paths: StorePaths) -> dict[str, Any]:
    try:
        with contextlib.closing(connect_reader(paths.db)) as conn:
            usage = page_usage(conn)
    except sqlite3.Error as error:
        raise from_sqlite(error, paths.db) from error
    size, unused = usage.page_bytes * usage.pages, usage.page_bytes * usage.free_pages
    speed = measure_write_speed(paths.db.with_name(f".{paths.db.name}.trial-{os.getpid()}"))
    return {
        "database": str(paths.db),
        "bytes": size,
        "unused_bytes": unused,
        "wal_bytes": paths.wal.stat().st_size if paths.wal.exists() else 0,
        "free_bytes": shutil.disk_usage(paths.db.parent).free,
        "needed_bytes": int(_ROOM * size),
        "pause_s": max(1, round(_WRITES * (size - unused) / speed)),
    }


def _vacuum(paths: StorePaths) -> None:
    from hermes_actor.client.actor_client import acquire
    from hermes_actor.embedded import share

    port: WriterPort
    if has_owner(paths):
        port = acquire(paths, limits.DEFAULT_TIMEOUT_SECONDS, PLAIN)
    else:
        port = share(paths, PLAIN)
    try:
        port.submit(Vacuum(), limits.MAINTENANCE_SECONDS)
    finally:
        port.release()
