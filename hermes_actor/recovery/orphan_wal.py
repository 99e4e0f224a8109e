"""Import of changes that were acknowledged before the files of a store were removed or replaced.

An owner whose files are replaced saves its whole database as ``NAME.orphan-db.<epoch>`` or, if the
database is still in place, its write-ahead log as ``NAME.orphan-wal.<epoch>``. Both are called
orphans. Rows that the store lacks are added by ordinary operations, so that nothing that was
written since is touched.
"""

from __future__ import annotations

import contextlib
import glob
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from hermes_actor.paths import StorePaths, columns_of_orphan
from hermes_actor.recovery.wal_reader import WalRecord, committed_pages
from hermes_actor.sqlite import Connection, connect_reader, sqlite3
from hermes_actor.tools.import_records import BadRecord, Record, make_record
from hermes_protocol.operations import MessageRow, SessionRow

__all__ = [
    "ImportTarget", "MissingRows", "RemovedStore", "find_missing", "import_missing",
    "is_whole_store", "list_orphans", "mark_imported", "removed_store",
]  # fmt: skip

Row = dict[str, Any]
R = TypeVar("R")

_DATABASE, _LOG = ".orphan-db.", ".orphan-wal."
_SIDE_FILES = ("-wal", "-shm", "-journal")

_RECOVERED = "recovered"
"""Source of a session of which only messages are left."""


class ImportTarget(Protocol):
    """The store that rows are imported into."""

    def read(self, function: Callable[..., R], *arguments: Any) -> R:
        """Return ``function(connection, *arguments)``, run in one snapshot."""
        ...

    def import_session(
        self, session: SessionRow, messages: list[MessageRow], archived: bool
    ) -> object:
        """Add a session with its messages; *archived* sets its mark."""
        ...

    def append_row(self, session_id: str, row: MessageRow) -> int:
        """Append a message as it is stored, and return its id."""
        ...


class MissingRows(NamedTuple):
    """Rows of one orphan that the store lacks."""

    orphan: Path
    sessions: list[Record]
    """Whole sessions, with those of their messages that are in the orphan."""
    messages: list[Record]
    """More messages of sessions that the store has."""
    present: int
    """Rows of the orphan that the store has, too."""
    unreadable: int
    """Rows of which a part is not in the orphan, or that fail validation."""

    def __bool__(self) -> bool:
        return bool(self.sessions or self.messages)

    @property
    def message_count(self) -> int:
        """Number of missing messages, those of missing sessions included."""
        return sum(len(record.messages) for record in (*self.sessions, *self.messages))


def list_orphans(paths: StorePaths) -> list[Path]:
    """Return the logs and databases that were saved beside a store, oldest first.

    Empty files, which earlier builds left behind, are skipped.
    """
    name = glob.escape(paths.db.name)
    found = [
        (at.st_mtime, path)
        for kind in (_DATABASE, _LOG)
        for path in paths.db.parent.glob(f"{name}{kind}*")
        if (at := path.stat()).st_size and not path.name.endswith(_SIDE_FILES)
    ]
    return [path for _, path in sorted(found)]


def is_whole_store(orphan: Path) -> bool:
    """Return True if *orphan* is a whole store, False if it is only a log."""
    return _DATABASE in orphan.name


class RemovedStore(NamedTuple):
    """A store whose file was removed while its owner had it open."""

    text: str
    advice: str
    saved: Path | None
    """Orphan with its whole content, if that could be saved."""


def removed_store(paths: StorePaths) -> RemovedStore | None:
    """Describe a store whose file was removed; ``None`` if it exists, or never did."""
    if paths.db.exists():
        return None
    warning = "before a program writes and creates an empty store"
    for orphan in reversed(list_orphans(paths)):
        if is_whole_store(orphan):
            text = f"{paths.db} was removed while in use; its whole content was saved in {orphan}"
            return RemovedStore(text, f"run hermes-actor restore {orphan} {warning}", orphan)
    if paths.wal.exists() and paths.wal.stat().st_size:
        text = f"{paths.db} is missing, but its write-ahead log {paths.wal.name} is still there"
        return RemovedStore(text, f"put the file back or restore a backup {warning}", None)
    return None


def find_missing(store: ImportTarget, orphan: Path) -> MissingRows:
    """Compare the rows of *orphan* with the store and return those that it lacks.

    Changes nothing. Raises :class:`NotADatabase` if *orphan* is neither a log nor a database.
    """
    return store.read(_compare, orphan)


