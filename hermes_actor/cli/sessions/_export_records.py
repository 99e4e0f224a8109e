"""Records of an export: sessions, each read in one snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hermes_actor.store import lineage
from hermes_actor.store import messages as stored
from hermes_actor.store.archive import is_archived
from hermes_actor.store.counts import last_active
from hermes_actor.store.sessions import get_session

if TYPE_CHECKING:
    from hermes_actor.cli.command_store import CommandStore
    from hermes_actor.sqlite import Connection
    from hermes_actor.store.rows import Row

__all__ = ["Written", "parts_of", "read_session", "with_activity"]


class Written(NamedTuple):
    """Amount that an export has written, as a number and as text."""

    number: int
    what: str


def read_session(conn: Connection, session_id: str) -> Row | None:
    """A session with its messages in one state; ``None`` if it was removed meanwhile."""
    row = get_session(conn, session_id)
    if row is None:
        return None
    if "archived" not in row and is_archived(conn, session_id):
        # The mark is in a table of ours where the file has no column for it.
        row["archived"] = 1
    return {**row, "messages": stored.get_messages(conn, session_id)}


def with_activity(conn: Connection, session_id: str) -> Row | None:
    row = read_session(conn, session_id)
    if row is None:
        return None
    texts = row.pop("messages")
    latest = last_active(conn, session_id)
    row["last_active"] = row["started_at"] if latest is None else latest
    row["messages"] = texts
    return row


def parts_of(store: CommandStore, session_id: str, parts: str) -> list[str]:
    if parts == "single":
        return [session_id]
    return store.read(lineage.compression_lineage, session_id)
