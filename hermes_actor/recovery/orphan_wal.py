"""What an owner had acknowledged when its files were removed or replaced, back into the store.

Such an owner saves its whole database as ``NAME.orphan-db.<epoch>``, or, if that is still in its
place, its log as ``NAME.orphan-wal.<epoch>``. The rows that the store lacks are added by ordinary
changes, so that nothing that was written since is touched.
"""

from __future__ import annotations

import contextlib
import glob
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hermes_actor.paths import columns_of_orphan
from hermes_actor.recovery.wal_reader import Cell, committed_pages
from hermes_actor.sqlite import connect_reader, sqlite3
from hermes_actor.tools.import_records import BadRecord, Record, make_record

if TYPE_CHECKING:
    from hermes_actor.cli.command_store import CommandStore
    from hermes_actor.paths import StorePaths
    from hermes_actor.sqlite import Connection

__all__ = [
    "Lacking", "counts_of", "is_whole", "lines_of", "orphans_of", "put_aside", "put_back",
    "removed", "what_lacks",
]  # fmt: skip

Row = dict[str, Any]

_DATABASE, _LOG = ".orphan-db.", ".orphan-wal."
_SIDE_FILES = ("-wal", "-shm", "-journal")

_RECOVERED = "recovered"
"""The source of a session of which only messages are left."""


class Lacking(NamedTuple):
    """The rows of one log that the store does not have."""

    log: Path
    sessions: list[Record]
    """Whole sessions, with those of their messages that are in the log."""
    messages: list[Record]
    """More messages of sessions that the store has."""
    present: int
    """Rows of the log that the store has, too."""
    unreadable: int
    """Rows of which a part is not in the log, or that are not what they seem."""

    def __bool__(self) -> bool:
        return bool(self.sessions or self.messages)

    @property
    def message_count(self) -> int:
        return sum(len(record.messages) for record in (*self.sessions, *self.messages))


def orphans_of(paths: StorePaths) -> list[Path]:
    """The logs and databases that were saved beside a store, oldest first.

    Not those without a byte, which builds before this one have left: nothing was in them.
    """
    name = glob.escape(paths.db.name)
    found = [
        (at.st_mtime, path)
        for kind in (_DATABASE, _LOG)
        for path in paths.db.parent.glob(f"{name}{kind}*")
        if (at := path.stat()).st_size and not path.name.endswith(_SIDE_FILES)
    ]
    return [path for _, path in sorted(found)]


def is_whole(orphan: Path) -> bool:
    """Whether it is a whole store, and not only a log."""
    return _DATABASE in orphan.name


class Removed(NamedTuple):
    """A store whose file was removed while its owner had it open."""

    text: str
    advice: str
    saved: Path | None
    """All that it held, if that could be saved."""


def removed(paths: StorePaths) -> Removed | None:
    """What is known of a store whose file is gone; ``None`` if it is there, or never was."""
    if paths.db.exists():
        return None
    warning = "before any program writes, which would begin an empty store"
    for orphan in reversed(orphans_of(paths)):
        if is_whole(orphan):
            text = f"{paths.db} was removed while it was in use; all that it held is in {orphan}"
            return Removed(text, f"hermes-actor restore {orphan}, {warning}", orphan)
    if paths.wal.exists() and paths.wal.stat().st_size:
        text = f"{paths.db} is gone, and its log {paths.wal.name} is still there"
        return Removed(text, f"put the file back, or restore a copy, {warning}", None)
    return None


def what_lacks(store: CommandStore, log: Path) -> Lacking:
    """Compare the rows of *log* with the store. Changes nothing."""
    return store.read(_compare, log)


def put_back(
    store: CommandStore,
    lacking: Lacking,
    tell: Callable[[int, int], None] = lambda _done, _total: None,
) -> None:
    """Add what lacks. Running it again adds nothing twice: it is compared anew each time."""
    total, done = lacking.message_count + len(lacking.sessions), 0
    for record in lacking.sessions:
        store.import_session(record.session, record.messages, record.archived)
        done += 1 + len(record.messages)
        tell(done, total)
    for record in lacking.messages:
        for row in record.messages:
            store.append_row(record.session.id, row)
            done += 1
            tell(done, total)


def put_aside(log: Path) -> Path:
    """Give a log that is done with another name, so that nobody asks about it again."""
    if not is_whole(log):
        columns_of_orphan(log).unlink(missing_ok=True)
    return log.rename(log.with_name(log.name.replace(".orphan-", ".salvaged-")))


# --- comparing -------------------------------------------------------------------------------


