"""How far the full-text indexes reach, as anybody can see it in the file.

The watermark says up to which message both indexes are complete. It is true only while nobody else
empties, drops or replaces the tables; a look at a few rows shows whether somebody has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes_actor.store.layout import layout_of
from hermes_actor.store.rows import in_list, scalar

if TYPE_CHECKING:
    from hermes_actor.sqlite import Connection

__all__ = ["covers", "last_of_next"]

_PROBES = 16


def covers(conn: Connection, watermark: int) -> bool:
    """Whether both indexes hold some of the messages up to *watermark*, the first and the last.

    The others lie evenly between these two, so a gap of a sixteenth of all ids does not pass. Costs
    the same however many messages there are. Tables of another shape may leave out what they like.
    """
    if not layout_of(conn).deferrable:
        return True
    probes = _spread(conn, watermark)
    held = f"WHERE id IN {in_list(len(probes))}"
    return all(
        scalar(conn, f"SELECT COUNT(*) FROM {table}_docsize {held}", probes) == len(probes)
        for table in ("messages_fts", "messages_fts_trigram")
    )


def _spread(conn: Connection, watermark: int) -> list[int]:
    """Ids of existing messages up to *watermark*, evenly spread; empty if there is none."""
    last = scalar(conn, "SELECT MAX(id) FROM messages WHERE id <= ?", (watermark,))
    if last is None:
        return []
    first = scalar(conn, "SELECT MIN(id) FROM messages")
    probes = {last}
    for n in range(_PROBES):
        at_least = first + (last - first) * n // _PROBES
        probes.add(scalar(conn, "SELECT MIN(id) FROM messages WHERE id >= ?", (at_least,)))
    return sorted(probes)


def last_of_next(conn: Connection, above: int, rows: int) -> int | None:
    """The id of the last of the next *rows* messages above an id; ``None`` if there is none."""
    # By rows, because ids may lie far apart.
    step = "SELECT MAX(id) FROM (SELECT id FROM messages WHERE id > ? ORDER BY id LIMIT ?)"
    last: int | None = scalar(conn, step, (above, rows))
    return last
