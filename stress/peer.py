"""The two sides of a benchmark: the peer program's `SessionDB` and ours, and a file for both.

The peer is run, never read: it creates the empty schema itself, so the file is exactly what its
users have, and only the rows are put in behind its back, in bulk.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import random
import sqlite3
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import corpus

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SEED = 14
OF_SESSION_DB = ("from hermes_actor import SessionDB", "from hermes_state import SessionDB")
"""The imports that are compared: ours and the peer's."""
_IMPORTS = ("import sqlite3, json, socket", *OF_SESSION_DB)
_SESSION_COLUMNS = (
    "id, source, user_id, model, model_config, system_prompt, parent_session_id, started_at,"
    " ended_at, end_reason, message_count, tool_call_count, input_tokens, output_tokens,"
    " cache_read_tokens, reasoning_tokens, billing_provider, estimated_cost_usd, cost_status,"
    " title, api_call_count"
)
_MESSAGE_COLUMNS = (
    "id, session_id, role, content, tool_call_id, tool_calls, tool_name, timestamp, token_count,"
    " finish_reason, reasoning"
)
_INDEXED = "COALESCE(content,'')||' '||COALESCE(tool_name,'')||' '||COALESCE(tool_calls,'')"


def open_peer(path: Path) -> Any:
    """The peer's `SessionDB` on `path`."""
    return importlib.import_module("hermes_state").SessionDB(path)


def open_ours(path: Path) -> Any:
    """Our `SessionDB`, once the indexes that it adds in idle time are there."""
    db = importlib.import_module("hermes_actor").SessionDB(path, mode="embedded")
    pending = getattr(db, "maintenance_pending", lambda: False)
    begun = time.perf_counter()
    while pending():
        say(f"{time.perf_counter() - begun:6.1f} s  waiting for our own indexes")
        time.sleep(0.5)
    return db


OPEN: dict[str, Callable[[Path], Any]] = {"peer": open_peer, "ours": open_ours}


def burst(call: Callable[[Any], object], db: Any, calls: int) -> float:
    """Seconds per call over so many calls."""
    begun = time.perf_counter()
    for _ in range(calls):
        call(db)
    return (time.perf_counter() - begun) / calls


def import_times(runs: int = 9) -> dict[str, float | None]:
    """Median seconds of an import in fresh interpreters, taken in turn; None if it fails."""
    spent: dict[str, list[float]] = {what: [] for what in _IMPORTS}
    for _ in range(runs):
        for what, times in spent.items():
            code = f"import time; t = time.perf_counter(); {what}; print(time.perf_counter() - t)"
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
            if done.returncode == 0:
                times.append(float(done.stdout))
    return {what: statistics.median(times) if times else None for what, times in spent.items()}


def machine() -> dict[str, str]:
    """What the figures depend on."""
    return {
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "cores": str(os.cpu_count()),
        "machine": platform.machine(),
        "load": f"{os.getloadavg()[0]:.2f}",
    }


def say(text: str) -> None:
    """Progress goes to stderr, results to stdout."""
    print(text, file=sys.stderr, flush=True)


def build(path: Path, sessions: int = 10_000, messages: int = 150_000, seed: int = SEED) -> Path:
    """Make the file if it is not there yet; a half-made one never gets the final name."""
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")
    draft.unlink(missing_ok=True)
    begun = time.perf_counter()
    open_peer(draft).close()
    conn = sqlite3.connect(draft, isolation_level=None)
    for pragma in ("journal_mode=OFF", "synchronous=OFF", "cache_size=-400000"):
        conn.execute(f"PRAGMA {pragma}")
    triggers = conn.execute("SELECT name, sql FROM sqlite_master WHERE type='trigger'").fetchall()
    for name, _ in triggers:
        conn.execute(f"DROP TRIGGER {name}")
    _insert_rows(conn, sessions, messages, seed)
    for table in ("messages_fts", "messages_fts_trigram"):
        say(f"{time.perf_counter() - begun:6.1f} s  filling {table}")
        conn.execute(f"INSERT INTO {table}(rowid, content) SELECT id, {_INDEXED} FROM messages")
    for _, sql in triggers:
        conn.execute(sql)
    conn.execute("PRAGMA journal_mode=WAL")
    conn.close()
    _add_side_state(draft)
    os.replace(draft, path)
    say(f"{time.perf_counter() - begun:6.1f} s  {path.name}: {path.stat().st_size / 1e9:.2f} GB")
    return path


