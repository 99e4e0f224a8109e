"""Programs on `hermes_actor.connect()` beside the same programs on `sqlite3`, in one run.

    python stress/bench_connect.py [--seconds S] [--rounds N]                      what is asked
    python stress/bench_connect.py --writers 1,8,16 [--programs append] [--slow-disk]   a part of it

Two programs. *insert*: one INSERT per write, in autocommit mode, with a timeout of one second.
*append*: the peer's own `append_message`, a transaction of several statements, unchanged; its
module gets the one or the other `sqlite3`, and its connection is not prompt: the module takes any
error in a transaction as its end. Plain `sqlite3` runs in WAL mode with synchronous=FULL, so that
an acknowledgement means the same on both sides. Each writer is a process; sides take turns,
each round on a fresh file; figures are medians over rounds, ratios medians over pairs of rounds.
`--slow-disk` gives every sync of either side 5 ms more; without `--writers` each figure that is
asked is measured, with both kinds of disk, and stands beside its limit in the end. After each round
the file is compared with what was acknowledged; the exit code says whether they agree. Times are
reported, never asserted.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import peer

from hermes_actor.client import spawn_environment
from hermes_actor.paths import resolve_paths
from hermes_actor.testing.load import end_actors
from hermes_actor.testing.writer_pool import WriterPool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hermes_actor.testing.worker import Worker

HERE = Path(__file__).resolve().parent
BENCH = HERE.parent / ".bench"
TEXT = "x" * 200
SYNC_MS = 5
WARM_UP_SECONDS = 0.3
SIDES = ("sqlite3", "connect")

SHIM = r"""
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static void slow(void) { struct timespec t = {0, %d * 1000000L}; nanosleep(&t, 0); }
int fsync(int fd) { slow(); return syscall(SYS_fsync, fd); }
int fdatasync(int fd) { slow(); return syscall(SYS_fdatasync, fd); }
"""

ASKED = {
    ("insert", 1, False): {"rate": 0.6},
    ("insert", 16, False): {"rate": 0.9, "max": 1 / 20, "even": 0.5, "errors": 0},
    ("append", 1, False): {"rate": 0.5},
    ("append", 8, False): {"rate": 0.8, "max": 1 / 30, "even": 0.8},
    ("append", 16, False): {"rate": 0.8, "max": 1 / 30, "even": 0.8},
    ("append", 8, True): {"rate": 2.5},
    ("append", 16, True): {"rate": 2.5},
}
"""By program, number of writers, and whether a sync takes 5 ms more."""

MEANING = {
    "rate": ("writes/s, of sqlite3's", True),
    "max": ("longest wait, of sqlite3's", False),
    "even": ("slowest process, of the fastest", True),
    "errors": ("locked, with a timeout of 1 s", False),
    "commits": ("commits of opening an existing schema", False),
}
"""What a figure is, and whether more is better."""


# --- in a worker ---------------------------------------------------------------------------------


def write(worker: Worker) -> None:
    """Write for so long, and leave the times of all writes in a file."""
    options = worker.options
    # An actor gets a small environment; the slow disk must be its disk, too.
    spawn_environment._KEPT = (*spawn_environment._KEPT, "LD_PRELOAD")
    write_one, close = PROGRAMS[options["program"]](worker, options["side"])
    write_one(0)  # the first write of a file starts its actor
    worker.ready()
    begin = time.perf_counter() + WARM_UP_SECONDS
    end = begin + options["seconds"]
    times, errors, acknowledged, number = [], 0, [0], 0
    while (began := time.perf_counter()) < end:
        number += 1
        try:
            write_one(number)
            acknowledged.append(number)
        except sqlite3.OperationalError:
            errors += 1
        if began >= begin:
            times.append(time.perf_counter() - began)
    close()
    report = {"times": times, "errors": errors, "acknowledged": acknowledged}
    (worker.folder / f"{worker.name}.json").write_text(json.dumps(report))
    worker.done()


Program = tuple["Callable[[int], object]", "Callable[[], object]"]


def _insert(worker: Worker, side: str) -> Program:
    module = _module(side)
    conn = module.connect(worker.store, timeout=1.0, isolation_level=None)
    conn.execute("PRAGMA journal_mode = WAL")
    conn.execute("PRAGMA synchronous = FULL")
    sql = "INSERT INTO events (worker, number, text) VALUES (?, ?, ?)"
    return lambda number: conn.execute(sql, (worker.name, number, TEXT)), conn.close


def _append(worker: Worker, side: str) -> Program:
    state = _peer(side)
    db = state.SessionDB(Path(worker.store))
    if side == "sqlite3":
        db._conn.execute("PRAGMA synchronous = FULL")
    else:
        db._conn.prompt = False
    db.create_session(worker.name, "cli")
    return lambda number: db.append_message(worker.name, "user", f"{number} {TEXT}"), db.close


def _module(side: str) -> Any:
    return importlib.import_module("sqlite3" if side == "sqlite3" else "hermes_actor.dbapi")


def _peer(side: str) -> Any:
    """The peer's module, on one or the other `sqlite3`."""
    state: Any = importlib.import_module("hermes_state")
    state.sqlite3 = _module(side)
    return state


