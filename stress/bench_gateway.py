"""The cost of a message that finds its session, by the number of chats, beside the peer.

    python stress/bench_gateway.py [--chats 10,1000,10000] [--peer-chats 10,1000] [--calls N]

Each side has a store of its own with so many chats, and is asked for the session of chats in turn,
as a gateway does for each message. The sides take turns; figures are medians over rounds. Ours is
measured in the steady state, through an actor: with routes that were used less than a minute ago,
and with routes that must be written. Times are reported, never asserted.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PEER = ROOT / ".venv" / "peer"

_PEER = """
import json, statistics, sys, time
from pathlib import Path
from typing import Any
from gateway.config import GatewayConfig, Platform, SessionResetPolicy
from gateway.session import SessionSource, SessionStore

folder, chats, calls = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
config = GatewayConfig(default_reset_policy=SessionResetPolicy(mode="none"))
store = SessionStore(folder / "sessions", config)
sources = [SessionSource(platform=Platform.TELEGRAM, chat_id=str(n)) for n in range(chats)]
save = store._save
store._save = lambda: None  # the file is written once below, not once for each chat
for source in sources:
    store.get_or_create_session(source)
store._save = save
store.get_or_create_session(sources[0])
spent = []
for number in range(calls):
    source = sources[number * 7 % chats]
    begun = time.perf_counter()
    store.get_or_create_session(source)
    spent.append(time.perf_counter() - begun)
print(json.dumps(1e3 * statistics.median(spent)))
"""


def of_peer(folder: Path, chats: int, calls: int) -> float:
    """Median milliseconds of the peer's call."""
    env = {**os.environ, "PYTHONPATH": str(PEER), "HERMES_HOME": str(folder)}
    words = [sys.executable, "-c", _PEER, str(folder), str(chats), str(calls)]
    done = subprocess.run(words, env=env, stdout=subprocess.PIPE, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def of_ours(folder: Path, chats: int, calls: int) -> tuple[float, float]:
    """Median milliseconds of our call: steady, and with a route to be written."""
    from hermes_actor import SessionDB
    from hermes_actor.gateway import GatewayConfig, Hooks, SessionSource, SessionStore

    shift = [0.0]
    db = SessionDB(folder / "state.db")
    store = SessionStore(
        folder / "sessions",
        GatewayConfig(write_jsonl=False),
        db=db,
        clock=lambda: datetime.fromtimestamp(time.time() + shift[0]),
        hooks=Hooks(entry_points=False),
    )
    sources = [SessionSource(platform="telegram", chat_id=str(number)) for number in range(chats)]
    _fill(store, db, sources)
    asked = [sources[number * 7 % chats] for number in range(calls)]
    for source in asked:
        store.get_or_create_session(source)  # the first one after the start writes
    steady = _median(store, asked)
    spent = []
    for source in asked[: max(20, calls // 5)]:
        shift[0] += 61.0
        spent.append(_median(store, [source]))
    store.close()
    db.close()
    return steady, statistics.median(spent)


def _fill(store: Any, db: Any, sources: list[Any]) -> None:
    """Write the routes in a few operations; each chat by itself would take minutes."""
    from dataclasses import replace

    import hermes_protocol.operations as ops
    from hermes_actor.store.gateway.entries import dumps

    first = store.get_or_create_session(sources[0])
    now = time.time()
    for begin in range(1, len(sources), 1000):
        put = {}
        for source in sources[begin : begin + 1000]:
            key = store.session_key(source)
            entry = replace(first, session_key=key, session_id=f"s{key}", origin=source)
            put[key] = dumps(entry.to_dict())
        db._submit(ops.RoutesWrite(scope=store.scope, now=now, put=put))


def _median(store: Any, asked: list[Any]) -> float:
    spent = []
    for source in asked:
        begun = time.perf_counter()
        store.get_or_create_session(source)
        spent.append(time.perf_counter() - begun)
    return 1e3 * statistics.median(spent)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])

    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    parser.add_argument("--chats", type=numbers, default=[10, 1000, 10000])
    parser.add_argument("--peer-chats", type=numbers, default=[10, 1000])
    parser.add_argument("--calls", type=int, default=300, help="calls of a round")
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


def main() -> int:
    """Measure both sides in turn, and print a table and the two ratios."""
    given = arguments()
    folder = Path(tempfile.mkdtemp(prefix="bench-gateway-"))
    os.environ["HERMES_HOME"] = str(folder)
    steady: dict[int, list[float]] = {chats: [] for chats in given.chats}
    written: dict[int, list[float]] = {chats: [] for chats in given.chats}
    peer: dict[int, list[float]] = {chats: [] for chats in given.peer_chats}
    try:
        for turn in range(given.rounds):
            for chats in given.chats:
                home = folder / f"ours-{turn}-{chats}"
                home.mkdir()
                one, other = of_ours(home, chats, given.calls)
                steady[chats].append(one)
                written[chats].append(other)
            for chats in given.peer_chats:
                home = folder / f"peer-{turn}-{chats}"
                home.mkdir()
                peer[chats].append(of_peer(home, chats, min(given.calls, 60)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    _show(steady, written, peer)
    return 0


def _show(
    steady: dict[int, list[float]], written: dict[int, list[float]], peer: dict[int, list[float]]
) -> None:
    middle = statistics.median
    print(f"{'chats':>8}  {'ours, steady':>14}  {'ours, written':>14}  {'peer':>10}   (ms, median)")
    for chats in sorted({*steady, *peer}):
        cells = [
            f"{middle(found[chats]):.3f}" if chats in found else "-"
            for found in (steady, written, peer)
        ]
        print(f"{chats:>8}  {cells[0]:>14}  {cells[1]:>14}  {cells[2]:>10}")
    few, many = min(steady), max(steady)
    ratio = middle(steady[many]) / middle(steady[few])
    print(f"steady, {many} chats : {few} chats = {ratio:.2f}   (wanted: at most 1.3)")
    for chats in sorted(set(steady) & set(peer)):
        times = middle(peer[chats]) / middle(steady[chats])
        wanted = "   (wanted: at least 100)" if chats == 1000 else ""
        print(f"peer : ours with {chats} chats = {times:.0f}{wanted}")


if __name__ == "__main__":
    sys.exit(main())