def _insert_rows(conn: sqlite3.Connection, sessions: int, messages: int, seed: int) -> None:
    rng = random.Random(seed)
    session_rows: list[tuple[Any, ...]] = []
    message_rows: list[tuple[Any, ...]] = []
    for session, spoken in corpus.sessions(rng, sessions, messages):
        message_rows += [_message_row(session.id, stamp, message) for stamp, message in spoken]
        session_rows.append(_session_row(rng, session, [message for _, message in spoken]))
        if len(session_rows) % 1000 == 0:
            say(f"{len(session_rows):7d} of {sessions} sessions, {len(message_rows)} messages")
    # Agents talk at the same time: ids follow the clock over all sessions, as in a real file.
    message_rows.sort(key=lambda row: row[6])
    conn.execute("BEGIN")
    _insert(conn, "sessions", _SESSION_COLUMNS, session_rows)
    numbered = [(number, *row) for number, row in enumerate(message_rows, start=1)]
    _insert(conn, "messages", _MESSAGE_COLUMNS, numbered)
    conn.execute("COMMIT")


def _insert(
    conn: sqlite3.Connection, table: str, columns: str, rows: list[tuple[Any, ...]]
) -> None:
    marks = ",".join("?" * len(rows[0]))
    conn.executemany(f"INSERT INTO {table} ({columns}) VALUES ({marks})", rows)


def _message_row(session_id: str, stamp: float, message: corpus.Message) -> tuple[Any, ...]:
    content = message.content
    if isinstance(content, list):
        content = "\x00json:" + json.dumps(content)
    calls = json.dumps(message.tool_calls) if message.tool_calls else None
    return (
        session_id, message.role, content, message.tool_call_id, calls, message.tool_name, stamp,
        message.token_count, message.finish_reason, message.reasoning,
    )  # fmt: skip


def _session_row(
    rng: random.Random, session: corpus.Session, spoken: list[corpus.Message]
) -> tuple[Any, ...]:
    calls = sum(len(message.tool_calls or ()) for message in spoken)
    sent, received = 900 * len(spoken), sum(message.token_count or 0 for message in spoken)
    config = json.dumps({"temperature": 0.7, "max_tokens": 8192})
    return (
        session.id, session.source, session.user_id, session.model, config, session.system_prompt,
        session.parent, session.started_at, session.ended_at, session.end_reason, len(spoken),
        calls, sent, received, sent * rng.randint(1, 5), received // 4, "openrouter",
        round(sent * 3e-6 + received * 15e-6, 6), "estimated", session.title, len(spoken) // 2,
    )  # fmt: skip


def _add_side_state(path: Path) -> None:
    """Topic bindings, handoffs and meta, through the peer's own methods."""
    db = open_peer(path)
    rows = db.list_unlinked_telegram_sessions_for_user(chat_id="1", user_id="u1", limit=40)
    db.enable_telegram_topic_mode(chat_id="1", user_id="u1", has_topics_enabled=True)
    for thread, row in enumerate(rows):
        db.bind_telegram_topic(
            chat_id="1", thread_id=str(thread), user_id="u1",
            session_key=f"telegram:1:{thread}", session_id=row["id"],
        )  # fmt: skip
    for row in db.search_sessions(source="cli", limit=3):
        db.request_handoff(row["id"], "telegram")
    db.set_meta("last_auto_prune", "1767225600.0")
    db.close()
