"""Candidates for terms that are too short for a trigram query, without scanning the table.

The trigram index holds, for every message, content, a blank, tool name, a blank, tool calls. So
after any match inside the content at least two more characters follow, and every occurrence of a
one- or two-character term begins some trigram: a range over the vocabulary finds them all. Three
exceptions are looked up apart: tool names, of which hardly any holds a CJK character; texts with a
NUL inside, where the tokenizer stops; and terms with letters that the tokenizer folds in its own
way, for which the table is scanned. Tool calls are stored with escapes and hold no CJK character.
Every candidate is confirmed with the specified LIKE by the caller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes_actor.sqlite import Connection
from hermes_actor.store.rows import chunks, placeholders
from hermes_actor.store.schema import NOT_ASCII_TOOL, NUL_INSIDE
from hermes_actor.store.search.query import TRIGRAM, contains_cjk, is_cjk
from hermes_actor.store.sessions.title_text import escape_like

if TYPE_CHECKING:
    from hermes_actor.store.schema_features import SchemaFeatures

__all__ = ["candidates"]

_TOOL_INDEX = "hermes_actor_messages_tool_cjk"
_VOCABULARY = "hermes_actor_vocabulary"
_NUL_INDEX = "hermes_actor_messages_nul"


def candidates(
    conn: Connection, features: SchemaFeatures, terms: tuple[str, ...]
) -> list[int] | None:
    """Return the ids of all messages that may contain one of *terms*, newest first.

    ``None`` if the indexes cannot tell: a term without CJK characters may also stand in tool calls
    behind structured content, which no index covers.
    """
    if not features.deferrable or not features.indexes >= {_TOOL_INDEX, _NUL_INDEX}:
        return None
    if not all(contains_cjk(term) and _folds_plainly(term) for term in terms):
        return None
    ids = {
        message_id
        for (message_id,) in conn.execute(f"SELECT id FROM messages WHERE {NUL_INSIDE}").fetchall()
    }
    for term in terms:
        ids |= _in_text(conn, term)
        ids |= _in_tool_names(conn, term)
    dated: list[tuple[float, int]] = []
    for part in chunks(list(ids), 500):
        dated += conn.execute(
            f"SELECT -timestamp, id FROM messages WHERE id IN {placeholders(len(part))}", part
        ).fetchall()
    dated.sort()
    return [message_id for _, message_id in dated]


def _folds_plainly(term: str) -> bool:
    return all(c.isascii() or is_cjk(ord(c)) for c in term)


def _in_text(conn: Connection, term: str) -> set[int]:
    if len(term) >= TRIGRAM:
        phrase = '"' + term.replace('"', '""') + '"'
        rows = conn.execute(
            "SELECT rowid FROM messages_fts_trigram WHERE messages_fts_trigram MATCH ?", (phrase,)
        )
    else:
        conn.execute(
            f"CREATE VIRTUAL TABLE IF NOT EXISTS temp.{_VOCABULARY}"
            " USING fts5vocab('main', 'messages_fts_trigram', 'instance')"
        )
        rows = conn.execute(
            f"SELECT DISTINCT doc FROM temp.{_VOCABULARY} WHERE term >= ? AND term < ?",
            (term.lower(), term[:-1].lower() + chr(ord(term[-1].lower()) + 1)),
        )
    return {message_id for (message_id,) in rows.fetchall()}


def _in_tool_names(conn: Connection, term: str) -> set[int]:
    # A skip over the index: one seek for each distinct name, however many rows share it.
    names = conn.execute(
        f"""
        WITH RECURSIVE names(name) AS (
            SELECT MIN(tool_name) FROM messages WHERE {NOT_ASCII_TOOL}
            UNION ALL
            SELECT (SELECT MIN(tool_name) FROM messages
                    WHERE tool_name > name AND {NOT_ASCII_TOOL})
            FROM names WHERE name IS NOT NULL
        )
        SELECT name FROM names WHERE name LIKE ? ESCAPE '\\'
        """,
        (f"%{escape_like(term)}%",),
    ).fetchall()
    found: set[int] = set()
    for (name,) in names:
        sql = f"SELECT id FROM messages WHERE tool_name = ? AND {NOT_ASCII_TOOL}"
        rows = conn.execute(sql, (name,))
        found.update(message_id for (message_id,) in rows.fetchall())
    return found
