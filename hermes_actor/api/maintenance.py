"""Removal, key and value pairs, and maintenance."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import hermes_protocol.operations as ops
from hermes_actor.api.base import Methods
from hermes_actor.api.change import Change, change
from hermes_actor.errors import HermesActorError
from hermes_actor.sqlite import sqlite3
from hermes_actor.store import queries

__all__ = ["MaintenanceMethods"]

_DAY_SECONDS = 86_400.0
_GHOST_AGE_SECONDS = _DAY_SECONDS
_ORPHAN_AGE_SECONDS = 7 * _DAY_SECONDS

_SMALL_BYTES = 16 * 1024 * 1024
"""Content that VACUUM rewrites within the 250 ms for which other writers may be kept waiting."""

_log = logging.getLogger("hermes_state")


class MaintenanceMethods(Methods):
    """Removal of sessions, key and value pairs, and maintenance of the file."""

    def delete_session(self, session_id: str, sessions_dir: Path | None = None) -> bool:
        """Remove a session, its messages and its transcript files.

        Delegates go with it in files that mark them; other children lose their parent.

        Args:
            sessions_dir: The folder of transcript files; without it no file is removed. Files are
                removed after the change is durable.

        Returns:
            ``False`` if there is no such session.
        """
        delegates = self._query(queries.delegates_of, session_id) if sessions_dir else []
        if not self._submit(ops.SessionDelete(id=session_id)):
            return False
        self._remove_files(sessions_dir, (session_id, *delegates))
        return True

    def prune_sessions(
        self,
        older_than_days: float = 90,
        source: str | None = None,
        sessions_dir: Path | None = None,
    ) -> int:
        """Remove ended sessions that started more than *older_than_days* ago, and their files.

        Atomic per session, in slices, so that other writers get in between. Delegates go with the
        session that they worked for, and one that is still open keeps it.

        Returns:
            The number of sessions that were removed, delegates included.
        """
        operation = ops.SessionsPrune(
            started_before=time.time() - older_than_days * _DAY_SECONDS, source=source
        )
        return sum(map(len, self._in_slices(operation, sessions_dir)))

    def _in_slices(
        self, operation: ops.Operation[ops.Pruned], sessions_dir: Path | None
    ) -> Iterator[list[str]]:
        """Send *operation* until nothing is left of it; yield the ids that each slice removed."""
        more = True
        while more:
            pruned = self._submit(operation)
            self._remove_files(sessions_dir, pruned.ids)
            yield pruned.ids
            more = pruned.more

    def _remove_files(self, sessions_dir: Path | None, removed: Iterable[str]) -> None:
        for session_id in removed:
            self._remove_session_files(sessions_dir, session_id, self._is_session)

    def _is_session(self, session_id: str) -> bool:
        return self._query(queries.get_session, session_id) is not None

    @staticmethod
    def _remove_session_files(
        sessions_dir: Path | None,
        session_id: str,
        is_session: Callable[[str], bool] = lambda _session_id: False,
    ) -> None:
        """Remove the files of a session that is gone.

        Its id is text that others chose: it is a name in *sessions_dir*, never a path or a pattern.
        ``request_dump_a_b_1.json`` belongs to session ``a_b`` if *is_session* knows that, else to
        ``a``.
        """
        if sessions_dir is None or not session_id or set("/\0") & set(session_id):
            return
        names = [f"{session_id}.json", f"{session_id}.jsonl"]
        with contextlib.suppress(OSError):
            names += [
                name
                for name in os.listdir(sessions_dir)
                if name.startswith(f"request_dump_{session_id}_") and name.endswith(".json")
                if not any(map(is_session, _longer_ids(name, session_id)))
            ]
        for name in names:
            with contextlib.suppress(OSError, ValueError):
                sessions_dir.joinpath(name).unlink()

    def prune_empty_ghost_sessions(self, sessions_dir: Path | None = None) -> int:
        """Remove ended, untitled sessions of source ``tui`` without messages, a day old or more.

        Returns:
            The number of sessions that were removed.
        """
        removed = self._submit(
            ops.SessionsPruneGhosts(started_before=time.time() - _GHOST_AGE_SECONDS)
        )
        self._remove_files(sessions_dir, removed)
        return len(removed)

    @change
    def finalize_orphaned_compression_sessions(self) -> Change[int]:
        """End continuations that never called a model and are a week old; removes nothing.

        Returns:
            The number of sessions that were ended.
        """
        now = time.time()
        return Change(
            ops.SessionsFinalizeOrphans(now=now, started_before=now - _ORPHAN_AGE_SECONDS)
        )

    def get_meta(self, key: str) -> str | None:
        """Return the value that is stored under *key*; ``None`` if there is none."""
        return self._query(queries.get_meta, key)

    @change
    def set_meta(self, key: str, value: Any) -> Change[None]:
        """Store *value*, a text, under *key*; an earlier value is overwritten."""
        return Change(ops.MetaSet(key=key, value=value))

    @change
    def vacuum(self) -> Change[None]:
        """Rewrite the file without holes. Other writers wait meanwhile."""
        return Change(ops.Vacuum())

    def _is_small(self) -> bool:
        return self._query(queries.content_bytes) <= _SMALL_BYTES

    def maybe_auto_prune_and_vacuum(
        self,
        retention_days: float = 90,
        min_interval_hours: float = 24,
        vacuum: bool = True,
        sessions_dir: Path | None = None,
    ) -> dict[str, Any]:
        """Prune, at most once per interval over all processes. Never raises.

        Vacuums only a small file, where that takes a moment. In a larger one new rows use the room
        that is free; :meth:`vacuum` gives it back.

        Returns:
            ``skipped`` (the interval is not over), ``pruned`` (a number), ``vacuumed``, and after a
            failure ``error``.
        """
        result: dict[str, Any] = {"skipped": False, "pruned": 0, "vacuumed": False}
        try:
            now = time.time()
            with contextlib.suppress(TypeError, ValueError):
                if now - float(self.get_meta("last_auto_prune") or "") < min_interval_hours * 3600:
                    result["skipped"] = True
                    return result
            result["pruned"] = self.prune_sessions(retention_days, sessions_dir=sessions_dir)
            if vacuum and result["pruned"] and self._is_small():
                try:
                    self.vacuum()
                    result["vacuumed"] = True
                except (HermesActorError, sqlite3.Error) as error:
                    _log.warning("vacuum after pruning failed: %s", error)
            self.set_meta("last_auto_prune", str(now))
        except Exception as error:
            _log.warning("automatic pruning failed: %s", error)
            result["error"] = str(error)
        return result


def _longer_ids(dump: str, session_id: str) -> Iterator[str]:
    """Return the ids beyond *session_id* that a request dump may be named after."""
    rest = dump.removeprefix(f"request_dump_{session_id}_").split("_")
    for count in range(1, len(rest)):
        yield "_".join([session_id, *rest[:count]])
