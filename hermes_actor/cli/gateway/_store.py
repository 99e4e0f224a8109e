"""The session store of a gateway command."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from hermes_actor.cli.command_store import open_store
from hermes_actor.cli.output.errors import fail
from hermes_actor.cli.store import existing_paths, server_of
from hermes_actor.paths import default_home

if TYPE_CHECKING:
    from hermes_actor.gateway.chats import Chats
    from hermes_actor.gateway.store import SessionStore

__all__ = ["folder_option", "opened", "opened_to_read", "unknown_chat"]

folder_option = click.option(
    "--sessions-dir", "folder", type=click.Path(path_type=Path, file_okay=False),
    help="Folder of sessions.json. Default: sessions, in the home of the store.",
)  # fmt: skip


@contextlib.contextmanager
def opened_to_read(db: Path | None, folder: Path | None) -> Iterator[Chats]:
    """Give the chats of a database that exists, for the block. It is not changed by that."""
    from hermes_actor.gateway.chats import Chats

    with open_store(db) as store:
        yield Chats(store, folder or store.home / "sessions", many_hosts=store.many_hosts)


@contextlib.contextmanager
def opened(db: Path | None, folder: Path | None) -> Iterator[SessionStore]:
    """Give the session store of a database that exists, in a file or on a server, for the block."""
    from hermes_actor.gateway.store import SessionStore
    from hermes_actor.session_db import SessionDB

    server = server_of(db)
    if server is None:
        file = existing_paths(db).db
        home, sessions = file.parent, SessionDB(file)
    else:
        home, sessions = default_home(), cast("SessionDB", server.open())
    with (
        contextlib.closing(sessions),
        contextlib.closing(SessionStore(folder or home / "sessions", db=sessions)) as store,
    ):
        yield store


def unknown_chat(key: str) -> None:
    """Fail: there is no such chat."""
    fail(f"Chat '{key}' not found. hermes-actor gateway routes lists them.", prefix="")
