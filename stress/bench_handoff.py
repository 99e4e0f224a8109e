"""How long writes wait for a hand-off, beside a plain restart of the actor in the same run.

    python stress/bench_handoff.py [--count N] [--writers 16] [--handoffs | --exit]

Writer processes write without a pause, each to a session of its own. Hand-offs and restarts
(SIGTERM, then a start on demand by the first client) take turns; the number of each is the
longest that any write waited that was under way at some time between the asking and the answer.
They come in rounds, each on a fresh file, whose history is checked: every write must have been
acknowledged and be there once, in order. The last section sends SIGTERM to an actor with many
clients and a full queue. Times are reported, never asserted; the exit code is that of the checks.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import shutil
import signal
import sqlite3
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import peer
from writer_sections import verdict
from writer_table import percentile

from hermes_actor.client.actor_client import ActorClient
from hermes_actor.client.control import ask_status, request_handoff
from hermes_actor.errors import HermesActorError
from hermes_actor.paths import resolve_paths
from hermes_actor.testing.load import Event, end_actors
from hermes_actor.testing.writer_pool import WriterPool, check
from hermes_protocol.operations import MessageAppend, MessageRow, SessionCreate

if TYPE_CHECKING:
    from collections.abc import Callable

    from hermes_actor.paths import StorePaths

Section = tuple[dict[str, Any], list[str]]

BENCH = Path(__file__).resolve().parent.parent / ".bench"
MEDIAN_TARGET_MS, WORST_TARGET_MS, EXIT_TARGET_S = 60, 400, 1.0
ROUND = 10  # hand-offs, and restarts, on one file
SETTLE_SECONDS = 60.0  # for whatever must happen, on a busy machine
CLIENTS, QUEUED, BATCH = 64, 1000, 64


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--count", type=int, default=100, help="hand-offs, and as many restarts")
    add("--writers", type=int, default=16, help="writer processes")
    add("--pause", type=float, default=0.0, help="mean milliseconds between two writes of one")
    add("--repeats", type=int, default=5, help="rounds of the exit section")
    add("--keep", action="store_true", help="leave the files in .bench/run")
    for name in ("handoffs", "exit"):
        add(f"--{name}", action="store_true", help="only this section")
    return parser.parse_args()


# --- hand-off and restart ------------------------------------------------------------------------


def serving(paths: StorePaths, other_than: int = 0) -> int:
    """Wait until an actor serves; its process."""
    give_up = time.monotonic() + SETTLE_SECONDS
    while time.monotonic() < give_up:
        with contextlib.suppress(HermesActorError, OSError):
            status = ask_status(paths)
            if status and status.is_serving and status.pid != other_than:
                return status.pid
        time.sleep(0.005)
    raise TimeoutError(f"no actor serves {paths.db}")


def restart(paths: StorePaths) -> None:
    """End the actor as a service manager would; the clients start the next one."""
    pid = serving(paths)
    os.kill(pid, signal.SIGTERM)
    serving(paths, other_than=pid)


def longest_wait(
    pool: WriterPool, paths: StorePaths, act: Callable[[StorePaths], object]
) -> tuple[float, float]:
    """Do something to the actor: the longest wait of a write that met it, and how long it took.

    Returns when every writer has begun and ended a write since, so the next one starts afresh.
    """
    event = Event("", "", time.monotonic())
    act(paths)
    event.ended = time.monotonic()
    behind, give_up = set(pool.names), time.monotonic() + SETTLE_SECONDS
    while behind:
        if time.monotonic() > give_up:
            raise TimeoutError(f"{sorted(behind)} do not write any more")
        time.sleep(0.02)
        for write in pool.poll():
            event.met(write)
            if write.began > event.ended:
                behind.discard(write.client)
    return event.longest, event.ended - event.began


def handoffs(folder: Path, options: argparse.Namespace) -> Section:
    """The main table."""
    acts: dict[str, Callable[[StorePaths], object]] = {
        "hand-off": lambda paths: request_handoff(paths, sys.executable),
        "restart": restart,
    }
    waits: dict[str, list[float]] = {name: [] for name in acts}
    takes: dict[str, list[float]] = {name: [] for name in acts}
    faults: list[str] = []
    writes, errors, seconds = 0, 0, 0.0
    for first in range(0, options.count, ROUND):
        count = min(ROUND, options.count - first)
        paths = resolve_paths(folder / f"round-{first}" / "state.db")
        home = paths.db.parent
        pool = WriterPool(
            paths.db, home / "records", seed=f"{peer.SEED}-{first}",
            environment={"HERMES_HOME": str(home)}, lifetime=20 * count + 150,
        )  # fmt: skip
        try:
            pool.add(options.writers, pause=options.pause / 1e3).start()
            begun = time.monotonic()
            pool.go()
            for number in range(count):
                for name in list(acts)[:: -1 if number % 2 else 1]:
                    wait, took = longest_wait(pool, paths, acts[name])
                    waits[name].append(wait)
                    takes[name].append(took)
                told = ", ".join(f"{name} {1e3 * of[-1]:.0f} ms" for name, of in waits.items())
                peer.say(f"{first + number + 1} of {options.count}: {told}")
            seconds += time.monotonic() - begun
        finally:
            code = pool.stop()
            end_actors(paths)
        history = check(paths.db, pool.recorded)
        writes, errors = writes + history.acknowledged, errors + history.failed
        faults += history.faults
        if code:
            faults.append(f"a writer has ended with {code}: {pool.last_words()}")
        if history.lost or history.doubled or history.out_of_order:
            faults.append(f"round {first}: {history}")
        if not options.keep:
            shutil.rmtree(paths.db.parent)
    rate = writes / seconds
    print(f"{options.writers} writers, {rate:.0f} writes/s in all; hand-offs and restarts in turn;")
    print("milliseconds that the longest write waited that met one; 'takes' is from the asking to")
    print("the answer of the next actor, its start-up included")
    print(f"{'':<10}{'N':>5}{'median':>10}{'p90':>10}{'worst':>10}{'takes':>10}")
    figures: dict[str, Any] = {"writes": writes, "errors": errors}
    for name, values in waits.items():
        ms = sorted(1e3 * value for value in values)
        took = 1e3 * statistics.median(takes[name])
        figures[name] = {"median_ms": statistics.median(ms), "worst_ms": ms[-1], "all_ms": ms}
        print(f"{name:<10}{len(ms):>5}{statistics.median(ms):>10.1f}{percentile(ms, 0.9):>10.1f}"
              f"{ms[-1]:>10.1f}{took:>10.0f}")  # fmt: skip
    found = figures["hand-off"]
    for name, value, target in (
        ("hand-off median, ms", found["median_ms"], MEDIAN_TARGET_MS),
        ("hand-off worst, ms", found["worst_ms"], WORST_TARGET_MS),
        ("errors seen by clients", errors, 0),
    ):
        print(f"{name:<28}{value:>8.1f}  {verdict(value, target, most=True)}")
    return figures, faults


# --- SIGTERM with a full queue -------------------------------------------------------------------


def exit_time(folder: Path, options: argparse.Namespace) -> Section:
    """From SIGTERM to the exit of an actor with many clients and many queued writes."""
    print(f"\nSIGTERM with {CLIENTS} connected clients and {QUEUED:,} queued writes")
    spent, faults = [], []
    for number in range(options.repeats):
        paths = resolve_paths(folder / f"exit-{number}" / "state.db")
        paths.db.parent.mkdir(parents=True)
        channels = [ActorClient(paths) for _ in range(CLIENTS)]
        try:
            took, acknowledged = _end_under_load(paths, channels)
        finally:
            for channel in channels:
                channel.close()
            end_actors(paths)
        spent.append(took)
        with contextlib.closing(sqlite3.connect(f"file:{paths.db}?mode=ro", uri=True)) as conn:
            kept = conn.execute("SELECT COUNT(*) FROM messages").fetchone()[0]
        if not acknowledged == kept == QUEUED:
            faults.append(f"{QUEUED} queued, {acknowledged} acknowledged, {kept} kept")
        if not options.keep:
            shutil.rmtree(paths.db.parent)
    median, worst = statistics.median(spent), max(spent)
    told = verdict(worst, EXIT_TARGET_S, most=True)
    print(f"{'exit, s, median of ' + str(len(spent)):<28}{median:>8.3f}")
    print(f"{'exit, s, worst':<28}{worst:>8.3f}  {told}")
    return {"median_s": median, "worst_s": worst, "all_s": spent}, faults


def _end_under_load(paths: StorePaths, channels: list[ActorClient]) -> tuple[float, int]:
    """Fill the queue, end the actor; the seconds until its exit, and the writes acknowledged."""
    channels[0].connect(SETTLE_SECONDS)
    channels[0].submit(SessionCreate(id="s", source="cli", started_at=0.0), SETTLE_SECONDS)
    for channel in channels:
        channel.connect(SETTLE_SECONDS)
    pid = serving(paths)
    gone = os.pidfd_open(pid)
    with contextlib.closing(sqlite3.connect(paths.db, isolation_level=None)) as conn:
        # A foreign lock holds the writer up while the queue fills; it is given back at once after
        # the signal, and nothing is committed through it.
        conn.execute("BEGIN IMMEDIATE")
        answers = []
        for number, channel in enumerate(channels):
            row = MessageRow(role="user", content=f"{number} " + "x" * 200, timestamp=0.0)
            share = range(number, QUEUED, CLIENTS)
            answers += channel.send(
                [MessageAppend(session_id="s", message=row) for _ in share], SETTLE_SECONDS
            )
        _await_queue(paths, QUEUED - BATCH)
        begun = time.monotonic()
        os.kill(pid, signal.SIGTERM)
        conn.execute("ROLLBACK")
    select.select([gone], [], [], SETTLE_SECONDS)
    took = time.monotonic() - begun
    os.close(gone)
    acknowledged = 0
    for answer in answers:
        with contextlib.suppress(HermesActorError):
            answer.result()
            acknowledged += 1
    return took, acknowledged


def _await_queue(paths: StorePaths, count: int) -> None:
    give_up = time.monotonic() + SETTLE_SECONDS
    while (status := ask_status(paths)) is None or status.queue.count < count:
        if time.monotonic() > give_up:
            raise TimeoutError(f"the queue does not fill: {status and status.queue}")
        time.sleep(0.002)


def main() -> int:
    """Run the sections, report; 1 if a write failed or a file disagrees."""
    options = arguments()
    folder = BENCH / "run" / f"handoff-{os.getpid()}"
    folder.mkdir(parents=True)
    # An actor that is left behind ends by itself; no home of a user is touched.
    os.environ.update(HERMES_ACTOR_IDLE_EXIT="20", HERMES_HOME=str(folder / "home"))
    report: dict[str, Any] = {}
    faults: list[str] = []
    try:
        for name, section in (("handoffs", handoffs), ("exit", exit_time)):
            if getattr(options, name) or not (options.handoffs or options.exit):
                report[name], found = section(folder, options)
                faults += found
    finally:
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)
    facts = peer.machine()
    print("\n" + ", ".join(f"{key} {value}" for key, value in facts.items()))
    print(f"file and acknowledgements disagree in {len(faults)} places")
    for fault in faults[:20]:
        print(f"WRONG {fault}")
    print(json.dumps({**report, "faults": faults, "machine": facts}))
    return 1 if faults or report.get("handoffs", {}).get("errors") else 0


if __name__ == "__main__":
    sys.exit(main())
