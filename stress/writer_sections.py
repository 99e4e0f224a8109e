"""Two sections of `bench_writers.py`: the memory of an actor under large rows, its time to start.

Each returns its figures and the faults it found, and prints what it measured as it goes.
"""

from __future__ import annotations

import os
import shutil
import statistics
import time
from typing import TYPE_CHECKING, Any

import crew
import peer
import writers

if TYPE_CHECKING:
    from pathlib import Path

Section = tuple[dict[str, Any], list[str]]

MEMORY_TARGET_MB, CLIENTS = 150, 64
START_TARGET = 1.3
BIG = (10_000, 150_000)  # sessions and messages of the file of 0.97 GB


def verdict(value: float, target: float, *, most: bool = False) -> str:
    """The end of a line: the target and whether it is met."""
    met = value <= target if most else value >= target
    return f"target {'≤' if most else '≥'} {target:g}  {'ok' if met else 'MISS'}"


# --- memory --------------------------------------------------------------------------------------


def memory(folder: Path, seconds: float, clients: int = CLIENTS) -> Section:
    """The largest resident size of an actor to which many clients send rows of 2 MB."""
    print(f"\nmemory: {clients} client processes send rows of 2 MB for {seconds:g} s")
    path = folder / "memory.db"
    with crew.actor_on(path) as db:
        for number in range(clients):
            db.create_session(crew.session_id(number), "cli")
        before = _resident_mb(db)
        run = crew.write_together("rows", path, folder, clients, seconds, f"{peer.SEED}-rows")
        loaded = _resident_mb(db)
        left = crew.await_index(db, path, 2 * seconds + 5)
        indexed = _resident_mb(db)
    rows = sum(len(report.acked) for report in run.reports)
    errors = sum(sum(report.errors.values()) for report in run.reports)
    slowest = max((max(r.latency, default=0.0) for r in run.reports), default=0.0)
    print(f"{rows} rows, {rows * writers.ROW_BYTES / run.seconds / 1e6:.0f} MB/s, {errors} errors,"
          f" longest call {slowest:.2f} s")  # fmt: skip
    for report in run.reports:
        if report.sample:
            print(f"first error: {report.sample}")
            break
    state = "all indexed" if not left else f"{left} rows still to be indexed"
    print(f"{'at rest':<24} {before:8.1f} MB")
    print(f"{'under load':<24} {loaded:8.1f} MB  {verdict(loaded, MEMORY_TARGET_MB, most=True)}")
    print(f"{'with the indexing after':<24} {indexed:8.1f} MB "
          f" {verdict(indexed, MEMORY_TARGET_MB, most=True)}  ({state})")  # fmt: skip
    figures = {"rest_mb": before, "load_mb": loaded, "indexed_mb": indexed, "rows": rows}
    return {**figures, "errors": errors}, crew.check(path, run, turns=False)


def _resident_mb(db: Any) -> float:
    return float(db._port.statistics()["memory_max_kib"]) / 1024


# --- time to start -------------------------------------------------------------------------------


def start(folder: Path, bench: Path, rounds: int) -> Section:
    """From spawning an actor to its first acknowledgement, on an empty and on a large file."""
    source = peer.build(bench / f"reads-{BIG[0]}-{BIG[1]}-{peer.SEED}.db", *BIG)
    size = source.stat().st_size / 1e9
    print("\nstart: from spawn to the first acknowledgement, on files of the peer, empty and of")
    print(f"{size:.2f} GB; 'first' is an actor's first meeting with the file; medians of {rounds}")
    empty = folder / "empty-source.db"
    peer.open_peer(empty).close()
    spent: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, origin in (("new", None), ("empty", empty), ("large", source)):
            path = folder / f"start-{name}.db"
            if origin is not None:
                _copy(origin, path)
            spent.setdefault(f"{name} first", []).append(_first_ack(path))
            spent.setdefault(f"{name} again", []).append(_first_ack(path))
            for leftover in folder.glob(f"{path.name}*"):
                leftover.unlink()
            shutil.rmtree(folder / f".{path.name}.actor", ignore_errors=True)
    for name, times in spent.items():
        print(f"{name:<14} {statistics.median(times) * 1e3:8.1f} ms  (max {max(times) * 1e3:.1f})")
    ratios = {}
    for when in ("first", "again"):
        pairs = zip(spent[f"large {when}"], spent[f"empty {when}"], strict=True)
        ratios[when] = statistics.median(large / small for large, small in pairs)
        told = verdict(ratios[when], START_TARGET, most=True)
        print(f"{'ratio ' + when:<14} {ratios[when]:8.2f}     {told}")
    return {"seconds": spent, "ratios": ratios}, []


def _copy(source: Path, path: Path) -> None:
    """A copy that is on the disk already: the actor's first sync must not pay for it."""
    shutil.copyfile(source, path)
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def _first_ack(path: Path) -> float:
    begun = time.perf_counter()
    with crew.actor_on(path) as db:
        db.create_session(f"start-{begun}", "cli")
        return time.perf_counter() - begun
