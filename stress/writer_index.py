"""A section of `bench_writers.py`: sustained load with indexing, through the engine without socket.

Deferred indexing moves work out of the write; here it is paid in full, at an equal lag.
"""

from __future__ import annotations

import contextlib
import json
import queue
import random
import sqlite3
import statistics
import time
from itertools import chain, islice
from typing import TYPE_CHECKING, Any
from unittest import mock

import corpus
import crew
import peer
import speed_goals
from writer_sections import verdict

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from writer_sections import Section

TARGET, BATCH, SESSIONS, LAG = 1.8, 32, 16, 1_200


def indexing(folder: Path, rows: int, rounds: int) -> Section:
    """Batches through the engine until all is indexed: triggers, slices, and chunks aside."""
    print(f"\nindexing included: {rows} messages in batches of {BATCH} through the engine and its")
    print(
        f"loop until the lag is zero, which may be {LAG} before; against the same engine that may"
    )
    print("index in slices only, and on a file whose triggers it may not defer")
    batches = _batches(rows)
    spent: dict[str, list[float]] = {"triggers": [], "slices": [], "aside": []}
    faults: list[str] = []
    for number in range(rounds):
        for side in list(spent)[:: 1 if number % 2 else -1]:
            path = folder / f"indexing-{side}-{number}.db"
            with _limits(side):
                spent[side].append(_index_all(path, batches, side))
            faults += [f"{path.name}: {fault}" for fault in _check_index(path, rows)]
    for side, times in spent.items():
        middle = statistics.median(times)
        print(f"{side:<16} {middle:8.3f} s  {rows / middle:8.0f} messages/s")
    ratios = {}
    for slower in ("triggers", "slices"):
        pairs = zip(spent[slower], spent["aside"], strict=True)
        ratios[slower] = statistics.median(before / aside for before, aside in pairs)
    print(f"aside / triggers {ratios['triggers']:8.2f}    {verdict(ratios['triggers'], TARGET)}")
    print(speed_goals.judged("indexing aside / slices", ratios["slices"]))
    return {
        "seconds": spent,
        "ratio": ratios["triggers"],
        "aside": ratios["slices"],
        "rows": rows,
    }, faults


@contextlib.contextmanager
def _limits(side: str) -> Iterator[None]:
    """The limits of a round: a small lag, so that most of it is spent with indexing."""
    changed: dict[str, Any] = {
        # A batch is cut when it takes long; the triggers must not pay for that as well.
        "BATCH_SOFT_SECONDS": 10.0,
        "INDEX_LAG_MAX_ROWS": LAG,
        "INDEX_LAG_URGENT_ROWS": LAG * 9 // 10,
        "INDEX_LAG_ASIDE_ROWS": LAG * 3 // 4,
    }
    if side != "aside":
        changed["BULK_ROWS"] = 1 << 30
    with mock.patch.multiple("hermes_actor.limits", **changed):
        yield


def _batches(rows: int) -> list[list[Any]]:
    """The corpus as requests to the engine."""
    from hermes_actor.engine.jobs import Request
    from hermes_protocol.operations import MessageAppend, MessageRow

    flow = chain.from_iterable(corpus.turns(random.Random(peer.SEED)))
    requests = []
    for number, message in enumerate(islice(flow, rows)):
        content, calls = message.content, message.tool_calls
        if isinstance(content, list):
            content = "\x00json:" + json.dumps(content)
        row = MessageRow(
            role=message.role, timestamp=corpus.EPOCH + number, content=content,
            tool_call_id=message.tool_call_id, tool_calls=json.dumps(calls) if calls else None,
            tool_name=message.tool_name, token_count=message.token_count,
            finish_reason=message.finish_reason, reasoning=message.reasoning,
            calls=len(calls or ()),
        )  # fmt: skip
        session = crew.session_id(number % SESSIONS)
        requests.append(Request(MessageAppend(session_id=session, message=row)))
    return [requests[start : start + BATCH] for start in range(0, rows, BATCH)]


