"""Rounds of a benchmark: many writers on one store, and the check of what they leave.

The writers are those of :class:`~hermes_actor.testing.writer_pool.WriterPool`, at the work of
:mod:`writers`; neither they nor the actor of a file outlive their block.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import writers
from writers import Report

from hermes_actor.paths import resolve_paths
from hermes_actor.testing.load import end_actors
from hermes_actor.testing.writer_pool import WriterPool

if TYPE_CHECKING:
    from collections.abc import Iterator

READY_SECONDS = 120.0  # imports of 64 processes on two cores take a while
HEAD_START = 0.25  # between the word to go and the common start
ROLES = ("user", "assistant", "tool")  # by the number of a message, modulo the turn
PREFIX = "20260101_000000_0000"


def session_id(worker: int) -> str:
    """The session that one worker writes to, which is the worker's name."""
    return f"{PREFIX}{worker}"


class Run(NamedTuple):
    """One round of one side: the reports of its workers, and what the file says against them."""

    reports: list[Report]
    faults: list[str]
    start: float
    seconds: float


def write_together(
    kind: str, store: Path | str, folder: Path, workers: int, seconds: float, seed: str
) -> Run:
    """Let *workers* processes write to *store* at one time; sessions must exist.

    Their records go to *folder*.
    """
    faults: list[str] = []
    pool = WriterPool(
        store, folder / "records", seed=seed, path=(Path(__file__).parent,),
        lifetime=seconds + 2 * writers.OVERTIME,
    )  # fmt: skip
    with pool.add(workers, writers.WORK, prefix=PREFIX, kind=kind, seconds=seconds):
        pool.start(READY_SECONDS)
        start = time.monotonic() + HEAD_START
        pool.go(repr(start))
        last = start + seconds + writers.OVERTIME
        try:
            pool.wait_done(last - time.monotonic())
        except TimeoutError as error:
            faults.append(str(error))
        spent = time.monotonic() - start
        if code := pool.stop(max(1.0, last - time.monotonic())):
            faults.append(f"a worker has ended with {code}: {pool.last_words()[-300:]}")
    reports = pool.recorded.reports
    faults += [f"no report of {name}" for name in pool.names if name not in reports]
    return Run([Report(**reports.get(name, {})) for name in pool.names], faults, start, spent)


# --- the actor of a file -------------------------------------------------------------------------


@contextlib.contextmanager
def actor_on(path: Path) -> Iterator[Any]:
    """Our `SessionDB` with a running actor, which is gone when the block ends."""
    db = writers.open_store("ours", str(path))
    try:
        yield db
    finally:
        with contextlib.suppress(Exception):
            db.close()
        end_actors(resolve_paths(path))


def index_lag(db: Any, path: Path) -> int:
    """Messages that the actor has not indexed yet."""
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as conn:
        newest = conn.execute("SELECT COALESCE(MAX(id), 0) FROM messages").fetchone()[0]
    return int(newest - db._port.statistics()["index"]["watermark"])


def await_index(db: Any, path: Path, seconds: float) -> int:
    """Wait until everything is indexed, or for *seconds*; the lag that is left."""
    deadline = time.monotonic() + seconds
    while (lag := index_lag(db, path)) > 0 and time.monotonic() < deadline:
        time.sleep(0.02)
    return lag


# --- what the file says --------------------------------------------------------------------------


def check(path: Path, run: Run, *, turns: bool = True) -> list[str]:
    """Where file and acknowledgements disagree; *turns* says that workers wrote whole turns."""
    faults = list(run.faults)
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as conn:
        for worker, report in enumerate(run.reports):
            session = session_id(worker)
            found = [*_check_messages(conn, session, report, turns)]
            found += _check_counters(conn, session, report)
            faults += [f"{session}: {fault}" for fault in found]
        verdict = conn.execute("PRAGMA quick_check").fetchone()[0]
        if verdict != "ok":
            faults.append(f"quick_check: {verdict}")
    return faults


def _check_messages(
    conn: sqlite3.Connection, session: str, report: Report, turns: bool
) -> Iterator[str]:
    rows = conn.execute(
        "SELECT id, role, CAST(substr(content, 2, 7) AS INTEGER) FROM messages"
        " WHERE session_id = ? ORDER BY id", (session,),
    ).fetchall()  # fmt: skip
    numbers, unknown = [number for _, _, number in rows], set(report.unknown)
    certain = [number for number in numbers if number not in unknown]
    acked = [number for number, _ in report.acked if number not in unknown]
    if certain != acked:
        lost, extra = set(acked) - set(certain), set(certain) - set(acked)
        yield (
            f"{len(acked)} acknowledged, {len(certain)} rows; lost {sorted(lost)[:5]},"
            f" not acknowledged {sorted(extra)[:5]}, or out of order"
        )
    if any(after <= before for before, after in pairwise(numbers)):
        yield "message ids do not follow the order of sending, or a message is there twice"
    kept = {number: ident for ident, _, number in rows}
    wrong = [n for n, ident in report.acked if ident is not None and kept.get(n) != ident]
    if wrong:
        yield f"messages {wrong[:5]} have another id than the store answered"
    if turns and any(role != ROLES[number % writers.TURN] for _, role, number in rows):
        yield "a message has another's role"


def _check_counters(conn: sqlite3.Connection, session: str, report: Report) -> Iterator[str]:
    messages, calls, sent, received, updates = conn.execute(
        "SELECT message_count, tool_call_count, input_tokens, output_tokens, api_call_count"
        " FROM sessions WHERE id = ?", (session,),
    ).fetchone()  # fmt: skip
    rows, spoken = conn.execute(
        "SELECT COUNT(*), TOTAL(tool_calls NOT NULL) FROM messages WHERE session_id = ?",
        (session,),
    ).fetchone()
    if (messages, calls) != (rows, spoken):
        yield f"counters say {messages} messages and {calls} calls, rows {rows} and {spoken:g}"
    if not report.tokens <= updates <= report.tokens + len(report.unknown):
        yield f"{report.tokens} updates of token counts acknowledged, {updates} kept"
    if (sent, received) != (updates * writers.INPUT_TOKENS, updates * writers.OUTPUT_TOKENS):
        yield f"token sums {sent} and {received} do not fit {updates} updates"
