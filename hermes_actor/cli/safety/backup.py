"""``hermes-actor backup``: make a verified backup of a store, even while it is in use."""

from __future__ import annotations

import time
from pathlib import Path

import click

from hermes_actor.cli.every_store import for_every_store
from hermes_actor.cli.options import db_option, force_option, json_option, keep_option
from hermes_actor.cli.output.console import print_result, progress
from hermes_actor.cli.output.files import checked_output
from hermes_actor.cli.store import existing_paths, server_of
from hermes_actor.config import load
from hermes_actor.paths import StorePaths, default_home
from hermes_actor.recovery.backup import backup_path, create_backup, list_backups, prune_backups
from hermes_actor.settings import BACKUP_KEEP
from hermes_protocol.features import PLAIN

__all__ = ["backup", "copy_store"]


def copy_store(paths: StorePaths, keep: int | None) -> Path:
    """Make the next backup of the store, prune older ones, and return its path."""
    keep = _kept(paths.db.parent, keep)
    target = backup_path(paths.db)
    with progress(f"copying {paths.db.name}") as tell:
        create_backup(paths.db, target, tell)
    prune_backups(paths.db, keep)
    return target


def _kept(home: Path, keep: int | None) -> int:
    return keep if keep is not None else load(home, "updates").read(BACKUP_KEEP)


@click.command()
@db_option
@keep_option
@click.option("--to", metavar="FILE", help="Write the backup to this file, and prune no other.")
@force_option
@json_option
@for_every_store("to")
def backup(db: Path | None, keep: int | None, to: str | None, force: bool, as_json: bool) -> None:
    """Make a verified backup of a store, even while it is in use.

    Writers are neither stopped nor slowed down: a reader copies one snapshot, in small steps with
    pauses. The backup is one file, mode 0600, with everything that was acknowledged before it
    began. It appears under its name only after it was verified. Without --to it goes to the folder
    "backups" beside the store, where the newest few are kept. An existing file is overwritten only
    with --force.

    Of a store on PostgreSQL or MySQL it writes the sessions as JSON lines, which are read back
    before the file gets its name. `hermes-actor sessions import` loads them into a store of any
    kind.

    Exit codes: 0 the backup is complete, 1 there is no store, or it could not be copied.

    \b
    Examples:
      hermes-actor backup
      hermes-actor backup --all --keep 14
      hermes-actor backup --to /mnt/usb/state.db
    """
    began = time.monotonic()
    if server_of(db) is not None:
        _back_up_server(keep, to, force=force, as_json=as_json, began=began)
        return
    paths = existing_paths(db, PLAIN)
    if to is None:
        copy = copy_store(paths, keep)
        name, size = str(copy), copy.stat().st_size
    else:
        output = checked_output(to, paths, force=force)
        with progress(f"copying {paths.db.name}") as tell, output.filling() as part:
            create_backup(paths.db, part, tell)
            name, size = output.name, part.stat().st_size
        if output.is_stdout:
            return
    _report(name, size, began, list_backups(paths.db), as_json)


def _back_up_server(
    keep: int | None, to: str | None, *, force: bool, as_json: bool, began: float
) -> None:
    from hermes_actor.cli.command_store import open_store
    from hermes_actor.cli.safety import _server_backup as exports

    home = default_home()
    output = exports.next_export(home) if to is None else checked_output(to, force=force)
    with open_store(None) as store:
        size = exports.back_up_server(store, output)
    if to is None:
        exports.prune_exports(home, _kept(home, keep))
    if not output.is_stdout:
        _report(output.name, size, began, exports.list_exports(home), as_json)


def _report(name: str, size: int, began: float, kept: list[Path], as_json: bool) -> None:
    seconds = round(time.monotonic() - began, 3)
    document = {"path": name, "bytes": size, "seconds": seconds, "kept": [str(k) for k in kept]}
    print_result(document, name, as_json)
