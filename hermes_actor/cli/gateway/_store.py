"""The session store of a gateway command."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hermes_actor.cli.output.errors import fail
from hermes_actor.cli.store import existing_paths

if TYPE_CHECKING:
    from hermes_actor.gateway.store import SessionStore

__all__ = ["folder_option", "opened", "unknown_chat"]

folder_option = click.option(
    "--sessions-dir", "folder", type=click.Path(path_type=Path, file_okay=False),
    help="Folder of sessions.json. Default: sessions, beside the database.",
)  # fmt: skip


@contextlib.contextmanager
def opened(db: Path | None, folder: Path | None) -> Iterator[SessionStore]:
    """Give the session store of a database that exists, for the block."""
    from hermes_actor.gateway.store import SessionStore
    from hermes_actor.session_db import SessionDB

    paths = existing_paths(db)
    with contextlib.closing(SessionDB(paths.db)) as sessions:
        store = SessionStore(folder or paths.db.parent / "sessions", db=sessions)
        try:
            yield store
        finally:
            store.close()


def unknown_chat(key: str) -> None:
    """Fail: there is no such chat."""
    fail(f"Chat '{key}' not found. hermes-actor gateway routes lists them.", prefix="")
