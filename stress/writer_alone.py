"""Two sections of `bench_writers.py` about a lone writer: beside busy cores, and its pages."""

from __future__ import annotations

import collections
import contextlib
import hashlib
import os
import random
import shutil
import sqlite3
import statistics
import struct
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import crew
import msgspec
import peer
import speed_goals
import writer_table
import writers

from hermes_actor.engine.jobs import Request
from hermes_actor.engine.ownership import OwnerLock
from hermes_actor.engine.receipts import Ticket
from hermes_actor.engine.writer import Writer
from hermes_actor.paths import resolve_paths
from hermes_protocol.operations import MessageAppend, MessageRow, SessionCreate, SessionTokens

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from writer_sections import Section

_FRAME_HEADER = struct.Struct(">I20x")
_WAL_HEADER_BYTES = 32
_WARM, _COUNTED = 300, 400


@contextlib.contextmanager
def _busy_cores() -> Iterator[None]:
    """An endless loop for each core, for the time of a block."""
    command = [sys.executable, "-c", "while True: pass"]
    loops = [subprocess.Popen(command) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def busy(folder: Path, seconds: float, rounds: int) -> Section:
    """One writer on each side in turn, while every core has other work."""
    print(f"\na lone writer beside a busy loop on each core, {rounds} rounds of {seconds:g} s")
    done: dict[str, list[writer_table.Round]] = {"peer": [], "ours": []}
    with _busy_cores():
        for number in range(rounds):
            for side in list(done)[:: -1 if number % 2 else 1]:
                place = folder / f"busy-{side}-{number}"
                place.mkdir()
                done[side].append(writer_table.measure(side, place / "state.db", 1, seconds))
                peer.say(f"{side} round {number + 1}: {done[side][-1].rate:.0f} writes/s")
                shutil.rmtree(place)
    for side, rows in done.items():
        print(writer_table.line(1, side, rows), flush=True)
    pairs = zip(done["ours"], done["peer"], strict=True)
    ratio = statistics.median(ours.rate / theirs.rate for ours, theirs in pairs if theirs.rate)
    print(speed_goals.judged("writes/s N=1, busy cores", ratio))
    return {"ratio": ratio}, [
        fault for rows in done.values() for one in rows for fault in one.faults
    ]


# --- pages ---------------------------------------------------------------------------------------


def pages(folder: Path) -> Section:
    """Frames that a change of a lone writer adds to the WAL, by table. No clock, no other process:
    the same in every run."""
    path = folder / "pages.db"
    paths = resolve_paths(path)
    lock = OwnerLock.acquire(paths)
    writer = Writer(paths)
    try:
        writer.recover()
        found = _count(writer, path)
    finally:
        writer.close()
        lock.release()
    total = sum(found.values()) / _COUNTED
    frame = int(writer_frame_bytes(path))
    print(f"\nframes of a change, mean of {_COUNTED} of a lone writer, turns of {writers.TURN}:")
    for name, count in found.most_common():
        print(f"  {name:<36}{count / _COUNTED:8.2f}")
    print(f"  {'together':<36}{total:8.2f}")
    print(speed_goals.judged("WAL bytes of a change, N=1", round(total * frame)))
    return {"frames": total, "bytes": total * frame, "tables": dict(found)}, []


def writer_frame_bytes(path: Path) -> int:
    """Bytes of one frame in the WAL of a file: a page and its header."""
    with contextlib.closing(sqlite3.connect(path)) as conn:
        ((page,),) = conn.execute("PRAGMA page_size").fetchall()
    return int(page) + _FRAME_HEADER.size


def _count(writer: Writer, path: Path) -> collections.Counter[str]:
    session = crew.session_id(0)
    writer.run_batch([Request(SessionCreate(id=session, source="cli", started_at=1.0))])
    client, found = bytes(16), collections.Counter[str]()
    operations = _operations(session)
    with contextlib.closing(sqlite3.connect(path)) as names:
        for number in range(1, _WARM + _COUNTED + 1):
            if number == _WARM + 1:
                # So that the frames of the WAL are those that are counted, in their order.
                writer.connection.conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                read = _WAL_HEADER_BYTES
            operation = next(operations)
            digest = hashlib.blake2b(msgspec.msgpack.encode(operation), digest_size=8).digest()
            ticket = Ticket(client, number, digest, 0, number - 1, 0)
            (outcome,) = writer.run_batch([Request(operation, ticket=ticket)])
            assert outcome.error is None, outcome.error
            if number > _WARM:
                table_of = dict(names.execute("SELECT pageno, name FROM dbstat"))
                wal = path.with_name(f"{path.name}-wal").read_bytes()
                while read < len(wal):
                    (page,) = _FRAME_HEADER.unpack_from(wal, read)
                    found[table_of.get(page, "pages that were freed again")] += 1
                    read += writer_frame_bytes(path)
    return found


def _operations(session: str) -> Iterator[Any]:
    """Turns without end, as clients send them."""
    turns, now = writers.pool(random.Random("pages")), 1_700_000_000.0
    for turn in writers.numbered(turns):
        for _, write in turn:
            now += 0.5
            given = dict(write.arguments)
            if write.method == "append_message":
                if "tool_calls" in given:
                    given["tool_calls"] = msgspec.json.encode(given["tool_calls"]).decode()
                row = MessageRow(timestamp=now, **given)
                yield MessageAppend(session_id=session, message=row)
            else:
                yield SessionTokens(id=session, started_at=now, **given)
