"""Archive, removal and import of sessions, queued and default titles, merged indexes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import hermes_protocol.operations as ops
from hermes_actor.api.change import Change, change
from hermes_actor.api.maintenance import MaintenanceMethods
from hermes_actor.store import queries
from hermes_actor.store.rows import chunks
from hermes_actor.store.sessions.title_text import sanitize_title
from hermes_protocol.operations import Imported, MessageRow, SessionRow

__all__ = ["ArchiveMethods"]

_REMOVED_TOGETHER = 200
"""Ids in one removal: what is sent again when a slice was not enough stays small."""


class ArchiveMethods(MaintenanceMethods):
    """The methods that the command line needs beyond those that agents use."""

    @change
    def archive_session(self, session_id: str, archived: bool = True) -> Change[list[str]]:
        """Hide a session and its compression lineage from lists, or show them again.

        Returns:
            The ids whose mark has changed; empty if there is no such session.
        """
        return Change(ops.SessionArchive(id=session_id, archived=archived, now=time.time()))

    def remove_sessions(
        self,
        session_ids: list[str],
        sessions_dir: Path | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> list[str]:
        """Remove those of the sessions that have ended, and their files.

        Atomic per session, in slices, so that other writers get in between. Delegates go with the
        session that they worked for, and one that is still open keeps it.

        Args:
            sessions_dir: The folder of transcript files; without it no file is removed.
            progress: Called with the number so far; what it raises ends the removal there.

        Returns:
            The ids of all that were removed, delegates included.
        """
        removed: list[str] = []
        for ids in chunks(session_ids, _REMOVED_TOGETHER):
            for gone in self._in_slices(ops.SessionsRemove(ids=ids), sessions_dir):
                removed += gone
                if progress is not None:
                    progress(len(removed))
        return removed

    def delete_session_if(
        self, session_id: str, messages: int, newest: int, sessions_dir: Path | None = None
    ) -> bool:
        """Remove a session if it has exactly *messages* messages, *newest* being the last id.

        So only what the caller has seen is removed.

        Returns:
            ``False``, and nothing is removed, if it has changed, or if delegates would go with it.
        """
        operation = ops.SessionDeleteIf(id=session_id, messages=messages, newest=newest)
        if not self._submit(operation):
            return False
        self._remove_files(sessions_dir, [session_id])
        return True

    @change
    def import_session(
        self, session: SessionRow, messages: list[MessageRow], archived: bool = False
    ) -> Change[Imported]:
        """Insert a session with its messages, as one change, unless its id exists.

        Returns:
            An ``Imported``, which says what became of the session, its title and its parent.
        """
        return Change(
            ops.SessionImport(
                session=session, messages=messages, archived=archived, now=time.time()
            )
        )

    @change
    def queue_title(self, session_id: str, title: str | None) -> Change[bool]:
        """Keep a title for a session that does not exist yet; ``None`` forgets it.

        The change that creates the session gives it the title, or the next one of the lineage if
        another session has taken it meanwhile.

        Returns:
            ``False`` if the session exists.

        Raises:
            TitleInUse: a session has it, or it is kept for another one (a ``ValueError``).
            ValueError: it is too long.
        """
        return Change(ops.TitleQueue(id=session_id, title=sanitize_title(title)))

    def get_queued_title(self, session_id: str) -> str | None:
        """Return the title that is kept for a session that does not exist yet, or ``None``."""
        return self._query(queries.queued_title, session_id)

    @change
    def move_session_title(self, session_id: str, title: str) -> Change[bool]:
        """Set a title as :meth:`set_session_title` does, but take it from a compression ancestor.

        Returns:
            ``False`` if there is no such session.

        Raises:
            TitleInUse: a session that is no compression ancestor has it (a ``ValueError``).
            ValueError: it is too long.
        """
        clean = sanitize_title(title)
        return Change(ops.SessionTitle(id=session_id, title=clean, move=True))

    def set_default_title(self, session_id: str, title: str) -> str | None:
        """Give an untitled session a title, or the lineage's next one if that is taken.

        Returns:
            The title that it got; ``None`` if it has one already, or there is no such session, or
            nothing is left of *title* when it is cleaned.

        Raises:
            ValueError: it is too long.
        """
        clean = sanitize_title(title)
        if clean is None:
            return None
        return self._submit(ops.SessionTitleDefault(id=session_id, title=clean)) or None

    def merge_indexes(self, progress: Callable[[str], None] | None = None) -> int:
        """Merge the segments of every full-text index, in slices, so that others write in between.

        Args:
            progress: Called with the name of the table after each slice.

        Returns:
            The number of indexes.
        """
        tables = self._query(queries.fulltext_tables)
        for table in tables:
            more = self._submit(ops.IndexMerge(table=table, begin=True))
            while more:
                if progress is not None:
                    progress(table)
                more = self._submit(ops.IndexMerge(table=table))
        return len(tables)
