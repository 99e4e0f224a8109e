"""The status document: the phase of an actor, and the figures that it reports about itself.

``StatusReply`` carries the document as JSON, because people and scripts read it as much as programs
do. Rules for its evolution: keys are never renamed or removed, new ones have defaults. A reader
ignores keys that it does not know; a key that an older actor does not send has its default.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import msgspec
from msgspec import Struct, field

from hermes_protocol.decoders import convert

__all__ = [
    "ConnectionStatus",
    "ForeignWriter",
    "HandoffStatus",
    "HandoffStep",
    "IndexStatus",
    "Latency",
    "LeaseStatus",
    "Phase",
    "PhaseReport",
    "QueueStatus",
    "SQLiteStatus",
    "Status",
    "WalStatus",
]


class Phase(Enum):
    """The state of an actor. The value is the word that people and scripts see."""

    OPENING = "opening"
    MIGRATING = "migrating"
    WAITING_FOR_LOCK = "waiting for another program that holds the lock"
    RECOVERING = "recovering"
    SERVING = "serving"
    DAMAGED = "damaged"
    DRAINING = "draining"
    HANDING_OVER = "handing over"
    CLOSED = "closed"
    BROKEN = "broken"
    UNKNOWN = "unknown"
    """A phase of a newer build; its text says which."""


class PhaseReport(Struct, frozen=True):
    """A phase with its detail: the percentage of a migration, the reason of a closed file."""

    phase: Phase
    detail: str = ""

    @property
    def text(self) -> str:
        """The form on the wire and on a terminal, such as ``migrating 40%``."""
        if not self.detail:
            return self.phase.value
        if self.phase is Phase.UNKNOWN:
            return self.detail
        separator = " " if self.phase is Phase.MIGRATING else ": "
        return f"{self.phase.value}{separator}{self.detail}"

    @classmethod
    def parse(cls, text: str) -> PhaseReport:
        """Return the report that *text* stands for. Never fails: the rest is ``UNKNOWN``."""
        for phase in Phase:
            rest = text.removeprefix(phase.value)
            # "migrating 40%" and "closed: why", but not a longer word of a newer build.
            if rest != text and rest[:1] in ("", " ", ":"):
                return cls(phase, rest.lstrip(": "))
        return cls(Phase.UNKNOWN, text)


class HandoffStep(Enum):
    """The step that an attempt to hand over has reached."""

    STARTING = "starting the successor"
    CLOSING = "closing the file"
    TRANSFERRED = "waiting for the successor to serve"
    DONE = "done"
    UNKNOWN = "unknown"

    @classmethod
    def _missing_(cls, value: object) -> HandoffStep:
        return cls.UNKNOWN


class _Part(Struct, frozen=True, kw_only=True):
    pass


class SQLiteStatus(_Part, frozen=True, kw_only=True):
    """The SQLite library of the actor."""

    version: str = ""
    wal_reset: str = ""
    """State of the WAL-reset race in this version."""


class QueueStatus(_Part, frozen=True, kw_only=True):
    """Requests that were admitted and that the writer has not taken."""

    count: int = 0
    bytes: int = 0
    oldest_age_s: float = 0.0


class Latency(_Part, frozen=True, kw_only=True):
    """A distribution of durations."""

    count: int = 0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    max_ms: float = 0.0


class WalStatus(_Part, frozen=True, kw_only=True):
    """The write-ahead log."""

    frames: int = 0
    pinned_by: list[int] = []
    """Processes whose snapshot keeps a checkpoint from completing."""


class IndexStatus(_Part, frozen=True, kw_only=True):
    """The full-text indexes."""

    watermark: int = 0
    newest: int = 0
    lag: int = 0
    rebuilds: int = 0
    aside: str = "none"


class ForeignWriter(_Part, frozen=True, kw_only=True):
    """Another program that had the file open for writing after a foreign commit."""

    pid: int
    name: str = ""


class ConnectionStatus(_Part, frozen=True, kw_only=True):
    """One connection. The connection that asks for the status is among them."""

    name: str = ""
    pid: int = 0
    build: str = ""
    requests: int = 0
    since: float = 0.0


class LeaseStatus(_Part, frozen=True, kw_only=True):
    """The interactive transaction that is open: its holder, and how far it is."""

    name: str = ""
    pid: int = 0
    since: float = 0.0
    statements: int = 0
    statement: str = ""
    """The last one, shortened; it may be running."""
    long: bool = False

    def text(self, now: float) -> str:
        """Return it as people see it, at the time *now*."""
        held = f"held by pid {self.pid} ({self.name}) for {max(0.0, now - self.since):.1f} s"
        shown = f"{held}, {self.statements} statements{', a long one' if self.long else ''}"
        return f"{shown}: {self.statement}" if self.statement else shown


class HandoffStatus(_Part, frozen=True, kw_only=True):
    """The last attempt to hand over."""

    step: HandoffStep = HandoffStep.UNKNOWN
    at: float = 0.0
    pid: int | None = None
    build: str = ""
    failed: str | None = None


class Status(_Part, frozen=True, kw_only=True):
    """The whole document. Only *pid*, *version* and the phase are in the answer of every build."""

    pid: int
    version: str
    build: str = ""
    protocol: int = 1
    phase_text: str = field(name="phase")
    uptime_s: float = 0.0
    database: str = ""
    kind: str = "sessions"
    """Kind of the file, once it is open. An earlier build serves no other."""
    sqlite: SQLiteStatus = SQLiteStatus()
    python: str = ""
    memory_max_kib: int = 0
    queue: QueueStatus = QueueStatus()
    batches: int = 0
    batch_sizes: dict[str, int] = {}
    writes: int = 0
    refused: int = 0
    private_statements: int = 0
    leases: int = 0
    commit_latency: Latency = Latency()
    total_latency: Latency = Latency()
    epoch: int = 0
    commit_no: int = 0
    receipts_replayed: int = 0
    checkpoints: dict[str, int] = {}
    wal_frames: int = 0
    wal: WalStatus = WalStatus()
    index: IndexStatus = IndexStatus()
    foreign_commits: int = 0
    degraded: list[str] = []
    broken: str | None = None
    foreign_writers: list[ForeignWriter] = []
    followers: int = 0
    connections: list[ConnectionStatus] = []
    rejected: int = 0
    handoff: HandoffStatus | None = None
    lease: LeaseStatus | None = None

    @property
    def phase(self) -> Phase:
        """The phase without its detail; *phase_text* has both."""
        return PhaseReport.parse(self.phase_text).phase

    @property
    def is_serving(self) -> bool:
        """True if changes are committed now."""
        return self.phase is Phase.SERVING

    def clients(self, *, except_pid: int = 0) -> list[ConnectionStatus]:
        """Return the connections of other processes than *except_pid*."""
        return [one for one in self.connections if one.pid != except_pid]

    def document(self) -> dict[str, Any]:
        """Return the document as built-in types, with the keys of the wire."""
        document: dict[str, Any] = msgspec.to_builtins(self)
        return document

    @classmethod
    def from_document(cls, document: object) -> Status:
        """Return the status in *document*. Raises ``ValueError`` if it is none."""
        return convert(document, cls)
