"""Kinds of files: what the engine does differently for each, decided once, when a file is opened.

The common engine owns transactions, receipts, batches, leases, checkpoints and recovery. A
:class:`Kind` adds the schema, the operations, the indexes and the limits of one sort of file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes_actor.engine.kinds.agents import AGENTS
from hermes_actor.engine.kinds.kind import Kind, LeaseLimits
from hermes_actor.engine.kinds.plain import PLAIN
from hermes_actor.engine.kinds.sessions import SESSIONS
from hermes_actor.errors import IncompatibleFormat
from hermes_actor.store.inspection import recorded_format, recorded_kind

if TYPE_CHECKING:
    from pathlib import Path

    from hermes_actor.sqlite import Connection

__all__ = [
    "AGENTS", "KINDS", "NEWEST_FORMAT", "PLAIN", "SESSIONS", "Kind", "LeaseLimits", "kind_of",
]  # fmt: skip

KINDS: dict[str, Kind] = {kind.name: kind for kind in (SESSIONS, PLAIN, AGENTS)}

NEWEST_FORMAT = max(kind.format for kind in KINDS.values())
"""The newest format of our own tables that this build knows."""


def kind_of(conn: Connection, asked: str, db: Path) -> Kind:
    """Return the kind of the file that *conn* has open; *asked*, if the file does not say.

    Raises :class:`IncompatibleFormat` if a newer build has given it one that is unknown here.
    """
    found, newest = recorded_kind(conn) or asked, recorded_format(conn)
    if found not in KINDS or newest > NEWEST_FORMAT:
        raise IncompatibleFormat(
            f"{db} is of kind {found!r} and format {newest}; this build knows {', '.join(KINDS)}"
            f" and format {NEWEST_FORMAT}: update it. The file was not changed"
        )
    return KINDS[found]