@contextlib.contextmanager
def _engine(path: Path, **env: Any) -> Iterator[Any]:
    """The engine on *path*, in this process."""
    from hermes_actor.engine.environment import Environment
    from hermes_actor.engine.ownership import OwnerLock
    from hermes_actor.engine.writer import Writer
    from hermes_actor.paths import resolve_paths

    lock = OwnerLock.acquire(resolve_paths(path))
    writer = Writer(resolve_paths(path), Environment(**env))
    try:
        yield writer
    finally:
        writer.close()
        lock.release()


def engine_synchronous(path: Path) -> int:
    """`PRAGMA synchronous` of the connection with which the actor writes."""
    from hermes_actor.sqlite import connect_writer

    opened: list[sqlite3.Connection] = []

    def connect(path: Path) -> sqlite3.Connection:
        opened.append(connect_writer(path))
        return opened[-1]

    with _engine(path, connect_writer=connect):
        return int(opened[-1].execute("PRAGMA synchronous").fetchone()[0])


def _index_all(path: Path, batches: list[list[Any]], side: str) -> float:
    """Seconds from the first batch to a complete index, in the loop of every host."""
    from hermes_actor.engine.jobs import Request
    from hermes_actor.engine.loop import serve
    from hermes_protocol.operations import SessionCreate

    with _engine(path) as writer:
        names = [crew.session_id(number) for number in range(SESSIONS)]
        made = [Request(SessionCreate(id=n, source="cli", started_at=1.0)) for n in names]
        writer.run_batch(made)
    if side == "triggers":
        _respell_triggers(path)
    with _engine(path) as writer:
        writer.recover()
        source = _Batches(writer, batches)
        begun = time.perf_counter()
        with contextlib.suppress(_AllIndexed):
            serve(writer, source)
        return source.ended - begun


class _AllIndexed(Exception):
    """Ends the loop, and leaves the file to the one who has opened it."""


class _Batches:
    """Gives one batch after the other, then quiet time until everything is indexed."""

    def __init__(self, writer: Any, batches: list[list[Any]]) -> None:
        self._writer = writer
        self._batches = iter(batches)
        self._left = len(batches)
        self.ended = 0.0

    def take(self, timeout: float | None) -> list[Any]:
        """The next batch. Quiet time is no longer than asked for."""
        from hermes_actor.engine.jobs import Call

        if self._left:
            self._left -= 1
            return [Call(_demand, request) for request in next(self._batches)]
        index = self._writer.index
        if (
            index.watermark
            < self._writer.connection.conn.execute("SELECT MAX(id) FROM messages").fetchone()[0]
        ):
            index.wait_for_bulk(min(timeout or 0.0, 0.01))
            return []
        self.ended = time.perf_counter()
        raise _AllIndexed

    def take_step(self, _steps: Any, _timeout: float) -> Any:
        """No lease comes."""
        raise queue.Empty

    def waiting(self) -> bool:
        """Until the last batch the next one is there already."""
        return bool(self._left)


def _demand(outcome: Any) -> None:
    if outcome.error is not None:
        raise outcome.error


def _respell_triggers(path: Path) -> None:
    """Give the insert triggers a text that the engine does not know: it then lets them run."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as conn:
        found = conn.execute(
            "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND name GLOB '*_insert'"
        ).fetchall()
        for name, sql in found:
            conn.execute(f"DROP TRIGGER {name}")
            conn.execute(sql.replace("BEGIN", "FOR EACH ROW BEGIN", 1))


def _check_index(path: Path, rows: int) -> list[str]:
    with contextlib.closing(sqlite3.connect(path)) as conn:
        names = ("messages", "messages_fts_docsize", "messages_fts_trigram_docsize")
        counts = {n: conn.execute(f"SELECT COUNT(*) FROM {n}").fetchone()[0] for n in names}
    return [f"{count} rows in {n}, not {rows}" for n, count in counts.items() if count != rows]
