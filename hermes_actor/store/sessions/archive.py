"""Archive mark, removal by id, and import of sessions."""

from __future__ import annotations

import msgspec

import hermes_protocol.operations as ops
from hermes_actor.errors import Unsupported
from hermes_actor.sqlite import Connection
from hermes_actor.store import queries
from hermes_actor.store.messages import get_messages, insert_all
from hermes_actor.store.registry import answers, applies
from hermes_actor.store.rows import Row, chunks, is_there, placeholders, scalar
from hermes_actor.store.schema_features import features_of
from hermes_actor.store.sessions.counts import last_active
from hermes_actor.store.sessions.deletion import removable, remove_slice
from hermes_actor.store.sessions.lineage import compression_lineage
from hermes_actor.store.sessions.sessions import get_session
from hermes_actor.store.sessions.titles import claim_title, free_title

__all__ = ["is_archived", "session_record"]

_COLUMNS = ops.SessionRow.__struct_fields__
_INSERT = f"INSERT INTO sessions ({', '.join(_COLUMNS)}) VALUES {placeholders(len(_COLUMNS))}"


@applies(ops.SessionArchive)
def archive(conn: Connection, op: ops.SessionArchive) -> list[str]:
    """Set or clear the archive mark of a session and its compression lineage.

    Returns the ids whose mark changed, none if the session does not exist. Raises
    :class:`Unsupported` if the file has no place for a mark.
    """
    if not is_there(conn, op.id):
        return []
    chain = compression_lineage(conn, op.id)  # type: ignore[arg-type]
    return [one for one in chain if _mark(conn, one, op.archived, op.now)]


@answers(queries.is_archived)
def is_archived(conn: Connection, session_id: str) -> bool:
    """Return True if a session is archived, by the column of the file or by our own mark."""
    marked = features_of(conn).is_archived
    sql = f"SELECT 1 FROM sessions s WHERE s.id = ? AND {marked}"
    return scalar(conn, sql, (session_id,)) is not None


@answers(queries.session_record)
def session_record(conn: Connection, session_id: str) -> Row | None:
    """Return a session as an export writes it; ``None`` if it was removed meanwhile.

    The key ``archived`` is there if the file has a column for it, or the mark is set.
    """
    row = get_session(conn, session_id)
    if row is None:
        return None
    if "archived" not in row and is_archived(conn, session_id):
        # The mark is in a table of ours where the file has no column for it.
        row["archived"] = 1
    latest = last_active(conn, session_id)
    row["last_active"] = row["started_at"] if latest is None else latest
    return {**row, "messages": get_messages(conn, session_id)}


def _mark(conn: Connection, session_id: str, archived: bool, now: float) -> bool:
    """Set or clear the mark of one session: in its column, or where there is none, in our table."""
    features = features_of(conn)
    if features.archived:
        sql = "UPDATE sessions SET archived = ? WHERE id = ? AND COALESCE(archived, 0) != ?"
        return conn.execute(sql, (int(archived), session_id, int(archived))).rowcount > 0
    if not features.own_marks:
        raise Unsupported("the file has no place for an archive mark")
    if archived:
        sql = "INSERT OR IGNORE INTO hermes_actor_archived VALUES (?, ?)"
        return conn.execute(sql, (session_id, now)).rowcount > 0
    sql = "DELETE FROM hermes_actor_archived WHERE session_id = ?"
    return conn.execute(sql, (session_id,)).rowcount > 0


@applies(ops.SessionsRemove)
def remove_ended(conn: Connection, op: ops.SessionsRemove) -> ops.Pruned:
    """Remove those of the ids that have ended, with their delegates, in one bounded slice.

    A session for which an open delegate works stays. With ``more`` the caller sends the operation
    again.
    """
    # Looked at here and not by the caller: a session may have been reopened meanwhile.
    found = (
        session_id
        for part in chunks(op.ids, 500)
        for session_id in removable(conn, f"id IN {placeholders(len(part))}", part)
    )
    return remove_slice(conn, found, op.max_rows)


@applies(ops.SessionImport)
def import_session(conn: Connection, op: ops.SessionImport) -> ops.Imported:
    """Insert a session with its messages; change nothing if its id exists.

    A parent that does not exist is dropped (``detached``); a title that is taken becomes the next
    one of its lineage.
    """
    row = op.session
    if is_there(conn, row.id):
        return ops.Imported()
    parent = row.parent_session_id
    detached = parent is not None and not is_there(conn, parent)
    title = None if row.title is None else free_title(conn, row.title)
    row = msgspec.structs.replace(row, title=title, parent_session_id=None if detached else parent)
    conn.execute(_INSERT, [getattr(row, column) for column in _COLUMNS])
    insert_all(conn, row.id, op.messages)
    if title is None:
        claim_title(conn, row.id)
    if op.archived:
        _mark(conn, row.id, True, op.now)
    return ops.Imported(imported=True, detached=detached, title=title)