def import_missing(
    store: ImportTarget,
    missing: MissingRows,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> None:
    """Add *missing* to the store, under new message ids.

    *progress* gets the rows that are done, and their total. After an interruption compare again
    with :func:`find_missing`, which leaves out what was imported.
    """
    total, done = missing.message_count + len(missing.sessions), 0
    for record in missing.sessions:
        store.import_session(record.session, record.messages, record.archived)
        done += 1 + len(record.messages)
        progress(done, total)
    for record in missing.messages:
        for row in record.messages:
            store.append_row(record.session.id, row)
            done += 1
            progress(done, total)


def mark_imported(orphan: Path) -> Path:
    """Rename an orphan whose rows are all in the store, and return its new path.

    :func:`list_orphans` does not list it any more.
    """
    if not is_whole_store(orphan):
        columns_of_orphan(orphan).unlink(missing_ok=True)
    return orphan.rename(orphan.with_name(orphan.name.replace(".orphan-", ".salvaged-")))


# --- comparing -------------------------------------------------------------------------------


def _compare(conn: Connection, orphan: Path) -> MissingRows:
    read = _rows_of_database if is_whole_store(orphan) else _rows_of_log
    sessions, messages, unreadable = read(conn, orphan)
    new, more = list[Record](), list[Record]()
    present = 0

    def start(session_id: str) -> tuple[float, str]:  # parents come before their children
        return sessions.get(session_id, {}).get("started_at") or 0.0, session_id

    for session_id in sorted({*sessions, *messages}, key=start):
        is_there = _has(conn, "SELECT 1 FROM sessions WHERE id = ?", (session_id,))
        rows = messages.get(session_id, [])
        kept = [row for row in rows if not (is_there and _has_message(conn, row))]
        present += len(rows) - len(kept) + (is_there and session_id in sessions)
        if is_there and not kept:
            continue
        began = min((row["timestamp"] for row in kept), default=None)
        adopted = {"id": session_id, "source": _RECOVERED, "started_at": began}
        facts = sessions.get(session_id) or adopted
        try:
            record = make_record({**facts, "messages": kept}, time.time())
            (more if is_there else new).append(record)
        except BadRecord:
            unreadable += 1 + len(kept)
    return MissingRows(orphan, new, more, present, unreadable)


def _has(conn: Connection, sql: str, values: tuple[Any, ...]) -> bool:
    return bool(conn.execute(sql, values).fetchall())


def _has_message(conn: Connection, row: Row) -> bool:
    # Not by its id: another message may have it by now.
    return _has(
        conn,
        "SELECT 1 FROM messages WHERE session_id = ? AND timestamp = ? AND role = ?"
        " AND content IS ? AND tool_calls IS ? AND tool_call_id IS ?",
        (
            *(row[name] for name in ("session_id", "timestamp", "role", "content")),
            *(row.get(name) for name in ("tool_calls", "tool_call_id")),
        ),
    )


# --- reading ---------------------------------------------------------------------------------


Rows = tuple[dict[str, Row], dict[str, list[Row]], int]
"""Sessions by id, messages by session, and the number of unreadable rows."""


def _rows_of_database(_conn: Connection, orphan: Path) -> Rows:
    with contextlib.closing(connect_reader(orphan)) as conn:
        conn.row_factory = sqlite3.Row
        sessions = {row["id"]: dict(row) for row in conn.execute("SELECT * FROM sessions")}
        grouped: dict[str, list[Row]] = {}
        for row in conn.execute("SELECT * FROM messages ORDER BY id"):
            grouped.setdefault(row["session_id"], []).append(dict(row))
    return sessions, grouped, 0


def _rows_of_log(conn: Connection, log: Path) -> Rows:
    columns = {
        table: [row[1] for row in conn.execute(f"PRAGMA table_info({table})").fetchall()]
        for table in ("sessions", "messages")
    }
    # Columns of the replaced file, if they were saved: their order differs between files.
    with contextlib.suppress(OSError, ValueError):
        columns |= json.loads(columns_of_orphan(log).read_text("utf-8"))
    sessions: dict[str, Row] = {}
    messages: dict[int, Row] = {}
    unreadable = 0
    with committed_pages(log) as pages:
        for record in pages.records():
            if record.values is None:
                unreadable += record.columns in map(len, columns.values())
            elif (row := _as_message(record, columns["messages"])) is not None:
                messages[record.rowid] = row
            elif (row := _as_session(record, columns["sessions"])) is not None:
                # A page that is no longer used may hold an earlier state of a session.
                known = sessions.setdefault(row["id"], row)
                if (row.get("message_count") or 0) >= (known.get("message_count") or 0):
                    sessions[row["id"]] = row
    grouped: dict[str, list[Row]] = {}
    for _, row in sorted(messages.items()):
        grouped.setdefault(row["session_id"], []).append(row)
    return sessions, grouped, unreadable


def _as_message(record: WalRecord, columns: list[str]) -> Row | None:
    row = _named(record, columns)
    if row is None or record.values is None or record.values[0] is not None:
        return None
    right = isinstance(row.get("session_id"), str) and isinstance(row.get("role"), str)
    return row if right and isinstance(row.get("timestamp"), int | float) else None


def _as_session(record: WalRecord, columns: list[str]) -> Row | None:
    row = _named(record, columns)
    if row is None or not isinstance(row.get("id"), str) or not isinstance(row.get("source"), str):
        return None
    return row if isinstance(row.get("started_at"), int | float) else None


def _named(record: WalRecord, columns: list[str]) -> Row | None:
    # Fewer values than columns: the row is older than its last columns.
    if record.values is None or len(record.values) > len(columns):
        return None
    return dict(zip(columns, record.values, strict=False))
