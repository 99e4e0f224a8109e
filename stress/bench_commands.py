"""Commands from process start to exit: ours beside the peer's, on equal large files in one run.

    python stress/bench_commands.py [--sessions N] [--messages N] [--rounds N]

Each side gets a home of its own with a copy of one generated file, and commands take turns, so
that both meet the same machine. The ratio is the median over the rounds of the peer's time divided
by ours. Start-up is compared with an interpreter that imports `sqlite3` and `msgspec` and nothing
else. Times are reported, never asserted; the exit code says whether every command succeeded.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import corpus
import peer

BENCH = Path(__file__).resolve().parent.parent / ".bench"
BIN = Path(sys.executable).parent
BARE = ("python", "-c", "import sqlite3, msgspec")


class Case(NamedTuple):
    """One question, as each side is asked it; the peer may have no such command."""

    name: str
    ours: tuple[str, ...]
    peer: tuple[str, ...] | None = None
    codes: tuple[int, ...] = (0,)


CASES = (
    Case("sessions list", ("hermes-actor", "sessions", "list"), ("hermes", "sessions", "list")),
    Case("sessions stats", ("hermes-actor", "sessions", "stats"), ("hermes", "sessions", "stats")),
    Case("search, common word", ("hermes-actor", "search", corpus.COMMON)),
    Case("search, rare word", ("hermes-actor", "search", corpus.RARE)),
    Case("search, two CJK characters", ("hermes-actor", "search", corpus.CJK_FREQUENT)),
    Case("insights, 30 days", ("hermes-actor", "insights")),
    Case("insights, everything", ("hermes-actor", "insights", "--days", "36500")),
)
CARE = (
    # It finds the peer beside us, and says so with its exit code.
    Case("doctor", ("hermes-actor", "doctor"), codes=(0, 1)),
    Case("backup", ("hermes-actor", "backup")),
    Case("repair --check", ("hermes-actor", "repair", "--check")),
    Case("repair --index", ("hermes-actor", "repair", "--index")),
    Case("vacuum", ("hermes-actor", "vacuum", "--yes")),
    Case("sessions optimize", ("hermes-actor", "sessions", "optimize", "--yes")),
)
"""Upkeep reads or writes the whole file, so each runs once."""
STARTS = (
    Case("--help", ("hermes-actor", "--help")),
    Case("sessions list, empty home", ("hermes-actor", "sessions", "list")),
)


def seconds(command: tuple[str, ...], home: Path, codes: tuple[int, ...] = (0,)) -> float:
    """How long a command takes from its start to its end."""
    program = [str(BIN / command[0]), *command[1:]]
    env = {**os.environ, "HERMES_HOME": str(home), "NO_COLOR": "1"}
    begun = time.perf_counter()
    done = subprocess.run(program, env=env, capture_output=True, cwd=home)
    spent = time.perf_counter() - begun
    if done.returncode not in codes:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr.decode()}")
    return spent


def in_turn(first: tuple[tuple[str, ...], Path], second: tuple[tuple[str, ...], Path] | None,
            rounds: int) -> tuple[list[float], list[float]]:  # fmt: skip
    """Times of both commands, one after the other in every round, after one round unmeasured."""
    spent: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 1):
        for times, asked in zip(spent, (first, second), strict=True):
            if asked is not None:
                took = seconds(*asked)
                if number:
                    times.append(took)
    return spent


def table(rows: Sequence[tuple[str, ...]]) -> None:
    """Columns as wide as their widest cell, numbers to the right."""
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    for row in rows:
        numbers = (c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))
        print("  ".join([row[0].ljust(widths[0]), *numbers]))


def on_the_file(homes: dict[str, Path], rounds: int) -> None:
    rows = [("command", "ours ms", "peer ms", "ratio")]
    for case in CASES:
        peer.say(f"measuring {case.name}")
        theirs = None if case.peer is None else (case.peer, homes["peer"])
        ours, other = in_turn((case.ours, homes["ours"]), theirs, rounds)
        ratio = statistics.median(b / a for a, b in zip(ours, other, strict=False)) if other else 0
        rows.append((
            case.name,
            f"{statistics.median(ours) * 1000:.0f}",
            f"{statistics.median(other) * 1000:.0f}" if other else "—",
            f"{ratio:.1f} ×" if other else "—",
        ))  # fmt: skip
    table(rows)


def upkeep(home: Path) -> None:
    rows = [("upkeep, once each", "s")]
    for case in CARE:
        peer.say(f"measuring {case.name}")
        rows.append((case.name, f"{seconds(case.ours, home, case.codes):.1f}"))
    table(rows)


def start_up(home: Path, rounds: int) -> None:
    (home / "state.db").touch()  # a home without a file is an error
    rows = [("start-up", "ms", "bare ms", "ratio")]
    for case in STARTS:
        peer.say(f"measuring {case.name}")
        ours, bare = in_turn((case.ours, home), (BARE, home), 2 * rounds)
        ratio = statistics.median(a / b for a, b in zip(ours, bare, strict=True))
        rows.append((case.name, f"{statistics.median(ours) * 1000:.0f}",
                     f"{statistics.median(bare) * 1000:.0f}", f"{ratio:.2f} ×"))  # fmt: skip
    table(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--messages", type=int, default=150_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--path", type=Path, help="the generated file (built when missing)")
    options = parser.parse_args()
    name = f"reads-{options.sessions}-{options.messages}-{peer.SEED}.db"
    file = peer.build(options.path or BENCH / name, options.sessions, options.messages)
    folder = BENCH / "commands"
    shutil.rmtree(folder, ignore_errors=True)
    homes = {side: folder / side for side in ("ours", "peer")}
    try:
        for home in homes.values():
            home.mkdir(parents=True)
            shutil.copy(file, home / "state.db")
        (folder / "empty").mkdir()
        facts = ", ".join(f"{key} {value}" for key, value in peer.machine().items())
        print(f"{file.stat().st_size / 1e9:.2f} GB, {facts}\n")
        on_the_file(homes, options.rounds)
        print()
        upkeep(homes["ours"])
        print()
        start_up(folder / "empty", options.rounds)
    finally:
        # A search may have started an actor; one whose home vanishes would save a copy of it.
        subprocess.run(
            [BIN / "hermes-actor", "stop", "--db", homes["ours"] / "state.db"], capture_output=True
        )
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
