"""The status document of a running actor."""

from __future__ import annotations

import os
import resource
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import trio

import hermes_protocol.messages as wire
from hermes_actor import limits
from hermes_actor._version import __version__
from hermes_actor.build import build_id
from hermes_actor.sqlite import sqlite3, wal_reset_safe
from hermes_actor.system.lock_inspection import processes_with_write_fd, wal_read_lock_pids
from hermes_protocol.status import (
    ConnectionStatus,
    ForeignWriter,
    LeaseStatus,
    QueueStatus,
    SQLiteStatus,
    Status,
    WalStatus,
)

if TYPE_CHECKING:
    from hermes_actor.actor.change_feed import ChangeFeed
    from hermes_actor.actor.connection import Connection
    from hermes_actor.actor.connections import ConnectionSet
    from hermes_actor.actor.handoff.coordinator import HandoffCoordinator
    from hermes_actor.actor.interfaces import Resources
    from hermes_actor.engine.writer import Writer
    from hermes_actor.paths import StorePaths
    from hermes_protocol.status import PhaseReport

__all__ = ["ForeignWriters", "StatusReporter", "open_lease"]


class ForeignWriters:
    """Programs that write the file beside the actor, as far as the system still shows them."""

    def __init__(self, paths: StorePaths) -> None:
        self._paths = paths
        self._commits = 0
        self.seen: dict[int, str] = {}

    async def refresh(self, commits: int) -> None:
        """Note the processes with the file open for writing, if there were foreign *commits*.

        In a thread: on a busy host there are tens of thousands of descriptors to inspect.
        """
        if commits != self._commits:
            # Before the wait, so that the next check does not inspect the same commits again.
            self._commits = commits
            found = await trio.to_thread.run_sync(
                processes_with_write_fd, self._paths.db, abandon_on_cancel=True
            )
            # Kept after their end: a command is over before a person reads the status.
            self.seen.update(found)
            while len(self.seen) > limits.FOREIGNERS_KEPT:
                del self.seen[next(iter(self.seen))]


