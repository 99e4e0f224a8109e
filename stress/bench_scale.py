"""The same calls on a store and on one ten times as large: which of them cost more there.

    python stress/bench_scale.py [--messages N] [--times N] [--rounds N] [--keep]

Files have the schema of the peer and its shape of sessions. The larger one has 1.5 million messages
and some 10 GB, takes most of the time to make, and stays in `.bench` with `--keep`. Each call runs
on both files and through both programs in turn. Figures are lower quartiles of a round, and medians
over rounds; the ratio is that of the larger file to the smaller one. Appends, lists and look-ups of
ours may cost at most 1.5 times as much; searches are reported. Exit code 1: one of them costs more.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sqlite3
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import corpus
import crew
import peer

if TYPE_CHECKING:
    from collections.abc import Callable

BENCH = Path(__file__).resolve().parent.parent / ".bench"
MESSAGES_PER_SESSION = 15
ALLOWED = 1.5
TEXT = "please deploy the service and check the lint step, then tell the others " * 10


class Case(NamedTuple):
    """One call, how often it is made in a round, and whether its ratio is judged."""

    name: str
    call: Callable[[Any], Any]
    calls: int
    judged: bool = True


def cases(path: Path) -> list[Case]:
    """The calls, with arguments picked from the file."""
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as conn:
        sql = (
            "SELECT id FROM sessions WHERE message_count > 13 AND id <> 'scale' ORDER BY id LIMIT 1"
        )
        (some,) = conn.execute(sql).fetchone()
    return [
        Case("append", lambda db: db.append_message("scale", "user", TEXT), 200),
        Case("list, 20 newest", lambda db: db.list_sessions_rich(limit=20), 20),
        Case("list by last activity",
             lambda db: db.list_sessions_rich(limit=20, order_by_last_active=True), 10),
        Case("look-up by prefix", lambda db: db.resolve_session_id(some[:-2]), 50),
        Case("session", lambda db: db.get_session(some), 50),
        Case("transcript", lambda db: db.get_messages(some), 20),
        Case("search, rare word", lambda db: db.search_messages(corpus.RARE), 5, judged=False),
        Case("search, common word", lambda db: db.search_messages(corpus.COMMON), 2, judged=False),
        Case("search, two CJK characters",
             lambda db: db.search_messages(corpus.CJK_FREQUENT), 2, judged=False),
    ]  # fmt: skip


def times_of(db: Any, path: Path) -> dict[str, float]:
    """Milliseconds of each call: three quarters of all took longer."""
    found = {}
    for case in cases(path):
        spent = []
        for _ in range(case.calls):
            begun = time.perf_counter()
            case.call(db)
            spent.append(time.perf_counter() - begun)
        # The lower quartile: on a busy machine a third of the calls may have waited for others.
        found[case.name] = 1e3 * sorted(spent)[len(spent) // 4]
    return found


def measure(side: str, path: Path) -> dict[str, float]:
    """One round of one side on one file, in a session that its first round creates."""
    if side == "peer":
        with contextlib.closing(peer.open_peer(path)) as db:
            prepare(db)
            return times_of(db, path)
    with crew.actor_on(path) as db:
        prepare(db)
        # What is missing of the indexes, and those that the actor adds, are not part of a call.
        while crew.index_lag(db, path) > 0 or not has_own_indexes(path):
            time.sleep(0.2)
        return times_of(db, path)


def has_own_indexes(path: Path) -> bool:
    """Whether the actor has built in idle time what lists and look-ups use."""
    from hermes_actor.store.schema import OWN_INDEXES

    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as conn:
        names = {name for (name,) in conn.execute("SELECT name FROM sqlite_master")}
    return names >= OWN_INDEXES.keys()


def prepare(db: Any) -> None:
    """Create the session that is written to, unless it is there."""
    if db.get_session("scale") is None:
        db.create_session("scale", "cli")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--messages", type=int, default=150_000, help="of the smaller file")
    parser.add_argument("--times", type=int, default=10, help="size of the larger one")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keep", action="store_true", help="leave the files in .bench")
    parser.add_argument("--json", action="store_true", help="end with all figures on one line")
    return parser.parse_args()


def main() -> int:
    """Make the files, run the rounds, report; 1 if a call of ours costs more than it may."""
    options = arguments()
    os.environ.update(HERMES_ACTOR_IDLE_EXIT="5", HERMES_HOME=str(BENCH / "scale" / "home"))
    files = {}
    for count in (options.messages, options.messages * options.times):
        path = BENCH / "scale" / f"{count}.db"
        files[count] = peer.build(path, max(1, count // MESSAGES_PER_SESSION), count)
    spent: dict[tuple[str, int], list[dict[str, float]]] = {}
    for number in range(options.rounds):
        for side in ("peer", "ours")[:: -1 if number % 2 else 1]:
            for count, path in files.items():
                spent.setdefault((side, count), []).append(measure(side, path))
                peer.say(f"round {number + 1}, {side}, {count} messages")
    over, ratios = report(spent, files)
    facts = {**peer.machine(), **{f"{n} messages": size(path) for n, path in files.items()}}
    print("\n" + ", ".join(f"{key} {value}" for key, value in facts.items()))
    if options.json:
        print(json.dumps({"ratios": ratios, "machine": facts}))
    if not options.keep:
        for path in files.values():
            for end in ("", "-wal", "-shm"):
                Path(f"{path}{end}").unlink(missing_ok=True)
    return 1 if over else 0


def size(path: Path) -> str:
    """The size of a file, for people."""
    return f"{path.stat().st_size / 1e9:.2f} GB"


def report(
    spent: dict[tuple[str, int], list[dict[str, float]]], files: dict[int, Path]
) -> tuple[list[str], dict[str, dict[str, float]]]:
    """Print the table; the calls of ours that cost too much, and the ratios by side."""
    small, large = files
    print(f"{'ms':<28}{'peer':>20}{'ratio':>7}{'ours':>20}{'ratio':>7}")
    over, ratios = [], {"peer": dict[str, float](), "ours": dict[str, float]()}
    for case in cases(files[small]):
        line = f"{case.name:<28}"
        for side in ratios:
            # Pairs of one round: both files met the same machine.
            before, after = ([r[case.name] for r in spent[side, n]] for n in (small, large))
            ratio = statistics.median(b / a for a, b in zip(before, after, strict=True))
            ratios[side][case.name] = ratio
            medians = f"{statistics.median(before):.2f} → {statistics.median(after):.2f}"
            line += f"{medians:>20}{ratio:>7.2f}"
        if case.judged and ratios["ours"][case.name] > ALLOWED:
            over.append(case.name)
            line += f"  MISS: over {ALLOWED}"
        print(line)
    return over, ratios


if __name__ == "__main__":
    sys.exit(main())
