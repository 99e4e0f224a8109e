"""PostgreSQL, the actor and the peer's direct SQLite in one run; and the way from one to another.

    python stress/bench_providers.py [--writers N] [--seconds S] [--rounds N] [--messages N]
    python stress/bench_providers.py --writes | --move | --search

`writes`: N processes write turns of four, as in bench_writers.py, each side on a fresh store, sides
in turn; PostgreSQL with synchronous_commit=on and its trigram index, on this machine. `move`:
`hermes-actor migrate` of a file of so many messages to PostgreSQL, copy and indexes apart, with the
memory of the process over time. `search`: a word, a phrase and a CJK term on that many messages on
each side. A throw-away server is started and removed; DATABASE_URL_TEST names another one. After
each round the store is compared with the acknowledgements, and after the move the exports are; the
exit code says whether they agree. Times are reported, never asserted.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import peer
import provider_sections as sections
from bench_writers import BENCH, fsync_ms

if TYPE_CHECKING:
    from collections.abc import Callable


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--writers", type=int, default=16, help="processes that write at a time")
    add("--seconds", type=float, default=4.0, help="length of a round of writers")
    add("--rounds", type=int, default=3, help="rounds of writers")
    add(
        "--messages", type=int, default=150_000, help="size of the store that is moved and searched"
    )
    add("--sessions", type=int, default=10_000)
    add("--calls", type=int, default=40, help="searches of each kind")
    for name in ("writes", "move", "search"):
        add(f"--{name}", action="store_true", help="only this section, or those named")
    add("--keep", action="store_true", help="leave the files in .bench/run")
    add("--json", action="store_true", help="end with all figures on one line")
    options = parser.parse_args()
    options.all = not (options.writes or options.move or options.search)
    return options


def main() -> int:
    """Run the sections, report; 1 if a store disagrees with what it was given."""
    from support import servers

    options = arguments()
    folder = BENCH / "run" / f"providers-{os.getpid()}"
    folder.mkdir(parents=True)
    os.environ.update(
        HERMES_ACTOR_IDLE_EXIT="1",
        HERMES_HOME=str(folder / "home"),
        XDG_STATE_HOME=str(folder / "state"),
    )
    report: dict[str, Any] = {}
    faults: list[str] = []
    try:
        bench = sections.Bench(folder, options, lambda: servers.new_store("postgresql"))
        wanted: dict[str, Callable[[], sections.Section]] = {
            "writes": bench.writes,
            "move": bench.move,
            "search": bench.search,
        }
        for name, section in wanted.items():
            if options.all or getattr(options, name):
                report[name], found = section()
                faults += found
        facts = {
            **peer.machine(),
            "fsync of 4 KiB, files": f"{fsync_ms(folder):.2f} ms",
            "server": f"{_server_fsync_ms():.2f} ms",
        }
    finally:
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)
    print("\n" + ", ".join(f"{key} {value}" for key, value in facts.items()))
    print(f"stores and what they were given disagree in {len(faults)} places")
    for fault in faults[:20]:
        print(f"WRONG {fault}")
    if options.json:
        print(json.dumps({**report, "faults": faults, "machine": facts}))
    return 1 if faults else 0


def _server_fsync_ms() -> float:
    """The same where the throw-away server has its files."""
    with tempfile.TemporaryDirectory(prefix="hermes-actor-bench-") as folder:
        return fsync_ms(Path(folder))


if __name__ == "__main__":
    sys.exit(main())
