"""The index files of gateways beside the routes of the store, which count."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from hermes_actor.cli.output.formatting import count, plain
from hermes_actor.cli.start.doctor.findings import Finding, Findings
from hermes_actor.paths import StorePaths
from hermes_actor.sqlite import connect_reader, sqlite3
from hermes_actor.system.fork import inside

__all__ = ["chats"]

_BEHIND_SECONDS = 1.5
"""A gateway that lives has written its file by then."""
_COUNTS = "nothing: the store counts, and the next change of a chat writes the file again"


def chats(paths: StorePaths) -> Findings:
    """Each ``sessions.json``: does it name the sessions that the chats have?"""
    if not paths.db.is_file():
        return
    different = _differences(paths)
    if any(different.values()):
        time.sleep(_BEHIND_SECONDS)
        different = _differences(paths)
    for file, names in different.items():
        if not names:
            yield Finding("ok", "chats", f"{file} names the sessions of the store")
            continue
        shown = ", ".join(map(plain, names[:3])) + (", …" if len(names) > 3 else "")
        text = f"{file} differs from the store in {count(len(names), 'chat')}: {shown}"
        yield Finding("note", "chats", text, _COUNTS)


def _differences(paths: StorePaths) -> dict[Path, list[str]]:
    """Return the keys of chats in which each index file that exists differs from the routes."""
    from hermes_actor.gateway.import_index import index_differences
    from hermes_actor.store.gateway.reads import all_routes, route_scopes

    found = {}
    # A file that cannot be read is a finding of the check of the file itself.
    with contextlib.suppress(sqlite3.Error), contextlib.closing(connect_reader(paths.db)) as conn:
        for scope in inside(route_scopes, conn):
            file = Path(scope) / "sessions.json"
            if file.is_file():
                found[file] = index_differences(file, inside(all_routes, conn, scope))
    return found
