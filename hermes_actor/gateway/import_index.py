"""Import of an index file that another program wrote: once, when a scope has no routes yet."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hermes_protocol.operations as ops
from hermes_actor.gateway.entries import SessionEntry
from hermes_actor.store import queries
from hermes_actor.store.gateway.entries import dumps

if TYPE_CHECKING:
    from hermes_actor.session_db import SessionDB
    from hermes_actor.store.gateway.tables import StoredRoute

__all__ = ["import_index", "index_differences", "read_index"]

_log = logging.getLogger("hermes_actor.gateway")


def import_index(db: SessionDB, folder: Path, scope: str, now: datetime) -> int:
    """Write the entries of ``sessions.json`` as routes, if there are none; return how many.

    If routes exist the file is only their mirror, and what it says does not count.
    """
    file = folder / "sessions.json"
    if not file.exists() or db._query(queries.all_routes, scope):
        return 0
    entries = read_index(file)
    if not entries:
        return 0
    put = {key: dumps(entry.to_dict()) for key, entry in entries.items()}
    times = {key: entry.updated_at.timestamp() for key, entry in entries.items()}
    refused = db._submit(
        ops.RoutesWrite(scope=scope, now=now.timestamp(), put=put, times=times, only_missing=True)
    )
    return len(put) - len(refused)


def index_differences(file: Path, routes: Sequence[StoredRoute]) -> list[str]:
    """Return the keys of chats that *file* leads to another session than *routes*, or lacks."""
    ours = {route.key: route.entry.get("session_id") for route in routes}
    theirs = {key: entry.session_id for key, entry in read_index(file).items()}
    return sorted(key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key))


def read_index(file: Path) -> dict[str, SessionEntry]:
    """Return the entries of an index file; broken ones are named in the log and left out."""
    try:
        data: Any = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        _log.warning("%s cannot be read and is left out: %s", file, error)
        return {}
    found = {}
    for key, value in data.items() if isinstance(data, dict) else ():
        if key.startswith("_"):
            continue
        try:
            found[key] = SessionEntry.from_dict(value)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            _log.warning("entry %r of %s is left out: %r", key, file, error)
    return found
