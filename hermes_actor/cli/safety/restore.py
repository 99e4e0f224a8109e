"""``hermes-actor restore``: replace the content of the store with that of a backup."""

from __future__ import annotations

import contextlib
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from hermes_actor.cli.options import db_option, json_option, yes_option
from hermes_actor.cli.output.console import confirm, print_result, progress, size_text, waiting_for
from hermes_actor.cli.output.errors import fail
from hermes_actor.cli.output.formatting import count
from hermes_actor.cli.store import creatable_paths, server_of
from hermes_actor.errors import StorageError
from hermes_actor.paths import default_home
from hermes_actor.recovery.backup import backup_path, list_backups
from hermes_actor.recovery.restore import (
    count_rows,
    has_content,
    kind_to_restore,
    prepared_copy,
    replace_store,
)
from hermes_actor.store.sessions.counts import PlainCounts
from hermes_protocol.features import PLAIN

__all__ = ["restore"]


@click.command()
@db_option
@click.argument("copy", type=click.Path(path_type=Path), required=False)
@click.option("--list", "list_", is_flag=True, help="List the backups and exit.")
@click.option("--no-backup", is_flag=True, help="Do not back up the current content first.")
@yes_option
@json_option
def restore(
    db: Path | None, copy: Path | None, list_: bool, no_backup: bool, yes: bool, as_json: bool
) -> None:
    """Restore a backup, even while the store is in use.

    COPY is a backup or any other copy of a store; without it, the newest one in the folder
    "backups". It is verified, and migrated if it is of an older version. The current content is
    saved in "backups" first, so running the command again without COPY undoes it. Then the copy
    replaces the content in one transaction: through the actor if one is running, else by this
    command. If the store changed since its content was saved, it is saved again while clients wait.
    Clients continue with the restored content. A file that is too damaged to be opened, and that no
    actor serves, is renamed instead.

    Exit codes: 0 restored, 1 declined or failed; then nothing has changed, unless the message says
    that the outcome is unknown.

    A backup of a store on a server is an export: bring it back with `hermes-actor sessions import`.

    \b
    Examples:
      hermes-actor restore --list
      hermes-actor restore
      hermes-actor restore ~/.hermes/backups/state-20260301-101500-000000.backup.db --yes
    """
    server = server_of(db)
    if server is not None:
        from hermes_actor.cli.safety._server_backup import fail_restore, list_exports

        if not list_:
            fail_restore(server)
        copies = list_exports(default_home())
    else:
        paths = creatable_paths(db, PLAIN)
        copies = list_backups(paths.db)
    if list_:
        listed = [_described(copy) for copy in copies]
        lines = [_line(found) for found in listed]
        print_result(listed, "\n".join(lines) or "no backups yet: hermes-actor backup", as_json)
        return
    source = copy or (copies[-1] if copies else None)
    if source is None or not source.is_file():
        fail(f"there is no backup at {source or backup_path(paths.db).parent}")
    kind = kind_to_restore(paths, source)
    theirs = _content(source, kind)
    ours = _content(paths.db, kind) if has_content(paths) else "nothing"
    confirm(f"Replace the content of {paths.db} ({ours}) with {source} ({theirs})?", yes)
    with waiting_for(paths), prepared_copy(paths, source, progress, kind=kind) as ready:
        result, kept = replace_store(
            paths,
            lambda: contextlib.nullcontext(ready),
            keep=not no_backup,
            step=progress,
            kind=kind,
        )
    text = f"restored {paths.db} from {source}: {theirs}"
    if kept is not None:
        text += f"\nyour previous data is saved in {kept}"
    document = {"restored": str(paths.db), "from": str(source), "before": kept and str(kept)}
    print_result({**document, **result}, text, as_json)


def _content(db: Path, kind: str) -> str:
    """Describe what a store of *kind* holds. Raises :class:`BadValue` if it is none."""
    try:
        found = count_rows(db, kind)
    except StorageError as error:
        return f"unreadable: {error.sqlite_message}"
    if isinstance(found, PlainCounts):
        return f"{count(found.tables, 'table')}, {size_text(db.stat().st_size)}"
    return f"{count(found.sessions, 'session')}, {count(found.messages, 'message')}"


def _described(copy: Path) -> dict[str, Any]:
    found = copy.stat()
    return {"path": str(copy), "bytes": found.st_size, "time": round(found.st_mtime)}


def _line(found: dict[str, Any]) -> str:
    made = datetime.fromtimestamp(found["time"])
    return f"{made:%Y-%m-%d %H:%M}  {size_text(found['bytes']):>10}  {found['path']}"
