"""Import of an index file that another program wrote: once, when a scope has no routes yet."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hermes_protocol.operations as ops
from hermes_actor.gateway.entries import SessionEntry, is_safe_key
from hermes_actor.store import queries
from hermes_actor.store.gateway.entries import dumps
from hermes_actor.system.descriptors import read_regular

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
    entries = {key: entry for key, entry in read_index(file).items() if _is_taken(file, key)}
    if not entries:
        return 0
    put = {key: _stored(entry) for key, entry in entries.items()}
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
        data: Any = json.loads(read_regular(file).decode("utf-8"))
    except (OSError, RecursionError, ValueError) as error:
        _log.warning("%s cannot be read and is left out: %s", file, error)
        return {}
    found = {}
    for key, value in data.items() if isinstance(data, dict) else ():
        if key.startswith("_"):
            continue
        try:
            entry = SessionEntry.from_dict(value)
            # Here, so that an entry that cannot be stored does not keep out the others.
            _stored(entry)
            entry.updated_at.timestamp()
            found[key] = entry
        except (
            AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError,
        ) as error:  # fmt: skip
            _log.warning("entry %r of %s is left out: %r", key, file, error)
    return found


def _is_taken(file: Path, key: str) -> bool:
    """Return False for a key like a path, which no program that this file is for would read."""
    if not is_safe_key(key):
        _log.warning("entry %r of %s is left out: its key looks like a path", key, file)
    return is_safe_key(key)


def _stored(entry: SessionEntry) -> str:
    """Return the stored form. Raises ``ValueError`` for numbers that JSON cannot hold."""
    values = entry.to_dict()
    json.dumps(values, allow_nan=False)
    return dumps(values)
