"""Many writer processes on one file: start them together, collect, and check the file they leave.

Nothing started here outlives its block: workers end by themselves at the end of their time, are
terminated by their id if they do not, and the actor of a file is told to end by its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import writers
from peer import say
from writers import Order, Report

if TYPE_CHECKING:
    from collections.abc import Iterator

WORKER = Path(__file__).with_name("writers.py")
READY_SECONDS = 120.0  # imports of 64 processes on two cores take a while
HEAD_START = 0.25  # between the word to go and the common start
DRAIN_SECONDS = 15.0
ROLES = ("user", "assistant", "tool")  # by the number of a message, modulo the turn


def session_id(worker: int) -> str:
    """The session that one worker writes to."""
    return f"20260101_000000_{worker:06x}"


class Run(NamedTuple):
    """One round of one side: what the workers tell, and what the file says against it."""

    reports: list[Report]
    faults: list[str]
    start: float
    seconds: float


def write_together(kind: str, path: Path, workers: int, seconds: float, seed: str) -> Run:
    """Let *workers* processes write to *path* at one time; sessions must exist."""
    orders = [
        Order(kind, str(path), session_id(n), f"{seed}-{n}", seconds, f"{path}.report-{n}")
        for n in range(workers)
    ]
    faults: list[str] = []
    with contextlib.ExitStack() as stack:
        crew = [stack.enter_context(_started(order)) for order in orders]
        deadline = time.monotonic() + READY_SECONDS
        for process in crew:
            _await_word(process, b"ready", path, deadline)
        start = time.monotonic() + HEAD_START
        for process in crew:
            assert process.stdin is not None
            process.stdin.write(f"{start!r}\n".encode())
            process.stdin.flush()
        last = start + seconds + writers.OVERTIME
        try:
            for process in crew:
                _await_word(process, b"done", path, last)
        except (TimeoutError, RuntimeError) as error:
            faults.append(str(error))
        spent = time.monotonic() - start
        for process in crew:
            assert process.stdin is not None
            process.stdin.close()
        for process in crew:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(1.0, last - time.monotonic()))
    return Run([_report(order, faults) for order in orders], faults, start, spent)


def _report(order: Order, faults: list[str]) -> Report:
    try:
        return Report(**json.loads(Path(order.report).read_bytes()))
    except FileNotFoundError:
        faults.append(f"no report of {order.session}")
        return Report()


@contextlib.contextmanager
def _started(order: Order) -> Iterator[subprocess.Popen[bytes]]:
    with open(f"{order.path}.stderr", "ab") as errors:
        process = subprocess.Popen(
            [sys.executable, str(WORKER), json.dumps(asdict(order))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
        )  # fmt: skip
    try:
        yield process
    finally:
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            with contextlib.suppress(OSError):
                stream.close()
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _await_word(process: subprocess.Popen[bytes], word: bytes, path: Path, deadline: float) -> None:
    assert process.stdout is not None
    timeout = max(0.0, deadline - time.monotonic())
    if not select.select([process.stdout], [], [], timeout)[0]:
        raise TimeoutError(f"worker {process.pid} has not said {word.decode()} in time")
    if process.stdout.readline().strip() != word:
        raise RuntimeError(f"worker {process.pid} ended before {word!r}: {_last_words(path)}")


def _last_words(path: Path) -> str:
    with contextlib.suppress(OSError):
        return Path(f"{path}.stderr").read_text(errors="replace")[-300:]
    return ""


# --- the actor of a file -------------------------------------------------------------------------


@contextlib.contextmanager
def actor_on(path: Path) -> Iterator[Any]:
    """Our `SessionDB` with a running actor, which is gone when the block ends."""
    db = writers.open_store("ours", path)
    pid = db._port.statistics()["pid"]
    try:
        yield db
    finally:
        with contextlib.suppress(Exception):
            db.close()
        stop_actor(pid)


def stop_actor(pid: int) -> None:
    """Have one actor drain; insist if it does not. Returns when it is gone."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        deadline = time.monotonic() + DRAIN_SECONDS
        while time.monotonic() < deadline:
            if _is_gone(pid):
                return
            time.sleep(0.01)
        say(f"actor {pid} is still there {DRAIN_SECONDS:g} s after {number.name}")


def _is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    with contextlib.suppress(OSError):
        # Nobody may have collected it yet.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return False


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
