"""User messages that two programs store: the gateway when they arrive, the agent with its answer.

The gateway knows the id of a message on its platform and the agent does not. So two rows are one
message if their text is the same, exactly one of them has such an id, and both belong to one turn;
where no turns are taken, if one came shortly after the other. A user who says the same twice gives
it two ids, and stays with two messages.
"""

from __future__ import annotations

import hermes_protocol.operations as ops
from hermes_actor.store.gateway.tables import Tables

__all__ = ["find_double"]

_NEAR_SECONDS = 120.0
"""Longest time between the two, where no turn says that they belong together."""


def find_double(
    tables: Tables, session_id: str, row: ops.MessageRow, message_key: str | None
) -> int | None:
    """Return the message that *row* repeats; it has *message_key* from then on."""
    if row.role != "user":
        return None
    last = tables.newest_user_message(session_id)
    if last is None or last.has_key == (message_key is not None):
        return None
    if last.content != tables.content_of(row):
        return None
    held = tables.turn(tables.root(session_id))
    since = row.timestamp - _NEAR_SECONDS
    if held is not None and held.until > row.timestamp:
        since = held.taken_at
    if last.timestamp < since:
        return None
    if message_key is not None:
        tables.note_key(session_id, message_key, last.id)
    return last.id
