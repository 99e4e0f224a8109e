"""Many processes write to one store at a time, ours beside the peer's in one run.

    python stress/bench_writers.py [--writers 1,4,16,32] [--seconds S] [--rounds N]
    python stress/bench_writers.py --indexing | --memory | --start | --table | --busy | --pages

Each writer is a process with a session of its own and writes turns of four: user 200 B, assistant
800 B with a tool call, tool result 2 KB, token counts. All begin together; sides take turns, each
round on a fresh file; figures are medians over rounds, ratios medians over pairs of rounds. Calls
that fail are timed and counted, only acknowledged writes make the rate. After each round the file
is compared with the acknowledgements; the exit code says whether they agree. Times are reported,
never asserted. Without a section named, all run.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import peer
import writer_alone
import writer_index
import writer_sections as sections
import writer_table
import writers

if TYPE_CHECKING:
    from collections.abc import Callable

BENCH = Path(__file__).resolve().parent.parent / ".bench"
SECTIONS = ("table", "busy", "pages", "indexing", "memory", "start")


def fsync_ms(folder: Path, times: int = 40) -> float:
    """Median milliseconds to append 4 KiB and sync: what one commit costs at least here."""
    spent = []
    with open(folder / "fsync", "wb", buffering=0) as file:
        for _ in range(times):
            begun = time.perf_counter()
            file.write(bytes(4096))
            os.fsync(file.fileno())
            spent.append(time.perf_counter() - begun)
    return 1e3 * statistics.median(spent)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument

    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    add("--writers", type=numbers, default=[1, 4, 16, 32], help="numbers of processes: 1,4,16,32")
    add("--seconds", type=float, default=4.0, help="length of a round")
    add("--rounds", type=int, default=3)
    add("--only", choices=["peer", "ours"], help="run one side of the table alone")
    add("--rows", type=int, default=8_000, help="messages of the indexing section")
    add("--repeats", type=int, default=5, help="rounds of the indexing and start sections")
    add("--clients", type=int, default=sections.CLIENTS, help="processes of the memory section")
    for name in SECTIONS:
        add(f"--{name}", action="store_true", help="only this section, or those named")
    add("--keep", action="store_true", help="leave the files in .bench/run")
    add("--json", action="store_true", help="end with all figures on one line")
    options = parser.parse_args()
    options.all = not any(getattr(options, name) for name in SECTIONS)
    return options


def run_table(folder: Path, options: argparse.Namespace) -> sections.Section:
    """The main table with its ratios."""
    from hermes_actor import SessionDB

    options.pipeline = hasattr(SessionDB, "pipeline")
    print(f"turns of {writers.TURN} writes, a fresh file per round of {options.seconds:g} s;")
    print(f"milliseconds, medians of {options.rounds} rounds; 'worst' is the longest of all;")
    print("'pipeline' has the times of whole turns, the other lines those of single writes")
    print(f"{'N':>3}  {'side':<9}{'writes/s':>9}{'p50':>11}{'p99':>11}{'max':>11}{'worst':>11}"
          f"{'errors':>8}")  # fmt: skip
    rows = writer_table.table(folder, options)
    if not options.pipeline:
        print("pipeline: SessionDB.pipeline() is not there yet")
    found = writer_table.ratios(rows)
    faults = [fault for rounds in rows.values() for done in rounds for fault in done.faults]
    faults += writer_table.check_synchronous(folder, rows)
    figures = {
        f"{count} {side}": [
            {**done._asdict(), "synchronous": list(done.synchronous)} for done in rounds
        ]
        for (count, side), rounds in rows.items()
    }
    return {"rounds": figures, "ratios": found}, faults


def main() -> int:
    """Run the sections, report; 1 if a file disagrees with what was acknowledged."""
    options = arguments()
    folder = BENCH / "run" / f"writers-{os.getpid()}"
    folder.mkdir(parents=True)
    # An actor that is left behind ends by itself; no home of a user is touched.
    os.environ.update(HERMES_ACTOR_IDLE_EXIT="1", HERMES_HOME=str(folder / "home"))
    report: dict[str, Any] = {}
    faults: list[str] = []
    wanted: dict[str, Callable[[], sections.Section]] = {
        "table": lambda: run_table(folder, options),
        "busy": lambda: writer_alone.busy(folder, options.seconds, options.rounds),
        "pages": lambda: writer_alone.pages(folder),
        "indexing": lambda: writer_index.indexing(folder, options.rows, options.repeats),
        "memory": lambda: sections.memory(folder, options.seconds, options.clients),
        "start": lambda: sections.start(folder, BENCH, options.repeats),
    }
    try:
        sync = fsync_ms(folder)
        for name, section in wanted.items():
            if options.all or getattr(options, name):
                report[name], found = section()
                faults += found
    finally:
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)
    facts = {**peer.machine(), "fsync of 4 KiB": f"{sync:.2f} ms"}
    print("\n" + ", ".join(f"{key} {value}" for key, value in facts.items()))
    print(f"file and acknowledgements disagree in {len(faults)} places")
    for fault in faults[:20]:
        print(f"WRONG {fault}")
    if options.json:
        print(json.dumps({**report, "faults": faults, "machine": facts}))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