def _compare(conn: Connection, log: Path) -> Lacking:
    read = _rows_of_database if is_whole(log) else _rows_of_log
    sessions, messages, unreadable = read(conn, log)
    new, more = list[Record](), list[Record]()
    present = 0
    for session_id in sorted({*sessions, *messages}, key=lambda one: _start(one, sessions)):
        is_there = _has(conn, "SELECT 1 FROM sessions WHERE id = ?", (session_id,))
        rows = messages.get(session_id, [])
        kept = [row for row in rows if not (is_there and _has_message(conn, row))]
        present += len(rows) - len(kept) + (is_there and session_id in sessions)
        if is_there and not kept:
            continue
        facts = sessions.get(session_id) or _adopted(session_id, kept)
        try:
            record = make_record({**facts, "messages": kept}, time.time())
            (more if is_there else new).append(record)
        except BadRecord:
            unreadable += 1 + len(kept)
    return Lacking(log, new, more, present, unreadable)


def _start(session_id: str, sessions: dict[str, Row]) -> tuple[float, str]:
    """Parents began before their children."""
    return sessions.get(session_id, {}).get("started_at") or 0.0, session_id


def _has(conn: Connection, sql: str, values: tuple[Any, ...]) -> bool:
    return bool(conn.execute(sql, values).fetchall())


def _has_message(conn: Connection, row: Row) -> bool:
    # Not by its number: others may have used that since.
    return _has(
        conn,
        "SELECT 1 FROM messages WHERE session_id = ? AND timestamp = ? AND role = ?"
        " AND content IS ? AND tool_calls IS ? AND tool_call_id IS ?",
        (
            *(row[name] for name in ("session_id", "timestamp", "role", "content")),
            *(row.get(name) for name in ("tool_calls", "tool_call_id")),
        ),
    )


def _adopted(session_id: str, rows: list[Row]) -> Row:
    began = min((row["timestamp"] for row in rows), default=None)
    return {"id": session_id, "source": _RECOVERED, "started_at": began}


# --- reading ---------------------------------------------------------------------------------


Rows = tuple[dict[str, Row], dict[str, list[Row]], int]
"""Sessions by id, messages by session, and how many rows could not be read."""


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
    # Those of the file that was replaced: the order of columns is not the same in every file.
    with contextlib.suppress(OSError, ValueError):
        columns |= json.loads(columns_of_orphan(log).read_text("utf-8"))
    sessions: dict[str, Row] = {}
    messages: dict[int, Row] = {}
    unreadable = 0
    with committed_pages(log) as pages:
        for cell in pages.cells():
            if cell.values is None:
                unreadable += cell.columns in map(len, columns.values())
            elif (row := _as_message(cell, columns["messages"])) is not None:
                messages[cell.rowid] = row
            elif (row := _as_session(cell, columns["sessions"])) is not None:
                sessions[row["id"]] = max(row, sessions.get(row["id"], row), key=_how_far)
    grouped: dict[str, list[Row]] = {}
    for _, row in sorted(messages.items()):
        grouped.setdefault(row["session_id"], []).append(row)
    return sessions, grouped, unreadable


def _how_far(session: Row) -> int:
    """A page that is no longer used may hold an earlier state of a session."""
    return session.get("message_count") or 0


def _as_message(cell: Cell, columns: list[str]) -> Row | None:
    row = _named(cell, columns)
    if row is None or cell.values is None or cell.values[0] is not None:
        return None
    right = isinstance(row.get("session_id"), str) and isinstance(row.get("role"), str)
    return row if right and isinstance(row.get("timestamp"), int | float) else None


def _as_session(cell: Cell, columns: list[str]) -> Row | None:
    row = _named(cell, columns)
    if row is None or not isinstance(row.get("id"), str) or not isinstance(row.get("source"), str):
        return None
    return row if isinstance(row.get("started_at"), int | float) else None


def _named(cell: Cell, columns: list[str]) -> Row | None:
    # Fewer values than columns: the row is older than its last columns.
    if cell.values is None or len(cell.values) > len(columns):
        return None
    return dict(zip(columns, cell.values, strict=False))


def counts_of(lacking: Lacking) -> dict[str, int]:
    """What was found in a log, for scripts."""
    return {
        "sessions": len(lacking.sessions),
        "messages": lacking.message_count,
        "present": lacking.present,
        "unreadable": lacking.unreadable,
    }


def lines_of(lacking: Lacking) -> Iterator[str]:
    """What was found in a log, for people."""
    if lacking:
        yield (
            f"{lacking.log.name}: the store lacks {len(lacking.sessions)} session(s) and"
            f" {lacking.message_count} message(s) of it; {lacking.present} rows are there"
        )
    else:
        yield f"{lacking.log.name}: the store has all {lacking.present} rows of it"
    if lacking.unreadable:
        yield f"  {lacking.unreadable} rows are not whole and cannot be saved"
