"""Report of a migration, for people and for scripts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hermes_actor.providers.migration.checksums import hexadecimal

if TYPE_CHECKING:
    from hermes_actor.providers.migration.checksums import Checksums

__all__ = ["Report"]


@dataclass
class Report:
    """Numbers and checksums of both sides. Addresses are without passwords."""

    source: str
    target: str
    resumed: bool = False
    source_changed: bool = False
    """The source has got new messages or sessions while it was copied; the next run takes them."""
    sessions: int = 0
    messages: int = 0
    tables: dict[str, int] = field(default_factory=dict)
    index_entries: int | None = None
    copied_sessions: int = 0
    copied_messages: int = 0
    removed_sessions: int = 0
    detached: list[str] = field(default_factory=list)
    """Sessions whose parent does not exist in the source: they have none in the target."""
    left_out: list[int] = field(default_factory=list)
    """Messages of sessions that do not exist."""
    seconds: dict[str, float] = field(default_factory=dict)
    checksum: str = ""
    checksums: dict[str, dict[str, Any]] = field(default_factory=dict)

    def finish(self, ours: Checksums, theirs: Checksums, entries: int | None) -> None:
        """Take over counts and checksums; *entries* are those of a file's full-text index."""
        self.sessions = len(theirs.sessions)
        self.messages = sum(theirs.counts.values())
        self.index_entries = entries
        self.checksum = hexadecimal(theirs.total())
        self.checksums = {
            session_id: {
                "messages": theirs.counts.get(session_id, 0),
                "source": hexadecimal(ours.of(session_id)),
                "target": hexadecimal(theirs.of(session_id)),
            }
            for session_id in theirs.sessions
        }

    def times(self, **seconds: float) -> None:
        """Set the duration of each phase, and their total, in seconds."""
        self.seconds = {name: round(value, 3) for name, value in seconds.items()}
        self.seconds["total"] = round(sum(seconds.values()), 3)

    @property
    def rate(self) -> int:
        """Messages copied per second."""
        return round(self.copied_messages / max(self.seconds.get("copy", 0.0), 0.001))

    @property
    def verified(self) -> bool:
        """True if every session of the target has the checksum that it has in the source."""
        return all(one["source"] == one["target"] for one in self.checksums.values())

    def document(self) -> dict[str, Any]:
        """Return the whole report as a JSON document."""
        return {
            "from": self.source,
            "to": self.target,
            "verified": self.verified,
            "resumed": self.resumed,
            "source_changed": self.source_changed,
            "sessions": self.sessions,
            "messages": self.messages,
            "tables": self.tables,
            "index_entries": self.index_entries,
            "copied": {"sessions": self.copied_sessions, "messages": self.copied_messages},
            "removed_sessions": self.removed_sessions,
            "detached": self.detached,
            "left_out_messages": self.left_out,
            "seconds": self.seconds,
            "messages_per_second": self.rate,
            "checksum": self.checksum,
            "checksums": self.checksums,
        }

    def summary(self) -> str:
        """Return the report for people: a line of figures, then notes."""
        entries = "" if self.index_entries is None else f", {self.index_entries:,} FTS entries"
        line = (
            f"Migrated {self.sessions:,} sessions, {self.messages:,} messages{entries}"
            f" in {self.seconds['total']:.1f}s"
        )
        return "\n".join([line, *self._notes()])

    def _notes(self) -> list[str]:
        copy, indexes = self.seconds["copy"], self.seconds["indexes"]
        notes = [
            f"  copied {self.copied_sessions:,} sessions and {self.copied_messages:,} messages in"
            f" {copy:.1f}s ({self.rate:,} messages/s), search indexes in {indexes:.1f}s; every"
            " session was read back and has the same checksum"
        ]
        if self.removed_sessions:
            notes.append(
                f"  {self.removed_sessions:,} sessions are gone from the source since the last"
                " run, and from the target now"
            )
        if self.detached:
            notes.append(f"  {len(self.detached):,} sessions had a parent that does not exist")
        if self.left_out:
            notes.append(
                f"  {len(self.left_out):,} messages belong to no session and were left out; their"
                " ids are in the report"
            )
        if self.source_changed:
            notes.append("  the source got more meanwhile: run the command again to take it along")
        return notes
