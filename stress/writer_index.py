"""A section of `bench_writers.py`: sustained load with indexing, through the engine without socket.

Deferred indexing moves work out of the write; here it is paid in full, against the triggers.
"""

from __future__ import annotations

import contextlib
import json
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
from writer_sections import verdict

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from writer_sections import Section

TARGET, BATCH, SESSIONS = 1.8, 32, 16


def indexing(folder: Path, rows: int, rounds: int) -> Section:
    """Batches through the engine until all is indexed, deferred against the triggers."""
    print(f"\nindexing included: {rows} messages in batches of {BATCH} through the engine, until")
    print("the lag is zero; against the same engine on a file whose triggers it may not defer")
    batches = _batches(rows)
    # A batch is cut when it takes long; the triggers must not pay for that as well.
    whole_batches = mock.patch("hermes_actor.limits.BATCH_SOFT_SECONDS", 10.0)
    spent: dict[str, list[float]] = {"triggers": [], "deferred": []}
    faults: list[str] = []
    for number in range(rounds):
        for side in list(spent)[:: 1 if number % 2 else -1]:
            path = folder / f"indexing-{side}-{number}.db"
            with whole_batches:
                spent[side].append(_index_all(path, batches, deferred=side == "deferred"))
            faults += [f"{path.name}: {fault}" for fault in _check_index(path, rows)]
    ratio = statistics.median(t / d for t, d in zip(*spent.values(), strict=True))
    for side, times in spent.items():
        middle = statistics.median(times)
        print(f"{side:<10} {middle:8.3f} s  {rows / middle:8.0f} messages/s")
    print(f"{'ratio':<10} {ratio:8.2f}    {verdict(ratio, TARGET)}")
    return {"seconds": spent, "ratio": ratio, "rows": rows}, faults


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


def _index_all(path: Path, batches: list[list[Any]], *, deferred: bool) -> float:
    """Seconds from the first batch to a complete index, upkeep as the actor does it under load."""
    from hermes_actor import limits
    from hermes_actor.engine.jobs import Request
    from hermes_protocol.operations import SessionCreate

    with _engine(path) as writer:
        names = [crew.session_id(number) for number in range(SESSIONS)]
        made = [Request(SessionCreate(id=n, source="cli", started_at=1.0)) for n in names]
        writer.run_batch(made)
    if not deferred:
        _respell_triggers(path)
    with _engine(path) as writer:
        writer.recover()
        begun = time.perf_counter()
        for batch in batches:
            left = batch
            while left:
                outcomes = writer.run_batch(left)
                for outcome in outcomes:
                    if outcome.error is not None:
                        raise outcome.error
                left = left[len(outcomes) :]
                writer.checkpointer.run_if_due(waiting=True)
                if deferred and writer.index.lag_is_urgent:
                    writer.index.run_slice(limits.INDEX_SLICE_BUSY_SECONDS)
        while writer.index.run_slice(limits.INDEX_SLICE_IDLE_SECONDS):
            writer.checkpointer.run_if_due(waiting=False)
        return time.perf_counter() - begun


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
