"""Archive mark, removal by id, and import of sessions, on a server."""

from __future__ import annotations

from sqlalchemy import bindparam, delete, func, insert, select

import hermes_protocol.operations as ops
from hermes_actor.providers.sql.connection import ServerConnection
from hermes_actor.providers.sql.messages import get_messages, insert_all
from hermes_actor.providers.sql.registry import answers, applies
from hermes_actor.providers.sql.sessions.deletion import remove_slice
from hermes_actor.providers.sql.sessions.lineage import compression_lineage
from hermes_actor.providers.sql.sessions.session_row import OF_SESSION, is_there
from hermes_actor.providers.sql.sessions.sessions import get_session
from hermes_actor.providers.sql.sessions.titles import claim_title, free_title
from hermes_actor.providers.sql.tables import archived, messages, sessions
from hermes_actor.store import queries
from hermes_actor.store.rows import Row, chunks

__all__: list[str] = []


@applies(ops.SessionArchive)
def archive(conn: ServerConnection, op: ops.SessionArchive) -> list[str]:
    """Set or clear the archive mark of a session and its compression lineage.

    Returns the ids whose mark changed, none if the session does not exist.
    """
    if not is_there(conn, op.id):
        return []
    chain = compression_lineage(conn, op.id)  # type: ignore[arg-type]
    return [one for one in chain if _mark(conn, one, op.archived, op.now)]


def _mark(conn: ServerConnection, session_id: str, hidden: bool, now: float) -> bool:
    """Set or clear the mark of one session; return True if it has changed."""
    if hidden:
        row = {"session_id": session_id, "archived_at": now}
        return conn.dialect.insert_if_absent(conn, archived, row)
    this = archived.c.session_id == bindparam("key")
    return conn.execute(delete(archived).where(this), {"key": session_id}).rowcount > 0


@answers(queries.is_archived)
def is_archived(conn: ServerConnection, session_id: str) -> bool:
    """Return True if a session is archived."""
    mark = select(archived.c.session_id).where(archived.c.session_id == bindparam("key"))
    return conn.scalar(mark, {"key": session_id}) is not None


@answers(queries.session_record)
def session_record(conn: ServerConnection, session_id: str) -> Row | None:
    """Return a session as an export writes it; ``None`` if it was removed meanwhile."""
    row = get_session(conn, session_id)
    if row is None:
        return None
    if is_archived(conn, session_id):
        row["archived"] = 1
    latest = conn.scalar(
        select(func.max(messages.c.timestamp)).where(OF_SESSION), {"session": session_id}
    )
    row["last_active"] = row["started_at"] if latest is None else latest
    return {**row, "messages": get_messages(conn, session_id)}


@applies(ops.SessionsRemove)
def remove_ended(conn: ServerConnection, op: ops.SessionsRemove) -> ops.Pruned:
    """Remove those of the ids that have ended, in one slice bounded by ``max_rows``.

    With ``more`` the caller sends the operation again.
    """
    # Looked at here and not by the caller: a session may have been reopened meanwhile.
    ended = select(sessions.c.id).where(sessions.c.ended_at.is_not(None))
    ordered = ended.order_by(sessions.c.place).with_for_update()
    found = (
        session_id
        for part in chunks(op.ids, 500)
        for session_id in conn.column(ordered.where(sessions.c.id.in_(part)))
    )
    return remove_slice(conn, found, op.max_rows)


@applies(ops.SessionImport)
def import_session(conn: ServerConnection, op: ops.SessionImport) -> ops.Imported:
    """Insert a session with its messages; change nothing if its id exists.

    A parent that does not exist is dropped (``detached``); a title that is taken becomes the next
    one of its lineage.
    """
    row = op.session
    if is_there(conn, row.id):
        return ops.Imported()
    detached = row.parent_session_id is not None and not is_there(conn, row.parent_session_id)
    title = None if row.title is None else free_title(conn, row.title)
    values = {name: getattr(row, name) for name in ops.SessionRow.__struct_fields__}
    values["title"] = title
    if detached:
        values["parent_session_id"] = None
    conn.execute(insert(sessions).values(values))
    insert_all(conn, row.id, op.messages)
    if title is None:
        claim_title(conn, row.id)
    if op.archived:
        _mark(conn, row.id, True, op.now)
    return ops.Imported(imported=True, detached=detached, title=title)


@answers(queries.fulltext_tables)
def fulltext_tables(_conn: ServerConnection) -> list[str]:
    """Return an empty list: a server maintains its indexes by itself."""
    return []


@applies(ops.IndexMerge)
def merge(_conn: ServerConnection, _op: ops.IndexMerge) -> bool:
    """Return False: there is nothing to merge."""
    return False
