"""What the command line needs beyond the contract: archive, import, queued and default titles."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import hermes_protocol.operations as ops
from hermes_actor.api.maintenance import MaintenanceMethods
from hermes_actor.store import queries, titles

if TYPE_CHECKING:
    from hermes_protocol.operations import Imported, MessageRow, SessionRow

__all__ = ["ArchiveMethods"]

_REMOVED_TOGETHER = 200
"""Ids in one removal: what is sent again when a slice was not enough stays small."""


class ArchiveMethods(MaintenanceMethods):
    """Putting sessions away, bringing them in, and naming them before and after."""

    def archive_session(self, session_id: str, archived: bool = True) -> list[str]:
        """Hide a session and its compression lineage from lists, or show them again.

        Returns the ids whose mark has changed.
        """
        return self._submit(ops.SessionArchive(id=session_id, archived=archived, now=time.time()))

    def remove_sessions(
        self,
        session_ids: list[str],
        sessions_dir: Path | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> list[str]:
        """Remove those sessions that have ended, and their files. Returns their ids.

        Delegates go with the session that they worked for, and one that is still open keeps it.

        *progress* is told the number so far; what it raises ends the removal there.
        """
        removed: list[str] = []
        for start in range(0, len(session_ids), _REMOVED_TOGETHER):
            operation = ops.SessionsRemove(ids=session_ids[start : start + _REMOVED_TOGETHER])
            more = True
            while more:
                pruned = self._submit(operation)
                self._remove_files(sessions_dir, pruned.ids)
                removed += pruned.ids
                more = pruned.more
                if progress is not None:
                    progress(len(removed))
        return removed

    def delete_session_if(
        self, session_id: str, messages: int, newest: int, sessions_dir: Path | None = None
    ) -> bool:
        """Remove a session if it has exactly *messages* messages, *newest* being the last id.

        So only what the caller has seen goes. ``False``, and nothing is removed, if it has changed,
        or if delegates would go with it.
        """
        operation = ops.SessionDeleteIf(id=session_id, messages=messages, newest=newest)
        if not self._submit(operation):
            return False
        self._remove_files(sessions_dir, [session_id])
        return True

    def import_session(
        self, session: SessionRow, messages: list[MessageRow], archived: bool = False
    ) -> Imported:
        """Insert a session with its messages unless its id exists."""
        return self._submit(
            ops.SessionImport(
                session=session, messages=messages, archived=archived, now=time.time()
            )
        )

    def queue_title(self, session_id: str, title: str | None) -> bool:
        """Keep a title for a session that does not exist yet; its creation gives it the title.

        ``None`` forgets it. ``False`` if the session exists.

        Raises:
            TitleInUse: a session has it, or it is kept for another one (a ``ValueError``).
        """
        return self._submit(ops.TitleQueue(id=session_id, title=titles.sanitize_title(title)))

    def get_queued_title(self, session_id: str) -> str | None:
        """The title that is kept for a session that does not exist yet."""
        return self._query(queries.queued_title, session_id)

    def move_session_title(self, session_id: str, title: str) -> bool:
        """Like ``set_session_title``, but takes the title from a compression ancestor."""
        clean = titles.sanitize_title(title)
        return self._submit(ops.SessionTitle(id=session_id, title=clean, move=True))

    def set_default_title(self, session_id: str, title: str) -> str | None:
        """Give an untitled session a title, or the lineage's next one if that is taken.

        Returns the title that it got; ``None`` if it has one already or does not exist.
        """
        clean = titles.sanitize_title(title)
        if clean is None:
            return None
        return self._submit(ops.SessionTitleDefault(id=session_id, title=clean)) or None

    def merge_indexes(self, progress: Callable[[str], None] | None = None) -> int:
        """Merge the segments of every full-text index, in slices. Returns how many there are.

        *progress* is told the name of the table after each slice.
        """
        tables = self._query(queries.fulltext_tables)
        for table in tables:
            more = self._submit(ops.IndexMerge(table=table, begin=True))
            while more:
                if progress is not None:
                    progress(table)
                more = self._submit(ops.IndexMerge(table=table))
        return len(tables)
