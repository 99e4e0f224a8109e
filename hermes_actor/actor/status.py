"""How the actor is, as one JSON-ready document."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import hermes_protocol.messages as wire
from hermes_actor._version import __version__
from hermes_actor.sqlite import sqlite3, wal_reset_safe

if TYPE_CHECKING:
    from hermes_actor.actor.connection import Connection
    from hermes_actor.actor.server import Server

__all__ = ["describe"]


def describe(server: Server, connections: Iterable[Connection]) -> dict[str, Any]:
    """The status document. Called in the event loop; touches neither file nor writer."""
    writer, queue = server.writer, server.mailbox.statistics()
    return {
        "pid": os.getpid(),
        "version": __version__,
        "protocol": wire.PROTOCOL,
        "phase": server.phase,
        "uptime_s": round(time.time() - server.started, 3),
        "database": str(server.place.db),
        "epoch": writer.epoch if writer else 0,
        "commit_no": writer.commit_no if writer else 0,
        "sqlite": {
            "version": sqlite3.sqlite_version,
            "wal_reset": "fixed" if wal_reset_safe() else "possible beside a foreign writer",
        },
        "python": sys.version.split()[0],
        "memory_max_kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        "queue": {
            "count": queue.jobs,
            "bytes": server.credit.used,
            "oldest_age_s": round(queue.oldest_age, 6),
        },
        **server.metrics.summary(),
        "receipts_replayed": writer.receipts.replayed if writer else 0,
        "checkpoints": dict(writer.checkpoints.outcomes) if writer else {},
        "wal_frames": writer.checkpoints.frames if writer else 0,
        "index": {
            "watermark": writer.watermark if writer else 0,
            "rebuilds": writer.index_rebuilds if writer else 0,
        },
        "foreign_commits": writer.core.foreign_commits if writer else 0,
        "broken": str(writer.core.broken) if writer and writer.core.broken else None,
        "connections": [
            {
                "name": connection.name,
                "pid": connection.pid,
                "build": connection.build,
                "requests": connection.requests,
                "since": connection.since,
            }
            for connection in connections
        ],
        "rejected": server.rejected,
    }
