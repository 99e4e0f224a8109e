"""Backup of a store on a server: an export of all its sessions, checked before it has its name."""

from __future__ import annotations

from pathlib import Path
from typing import IO, TYPE_CHECKING, NoReturn

from hermes_actor.cli.command_store import CommandStore
from hermes_actor.cli.output.errors import fail
from hermes_actor.cli.output.files import Output, checked_folder, checked_output
from hermes_actor.cli.sessions._export_documents import write_records
from hermes_actor.recovery.backup import (
    EXPORT_SUFFIX,
    backup_path,
    list_backups,
    prune_backups,
)
from hermes_actor.store import queries
from hermes_actor.tools.import_records import BadRecord, count_records

if TYPE_CHECKING:
    from hermes_actor.providers.resolve import StoreSpec

__all__ = ["back_up_server", "fail_restore", "list_exports", "next_export", "prune_exports"]

_NAME = "sessions"


def next_export(home: Path) -> Output:
    """Return the file of the next backup of a server, in ``backups`` of *home*."""
    target = backup_path(home / _NAME, suffix=EXPORT_SUFFIX)
    if not home.is_dir():
        fail(f"there is no folder {home} for backups; create it, or name a file with --to")
    checked_folder(target.parent)
    return checked_output(target)


def list_exports(home: Path) -> list[Path]:
    """Return the backups of the server of *home*, oldest first."""
    return list_backups(home / _NAME, suffix=EXPORT_SUFFIX)


def prune_exports(home: Path, keep: int) -> None:
    """Remove all but the newest *keep* of them."""
    prune_backups(home / _NAME, keep, suffix=EXPORT_SUFFIX)


def back_up_server(store: CommandStore, output: Output) -> int:
    """Export all sessions to *output*, read the file back, and return its bytes.

    It appears under its name only if every session and message of it can be imported.
    """
    written, size = (0, 0), 0

    def check(file: IO[bytes]) -> None:
        try:
            found = count_records(file)
        except BadRecord as error:
            fail(f"the export cannot be read back ({error}); no backup was made")
        if found != written:
            fail(f"the export holds {found} of {written} sessions and messages; no backup was made")

    with output.writing(check) as file:
        ids = store.query(queries.ids_by_activity, None, -1)
        written = write_records(store, ids, file)
        if not output.stream:
            size = file.tell()
    return size


def fail_restore(chosen: StoreSpec) -> NoReturn:
    """Fail with the way to bring a backup of a server back."""
    fail(
        f"the sessions of this home are on a server ({chosen.address}), whose content is not"
        " replaced. Add what it lacks with: hermes-actor sessions import --no-limits FILE"
    )
