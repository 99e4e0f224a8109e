"""Migration of a store to another provider: everything, as it is.

The source is only read. The target is empty at first, or one that an earlier run has filled from
the same source and that no program has changed since. A *bookmark* in the target tells how far the
copy has come; it is written with the rows that it is about. So a run that was killed is carried
on by the next one, and a run that has nothing left to do changes nothing.

In order: sessions without the links between them, links, messages by id, the small tables. Then
the target is read back and compared, session by session; what differs, because the source has
changed since it was copied, is copied again. Search indexes come last.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from hermes_actor.errors import CannotMigrate
from hermes_actor.providers.migration.checksums import Checksums, hexadecimal
from hermes_actor.providers.migration.report import Report
from hermes_actor.providers.migration.sessions import SessionCopy, Tell
from hermes_actor.store.raw_rows import LOWEST, StoreSummary, columns_of
from hermes_actor.store.row_transfer import COPIED_TABLES, TOPIC_TABLES
from hermes_protocol.operations import RowsCopy

if TYPE_CHECKING:
    from hermes_actor.providers.migration.endpoint import MigrationEndpoint

__all__ = ["Migration", "Tell", "check"]

_SMALL = (*TOPIC_TABLES, *(t for t in COPIED_TABLES[2:] if t not in TOPIC_TABLES))
"""Topics first: making their tables writes a key of ``state_meta``, which comes after them."""


def check(source: StoreSummary, target: StoreSummary | None) -> bool:
    """Return True if the run resumes an earlier one, False if it begins with an empty target.

    Raises :class:`CannotMigrate` if it can do neither. *target* is ``None`` if it does not exist
    yet.
    """
    if source.unknown:
        raise CannotMigrate(
            "the source was written by a newer version: no other store has a place for what is in"
            f" {', '.join(source.unknown)}"
        )
    if target is None:
        return False
    if source.identity == target.identity:
        raise CannotMigrate("source and target are the same store")
    if not target.bookmark.get("source"):
        if target.sessions or target.messages:
            raise CannotMigrate(
                f"the target is not empty: it has {target.sessions} sessions and"
                f" {target.messages} messages of its own; choose an empty one"
            )
        return False
    if target.bookmark["source"] != source.identity:
        raise CannotMigrate(
            f"the target was filled from another store ({target.bookmark.get('from', 'unknown')});"
            " choose an empty one"
        )
    return True


class Migration:
    """One run from *source* to *target*."""

    def __init__(self, source: MigrationEndpoint, target: MigrationEndpoint, tell: Tell) -> None:
        self._source = source
        self._target = target
        self._tell = tell
        self._run = os.urandom(8).hex()
        self._ours = Checksums()
        self._theirs = Checksums()
        self.report = Report(source.address, target.address)

    def run(self) -> Report:
        """Copy, verify and index; return the report.

        Raises :class:`CannotMigrate` and the errors of both stores; a later run resumes what was
        begun.
        """
        began = time.monotonic()
        source, target = self._source.facts(), self._target.facts()
        self.report.resumed = check(source, target)
        through = int(target.bookmark.get("through", LOWEST))
        self._examine(target, through)
        self._begin(source, target)
        if not target.messages:
            self._target.before_copy()
        copying = time.monotonic()
        SessionCopy(
            self._source, self._target, self._run, self._ours, self.report, self._tell
        ).copy()
        self._copy_messages(source, through)
        self._copy_tables()
        self._bookmark(last_id=source.last_id)
        copied = time.monotonic()
        self._verify(source)
        verified = time.monotonic()
        entries = self._target.build_search(
            source.newest_id or 0, lambda done, total: self._tell("indexing", done, total)
        )
        indexed = time.monotonic()
        self._bookmark(phase="complete", checksum=hexadecimal(self._theirs.total()))
        now = self._source.facts()
        self.report.source_changed = (now.last_id, now.sessions) != (
            source.last_id, source.sessions
        )  # fmt: skip
        self.report.finish(self._ours, self._theirs, entries)
        self.report.times(
            copy=copied - copying,
            verify=(copying - began) + (verified - copied),
            indexes=indexed - verified,
        )
        return self.report

    # --- before ------------------------------------------------------------------------------

    def _examine(self, target: StoreSummary, through: int) -> None:
        """Read what is in the target, and refuse one that another program has changed."""
        if not target.sessions and not target.messages:
            return
        if (target.newest_id or LOWEST) > through:
            raise CannotMigrate(_CHANGED)
        if target.bookmark.get("phase") == "complete":
            found = self._read_target("comparing", target)
            if hexadecimal(found.total()) != target.bookmark.get("checksum"):
                raise CannotMigrate(_CHANGED)

    def _begin(self, source: StoreSummary, target: StoreSummary) -> None:
        self._target.write(
            RowsCopy(
                table="sessions",
                bookmark={
                    "source": source.identity[:255],
                    "from": self._source.address[:255],
                    "run": self._run,
                    "phase": "copying",
                },
                expect={"run": target.bookmark.get("run", "")},
            )
        )

    def _bookmark(self, last_id: int = 0, **keys: str) -> None:
        part = RowsCopy(table="messages", bookmark=keys, expect={"run": self._run}, last_id=last_id)
        self._target.write(part)

    # --- copying -----------------------------------------------------------------------------

    def _copy_messages(self, source: StoreSummary, through: int) -> None:
        columns = columns_of()["messages"]
        of = columns.index("session_id")
        parts = self._target.parts("messages", columns, self._run)
        done, newest = 0, source.newest_id if source.newest_id is not None else LOWEST
        for page in self._source.messages(newest):
            rows = [row for row in page if row[of] in self._ours.sessions]
            self.report.left_out += [row[0] for row in page if row[of] not in self._ours.sessions]
            self._ours.add_messages(rows, of)
            for row in rows:
                if row[0] > through:
                    parts.add(row, {"through": str(row[0])})
            done += len(page)
            self._tell("copying", done, source.messages)
        parts.finish({"through": str(newest)} if newest > through else None)
        self.report.copied_messages = parts.written

    def _copy_tables(self) -> None:
        for table in _SMALL:
            rows, there = self._source.table(table), self._target.table(table)
            self._ours.add_table(table, rows or ())
            self.report.tables[table] = len(rows or ())
            if (rows or []) == (there or []):
                continue
            parts = self._target.parts(table, columns_of()[table], self._run, clear=True)
            for row in rows or ():
                parts.add(row)
            if not rows:
                self._target.write(RowsCopy(table=table, clear=True, expect={"run": self._run}))
            parts.finish()

    # --- afterwards --------------------------------------------------------------------------

    def _read_target(self, what: str, facts: StoreSummary) -> Checksums:
        found = Checksums()
        for _, row in self._target.sessions():
            found.add_session(row[0], row)
        of, done = columns_of()["messages"].index("session_id"), 0
        newest = facts.newest_id if facts.newest_id is not None else LOWEST
        for page in self._target.messages(newest):
            found.add_messages(page, of)
            done += len(page)
            self._tell(what, done, facts.messages)
        for table in _SMALL:
            found.add_table(table, self._target.table(table) or ())
        return found

    def _verify(self, source: StoreSummary) -> None:
        """Read the target back; copy again what the source has changed since it was copied."""
        self._theirs = self._read_target("verifying", self._target.facts())
        newest = source.newest_id if source.newest_id is not None else LOWEST
        for session_id in list(self._ours.differing_messages(self._theirs)):
            self._copy_again(session_id, newest)
        wrong = list(self._ours.differing(self._theirs))
        if wrong or self._ours.others != self._theirs.others:
            raise CannotMigrate(
                f"{len(wrong)} sessions differ after the copy ({', '.join(wrong[:3])} …): the"
                " source or the target is being changed; stop all writers and run the command again"
            )

    def _copy_again(self, session_id: str, newest: int) -> None:
        columns = columns_of()["messages"]
        of = columns.index("session_id")
        self._ours.forget_messages(session_id)
        self._theirs.forget_messages(session_id)
        parts = self._target.parts("messages", columns, self._run)
        part = RowsCopy(table="messages", remove=[session_id], expect={"run": self._run})
        self._target.write(part)
        for page in self._source.messages(newest, session_id):
            self._ours.add_messages(page, of)
            for row in page:
                parts.add(row)
        parts.finish()
        for page in self._target.messages(newest, session_id):
            self._theirs.add_messages(page, of)
        self.report.copied_messages += parts.written


_CHANGED = (
    "the target has been changed since it was filled, and what it holds would be overwritten;"
    " choose an empty one"
)