@dataclass(frozen=True, kw_only=True)
class StatusReporter:
    """Describes an actor from the parts that count. Event loop only."""

    paths: StorePaths
    started: float
    resources: Resources
    foreign_writers: ForeignWriters
    feed: ChangeFeed
    connections: ConnectionSet
    handoffs: HandoffCoordinator

    def status(
        self, phase: PhaseReport, writer: Writer | None, failure: BaseException | None
    ) -> Status:
        """Return the status document. Touches neither the file nor the writer thread."""
        mailbox, metrics = self.resources.mailbox, self.resources.metrics
        queue, attempt = mailbox.statistics(), self.handoffs.attempt
        # Numbers of the writer thread are read without a lock: each is whole, and two of them may
        # be a batch apart. A lock would have every commit wait for a person who watches.
        status = Status(
            pid=os.getpid(),
            version=__version__,
            build=build_id(),
            protocol=wire.PROTOCOL,
            phase_text=phase.text,
            uptime_s=round(time.time() - self.started, 3),
            database=str(self.paths.db),
            sqlite=SQLiteStatus(
                version=sqlite3.sqlite_version,
                wal_reset="fixed" if wal_reset_safe() else "possible beside a foreign writer",
            ),
            python=sys.version.split()[0],
            memory_max_kib=_memory_max_kib(),
            queue=QueueStatus(
                count=queue.jobs,
                bytes=self.resources.limiter.used,
                oldest_age_s=round(queue.oldest_age, 6),
            ),
            batches=metrics.batches,
            batch_sizes=dict(metrics.batch_sizes),
            writes=metrics.writes,
            refused=metrics.refused,
            private_statements=metrics.statements,
            leases=metrics.leases,
            commit_latency=metrics.commit.summary(),
            total_latency=metrics.total.summary(),
            broken=_text(failure),
            foreign_writers=[
                ForeignWriter(pid=pid, name=name) for pid, name in self.foreign_writers.seen.items()
            ],
            followers=len(self.feed),
            connections=[_connection(one) for one in self.connections.connections],
            rejected=self.connections.rejected,
            handoff=None if attempt is None else attempt.status(),
        )
        return status if writer is None else self._with_file(status, writer, failure)

    def _with_file(self, status: Status, writer: Writer, failure: BaseException | None) -> Status:
        """Add the parts that only an open file has."""
        checkpoints = writer.checkpointer.state
        waits = not checkpoints.all_moved or not writer.connection.recovered
        # Costs a look at every process: only while a checkpoint waits for a reader.
        pinned = wal_read_lock_pids(self.paths.shm) if waits else []
        return msgspec.structs.replace(
            status,
            epoch=writer.epoch,
            commit_no=writer.commit_no,
            receipts_replayed=writer.receipts.replayed,
            checkpoints=dict(checkpoints.outcomes),
            wal_frames=checkpoints.frames,
            wal=WalStatus(frames=checkpoints.frames, pinned_by=pinned),
            kind=writer.kind.name,
            lease=open_lease(writer),
            index=writer.index.status(),
            foreign_commits=writer.connection.foreign_commits,
            degraded=self._degraded(writer, pinned),
            # In the order of causes: an actor that is broken, or damaged, fails elsewhere soon
            # after.
            broken=_text(writer.connection.broken or writer.connection.health.damage or failure),
        )

    def _degraded(self, writer: Writer, pinned: list[int]) -> list[str]:
        """Return the degraded conditions while the actor serves, each with its cause."""
        # Each is read from the present state, so none has to be cleared by hand (G11).
        found = []
        if time.monotonic() - writer.connection.last_foreign_commit < limits.FOREIGN_SHOWN_SECONDS:
            who = ", ".join(f"pid {pid} ({n})" for pid, n in self.foreign_writers.seen.items())
            found.append(f"foreign writer: {who}" if who else "foreign writer")
        if pinned:
            found.append("WAL pinned by " + ", ".join(f"pid {pid}" for pid in pinned))
        if writer.held_by is not None:
            found.append(f"changes wait for {writer.held_by}")
        if (lease := open_lease(writer)) is not None and lease.long:
            found.append(f"changes wait for a long transaction, {lease.text(time.time())}")
        stalled = self.resources.mailbox.stalled_for()
        if stalled >= limits.STALLED_SECONDS:
            found.append(f"writer stalled: it has taken nothing for {stalled:.0f} s")
        if self.handoffs.failed_update is not None:
            found.append(f"update failed, still serving: {self.handoffs.failed_update}")
        if writer.connection.health.passing is not None:
            found.append(writer.connection.health.passing)
        if writer.index.failure is not None:
            found.append(writer.index.failure)
        if writer.maintenance.error is not None:
            found.append(f"maintenance fails: {writer.maintenance.error}")
        return found


def open_lease(writer: Writer | None) -> LeaseStatus | None:
    """Return the interactive transaction that is open, and keeps others waiting."""
    lease = None if writer is None else writer.lease
    if writer is None or lease is None:
        return None
    return LeaseStatus(
        name=lease.holder.name,
        pid=lease.holder.pid,
        since=lease.since,
        statements=writer.leases.statements,
        statement=writer.leases.last,
        long=lease.terms.seconds is not None,
    )


def _connection(connection: Connection) -> ConnectionStatus:
    return ConnectionStatus(
        name=connection.name,
        pid=connection.pid,
        build=connection.build,
        requests=connection.requests.admitted,
        since=connection.since,
    )


def _text(error: BaseException | None) -> str | None:
    return None if error is None else str(error)


def _memory_max_kib() -> int:
    # In KiB on Linux, in bytes on macOS.
    unit = 1024 if sys.platform == "darwin" else 1
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // unit