PROGRAMS: dict[str, Callable[[Worker, str], Program]] = {"insert": _insert, "append": _append}


# --- a round -------------------------------------------------------------------------------------


class Round(NamedTuple):
    """One side with one number of writers on one file. Times in milliseconds."""

    rate: float
    p50: float
    p99: float
    max: float
    even: float
    """Writes of the slowest process for each of the fastest."""
    errors: int
    faults: list[str]


def measure(program: str, side: str, folder: Path, count: int, seconds: float) -> Round:
    """Run one round on a file that does not exist yet."""
    path = folder / "state.db"
    _create(program, path)
    reports: dict[str, dict[str, Any]] = {}
    with WriterPool(path, folder / "records", path=(HERE,), lifetime=seconds + 120) as pool:
        pool.add(count, "bench_connect:write", program=program, side=side, seconds=seconds)
        pool.start()
        pool.go()
        pool.wait_done(seconds + 60)
        for name in pool.names:
            reports[name] = json.loads((pool.folder / f"{name}.json").read_text())
    end_actors(resolve_paths(path))
    times = sorted(1e3 * value for report in reports.values() for value in report["times"])
    counts = [len(report["times"]) for report in reports.values()]
    return Round(
        rate=sum(counts) / seconds,
        p50=times[len(times) // 2],
        p99=times[int(0.99 * len(times))],
        max=times[-1],
        even=min(counts) / max(counts),
        errors=sum(report["errors"] for report in reports.values()),
        faults=[f"{program} {side} N={count}: {one}" for one in _check(program, path, reports)],
    )


def _create(program: str, path: Path) -> None:
    if program == "append":
        peer.open_peer(path).close()
        return
    with contextlib.closing(sqlite3.connect(path)) as conn:
        conn.execute("PRAGMA journal_mode = WAL")
        conn.execute("CREATE TABLE events (worker, number, text)")


def _check(program: str, path: Path, reports: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Yield what the file says against the acknowledgements."""
    sql = {
        "insert": "SELECT number FROM events WHERE worker = ? ORDER BY rowid",
        "append": "SELECT CAST(content AS INTEGER) FROM messages WHERE session_id = ? ORDER BY id",
    }[program]
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as conn:
        for name, report in reports.items():
            there = [number for (number,) in conn.execute(sql, (name,))]
            if there != report["acknowledged"]:
                lost = len({*report["acknowledged"]} - {*there})
                yield f"{name}: {lost} lost, {len(there)} there"
        ((verdict,),) = conn.execute("PRAGMA integrity_check(1)").fetchall()
        if verdict != "ok":
            yield f"damaged: {verdict}"


# --- the tables ----------------------------------------------------------------------------------


class Found(NamedTuple):
    """A figure with what is asked of it, if anything is."""

    title: str
    name: str
    value: float
    limit: float | None

    @property
    def met(self) -> bool:
        """True if nothing is asked, or it is reached."""
        more = MEANING[self.name][1]
        return self.limit is None or (
            self.value >= self.limit if more else self.value <= self.limit
        )

    def line(self) -> str:
        """The figure beside its limit."""
        sign = "≥" if MEANING[self.name][1] else "≤"
        asked = "" if self.limit is None else f"  asked {sign} {self.limit:.3g}"
        verdict = "" if self.limit is None else "  met" if self.met else "  NOT MET"
        return f"{self.title:<24}{MEANING[self.name][0]:<40}{self.value:>8.3f}{asked}{verdict}"


def compare(
    program: str, count: int, slow: bool, folder: Path, options: argparse.Namespace
) -> tuple[list[Found], list[str]]:
    """Run the rounds of both sides in turn and print their lines. Returns figures and faults."""
    rounds: dict[str, list[Round]] = {side: [] for side in SIDES}
    title = f"{program} N={count}{' slow disk' if slow else ''}"
    for number in range(options.rounds):
        for side in SIDES[:: -1 if number % 2 else 1]:
            place = folder / f"{program}-{side}-{count}-{slow}-{number}"
            place.mkdir()
            with _slow_disk(place, slow):
                done = measure(program, side, place, count, options.seconds)
            rounds[side].append(done)
            peer.say(f"{title} {side} round {number + 1}: {done.rate:.0f}/s")
            shutil.rmtree(place)
    for side in SIDES:
        shown = [statistics.median(getattr(done, f) for done in rounds[side]) for f in FIELDS]
        errors = sum(done.errors for done in rounds[side])
        print(f"{title:<22}{side:<9}{shown[0]:>9.0f}"
              + "".join(f"{value:>10.2f}" for value in shown[1:]) + f"{errors:>8}",
              flush=True)  # fmt: skip
    faults = [fault for done in (*rounds["sqlite3"], *rounds["connect"]) for fault in done.faults]
    asked = ASKED.get((program, count, slow), {})
    figures = _figures(rounds)
    return [Found(title, name, value, asked.get(name)) for name, value in figures.items()], faults


FIELDS = ("rate", "p50", "p99", "max", "even")


def _figures(rounds: dict[str, list[Round]]) -> dict[str, float]:
    figures: dict[str, float] = {}
    for name in ("rate", "max"):
        pairs = zip(rounds["connect"], rounds["sqlite3"], strict=True)
        figures[name] = statistics.median(getattr(a, name) / getattr(b, name) for a, b in pairs)
    figures["even"] = statistics.median(done.even for done in rounds["connect"])
    figures["errors"] = float(sum(done.errors for done in rounds["connect"]))
    return figures


def opening(folder: Path) -> Found:
    """Open an existing schema as programs do, and count the commits that this takes."""
    from hermes_actor import dbapi

    path = folder / "schema.db"
    schema = (
        "CREATE TABLE IF NOT EXISTS events (worker, number, text)",
        "CREATE INDEX IF NOT EXISTS by_worker ON events (worker)",
    )

    def open_() -> int:
        with contextlib.closing(dbapi.connect(path)) as conn:
            conn.execute("PRAGMA journal_mode = WAL")
            conn.executescript(";".join(schema))
            conn.execute("BEGIN IMMEDIATE")
            for sql in schema:
                conn.execute(sql)
            conn.commit()
            ((number,),) = conn.execute(
                "SELECT value FROM hermes_actor_meta WHERE key = 'commit_no'"
            ).fetchall()
            return int(number)

    before = open_()
    after = open_()
    end_actors(resolve_paths(path))
    return Found("opening", "commits", after - before, 0)


@contextlib.contextmanager
def _slow_disk(folder: Path, wanted: bool) -> Iterator[None]:
    """Have every sync of the processes that are started in the block take 5 ms more."""
    if not wanted:
        yield
        return
    source, library = folder / "slow.c", folder / "slow.so"
    source.write_text(SHIM % SYNC_MS)
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, source], check=True)
    os.environ["LD_PRELOAD"] = str(library)
    try:
        yield
    finally:
        del os.environ["LD_PRELOAD"]


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])

    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    add = parser.add_argument
    add("--writers", type=numbers, help="numbers of processes, such as 1,8,16")
    add("--programs", default="insert,append", help="with --writers: of insert,append")
    add("--seconds", type=float, default=3.0, help="length of a round")
    add("--rounds", type=int, default=3)
    add("--slow-disk", action="store_true", help="with --writers: syncs take 5 ms longer; needs cc")
    return parser.parse_args()


def main() -> int:
    """Run all comparisons; 1 if a file disagrees with what was acknowledged."""
    options = arguments()
    folder = BENCH / "run" / f"connect-{os.getpid()}"
    folder.mkdir(parents=True)
    os.environ.update(HERMES_ACTOR_IDLE_EXIT="1", HERMES_HOME=str(folder / "home"))
    wanted = list(ASKED)
    if options.writers:
        programs = options.programs.split(",")
        wanted = [(one, n, options.slow_disk) for one in programs for n in options.writers]
    found: list[Found] = []
    faults: list[str] = []
    print(f"milliseconds, medians of {options.rounds} rounds of {options.seconds:g} s;"
          f" 'even': writes of the slowest process for each of the fastest")  # fmt: skip
    print(f"{'program':<22}{'side':<9}{'writes/s':>9}{'p50':>10}{'p99':>10}{'max':>10}"
          f"{'even':>10}{'errors':>8}")  # fmt: skip
    try:
        for program, count, slow in wanted:
            figures, wrong = compare(program, count, slow, folder, options)
            found += figures
            faults += wrong
        found.append(opening(folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print("\nratios are medians over pairs of rounds")
    for one in found:
        print(one.line())
    print("\n" + ", ".join(f"{key} {value}" for key, value in peer.machine().items()))
    print(f"file and acknowledgements disagree in {len(faults)} places")
    for fault in faults[:20]:
        print(f"WRONG {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
