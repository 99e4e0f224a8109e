"""The sessions of a store, in the order of their making, with the links between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hermes_actor.providers.migration.checksums import digest_of
from hermes_actor.store.raw_rows import columns_of
from hermes_actor.store.rows import chunks
from hermes_protocol.operations import RowsCopy

if TYPE_CHECKING:
    from hermes_actor.providers.migration.checksums import Checksums
    from hermes_actor.providers.migration.endpoint import MigrationEndpoint
    from hermes_actor.providers.migration.report import Report
    from hermes_actor.store.raw_rows import StoredRow

__all__ = ["SessionCopy", "Tell"]

Tell = Callable[[str, int, int], None]
"""Called with the step that runs, the rows done, and the rows in all."""


_REMOVED_TOGETHER = 10_000
"""Ids in one removal."""


class SessionCopy:
    """One copy of all sessions, from *source* to *target*; *ours* gets their checksums."""

    def __init__(
        self,
        source: MigrationEndpoint,
        target: MigrationEndpoint,
        run: str,
        ours: Checksums,
        report: Report,
        tell: Tell,
    ) -> None:
        self._source = source
        self._target = target
        self._run = run
        self._ours = ours
        self._tell = tell
        self.report = report

    def copy(self) -> None:
        """Remove sessions that the source lacks, then insert missing and update changed ones."""
        columns = columns_of()["sessions"]
        known, last = self._known_sessions()
        self._read_source_sessions(columns.index("parent_session_id"))
        changed = {i for i, d in self._ours.sessions.items() if i in known and known[i] != d}
        gone = [session_id for session_id in known if session_id not in self._ours.sessions]
        self._remove(gone)
        # A title that has moved from one session to another would be there twice for a moment.
        untitled = self._target.parts("sessions", ("id", "title"), self._run, update=True)
        for session_id in changed:
            untitled.add((session_id, None))
        untitled.finish()
        self._write_sessions(columns, known, changed, last)

    def _known_sessions(self) -> tuple[dict[str, int], int]:
        """Return the checksums of the target's sessions, and the last position there."""
        known: dict[str, int] = {}
        last = 0
        for place, row in self._target.sessions():
            known[row[0]] = digest_of(row)
            last = place
        return known, last

    def _read_source_sessions(self, parent: int) -> None:
        parents: dict[str, Any] = {}
        for _, row in self._source.sessions():
            self._ours.add_session(row[0], row)
            if row[parent] is not None:
                parents[row[0]] = row[parent]
        # Other programs may have removed a parent; servers keep no link that leads nowhere.
        self.report.detached = [i for i, p in parents.items() if p not in self._ours.sessions]
        lonely = set(self.report.detached)
        if lonely:
            for _, row in self._source.sessions():
                if row[0] in lonely:
                    self._ours.add_session(row[0], _without(row, parent))

    def _write_sessions(
        self, columns: tuple[str, ...], known: dict[str, int], changed: set[str], last: int
    ) -> None:
        parent, lonely = columns.index("parent_session_id"), set(self.report.detached)
        new = self._target.parts("sessions", ("rowid", *columns), self._run)
        old = self._target.parts("sessions", columns, self._run, update=True)
        links: list[tuple[str, str]] = []
        for _, row in self._source.sessions():
            session_id = row[0]
            if session_id not in self._ours.sessions:
                continue  # made meanwhile; the next run takes it
            if session_id in known and session_id not in changed:
                continue
            if session_id in lonely:
                row = _without(row, parent)
            self._ours.add_session(session_id, row)
            if row[parent] is not None:
                links.append((session_id, row[parent]))
            # A parent may come later; the links are made when all are there.
            if session_id in known:
                old.add(_without(row, parent))
            else:
                last += 1
                new.add((last, *_without(row, parent)))
            self._tell("sessions", new.written + old.written, len(self._ours.sessions))
        new.finish()
        old.finish()
        linking = self._target.parts("sessions", ("id", columns[parent]), self._run, update=True)
        for link in links:
            linking.add(link)
        linking.finish()
        self.report.copied_sessions = new.written + old.written

    def _remove(self, gone: list[str]) -> None:
        for ids in chunks(gone, _REMOVED_TOGETHER):
            self._target.write(RowsCopy(table="sessions", remove=ids, expect={"run": self._run}))
        self.report.removed_sessions = len(gone)


def _without(row: StoredRow, column: int) -> StoredRow:
    return (*row[:column], None, *row[column + 1 :])
