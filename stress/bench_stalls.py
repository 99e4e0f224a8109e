"""How long one process keeps the writes of another waiting: ours beside the peer, in one run.

    python stress/bench_stalls.py [--rounds N] [--messages N] [--only CASE]

While one process does something heavy, another one makes a small change every few milliseconds.
The table shows its longest wait, from the first try to the success, as the median over the rounds,
and how often it was refused and had to try again. Sides take turns, each on a copy of one generated
file. The ratio is the median over the rounds of the peer's wait divided by ours. Times are
reported, never asserted; the exit code says whether every case came to its end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import sqlite3
import statistics
import string
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import peer
from bench_commands import BENCH, BIN, table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SIDES = ("ours", "peer")
SESSION, WORD = "20260101_000000_5ta115", "walrusstall"
PAUSE_SECONDS = 0.005
QUIET_SECONDS = 0.5
HOLD_SECONDS = 5.0
"""After so long an endless statement is ended with its process, if nothing else has ended it."""
ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT COUNT(*) FROM c"
REFUSED = (sqlite3.Error, TimeoutError)


def text(size: int) -> str:
    """Words of letters and digits, as tools put them out."""
    rng, letters, words, left = (
        random.Random(1),
        string.ascii_lowercase + "0123456789",
        [WORD],
        size,
    )
    while left > 0:
        words.append("".join(rng.choices(letters, k=rng.randint(3, 12))))
        left -= len(words[-1]) + 1
    return " ".join(words)


def image(size: int) -> str:
    """A picture of *size* bytes as base64."""
    letters = string.ascii_letters + string.digits + "+/"
    return f"{WORD} " + "".join(random.Random(2).choices(letters, k=size * 4 // 3))


# --- what keeps others waiting, in a process of its own ------------------------------------------


def append(content: str) -> Callable[[Any, str], None]:
    def act(db: Any, _side: str) -> None:
        db.append_message(SESSION, "tool", content=content)
        find(db)

    return act


def find(db: Any) -> None:
    """Until a search finds the word: then both indexes have it."""
    while not any(WORD in hit["snippet"].lower() for hit in db.search_messages(WORD)):
        time.sleep(0.05)


def append_and_delete(db: Any, side: str) -> None:
    append(text(6_000_000))(db, side)
    # From here on the wait counts.
    print("counts", flush=True)
    sys.stdin.readline()
    db.clear_messages(SESSION)


def delete_many(db: Any, _side: str) -> None:
    db._execute_write(
        lambda conn: conn.execute(
            "DELETE FROM messages WHERE id IN (SELECT id FROM messages ORDER BY id LIMIT 5000)"
        )
    )


def run_endlessly(db: Any, _side: str) -> None:
    with contextlib.suppress(Exception):
        db._execute_write(lambda conn: conn.execute(ENDLESS).fetchall())


def meet_damage(db: Any, side: str) -> None:
    """A search meets a damaged index. Ours is then rebuilt by itself, the peer's by its user."""
    with sqlite3.connect(db.db_path, timeout=60) as conn:
        conn.execute("UPDATE messages_fts_data SET block = x'ffffffffffff' WHERE id = 10")
    conn.close()
    if side == "ours":
        db.search_messages(WORD)
        return
    with contextlib.suppress(sqlite3.Error):
        db.search_messages(WORD)
    command = "INSERT INTO messages_fts(messages_fts) VALUES ('rebuild')"
    db._execute_write(lambda conn: conn.execute(command))


def ask_for_much(db: Any, _side: str) -> None:
    with contextlib.suppress(Exception):
        db._execute_write(lambda conn: conn.execute("SELECT hex(zeroblob(10000000))").fetchall())


CASES: dict[str, Callable[[Any, str], None]] = {
    "nothing": lambda _db, _side: time.sleep(2),
    "a text of 6 MB is appended": lambda db, side: append(text(6_000_000))(db, side),
    "an image of 3 MB as base64": lambda db, side: append(image(3_000_000))(db, side),
    "a text of 6 MB is deleted": append_and_delete,
    "5,000 messages are deleted": delete_many,
    "a statement without an end": run_endlessly,
    "a damaged index is found": meet_damage,
    "an answer of 20 MB": ask_for_much,
}


def opened(side: str, path: Path) -> Any:
    if side == "peer":
        return peer.open_peer(path)
    from hermes_actor import SessionDB

    return SessionDB(path, timeout=120.0)


def act(side: str, path: Path, case: str) -> None:
    db = opened(side, path)
    print("ready", flush=True)
    sys.stdin.readline()
    CASES[case](db, side)
    print("done", flush=True)


def probe(side: str, path: Path) -> None:
    """Small changes until the standard input ends; each line resets what was measured."""
    import select

    db = opened(side, path)
    db.set_meta("probe", "0")
    print("ready", flush=True)
    longest, refused, count = 0.0, 0, 0
    while True:
        if select.select([sys.stdin], [], [], PAUSE_SECONDS)[0]:
            if not sys.stdin.readline():
                break
            longest, refused, count = 0.0, 0, 0
        begun = time.perf_counter()
        while True:
            try:
                db.set_meta("probe", str(count))
                break
            except REFUSED:
                refused += 1
        longest, count = max(longest, time.perf_counter() - begun), count + 1
    print(json.dumps([longest, refused, count]), flush=True)


# --- the run -------------------------------------------------------------------------------------


class Wait(NamedTuple):
    longest: float
    refused: int
    writes: int


@contextlib.contextmanager
def child(*words: str) -> Iterator[subprocess.Popen[str]]:
    """A process of this script, ready; ended by its id when the block ends."""
    process = subprocess.Popen(
        [sys.executable, __file__, *words],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
        env={**os.environ, "HERMES_ACTOR_IDLE_EXIT": "5"},
    )  # fmt: skip
    try:
        hear(process, "ready")
        yield process
    finally:
        process.kill()
        process.wait()


def hear(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    said = process.stdout.readline().strip()
    if said != word:
        raise SystemExit(f"a process said {said!r} where {word!r} was to come")


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def measure(side: str, path: Path, case: str) -> Wait:
    """The longest wait of a small change while another process does *case*."""
    with child("probe", side, str(path)) as prober, child("act", side, str(path), case) as actor:
        tell(prober)
        time.sleep(QUIET_SECONDS)
        tell(actor)
        if CASES[case] is append_and_delete:
            hear(actor, "counts")
            tell(prober)
            tell(actor)
        if CASES[case] is run_endlessly:
            with contextlib.suppress(subprocess.TimeoutExpired):
                actor.wait(HOLD_SECONDS)
            actor.kill()
        else:
            hear(actor, "done")
        time.sleep(4 * QUIET_SECONDS)
        assert prober.stdin is not None
        assert prober.stdout is not None
        prober.stdin.close()
        return Wait(*json.loads(prober.stdout.readline()))


def prepared(side: str, file: Path, folder: Path) -> Path:
    """A fresh copy, with a session to write to, and with all that is done in idle time."""
    path = folder / side / "state.db"
    shutil.rmtree(path.parent, ignore_errors=True)
    path.parent.mkdir(parents=True)
    shutil.copy(file, path)
    db = peer.open_ours(path) if side == "ours" else peer.open_peer(path)
    db.create_session(SESSION, "cli")
    db.close()
    return path


def stop(path: Path) -> None:
    subprocess.run([BIN / "hermes-actor", "stop", "--db", path], capture_output=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--only", choices=CASES, action="append")
    options = parser.parse_args()
    name = f"stalls-{options.messages}-{peer.SEED}.db"
    file = peer.build(BENCH / name, options.messages // 15, options.messages)
    folder = BENCH / "stalls"
    facts = ", ".join(f"{key} {value}" for key, value in peer.machine().items())
    print(f"{options.messages:,} messages, {options.rounds} rounds, {facts}\n")
    heading = ("longest wait of another's write, while", "ours ms", "refused", "peer ms", "refused")
    rows: list[tuple[str, ...]] = [(*heading, "ratio")]
    try:
        for case in options.only or CASES:
            peer.say(f"measuring: {case}")
            waits: dict[str, list[Wait]] = {side: [] for side in SIDES}
            for _ in range(options.rounds):
                for side in SIDES:
                    path = prepared(side, file, folder)
                    waits[side].append(measure(side, path, case))
                    stop(path)
            rows.append(line(case, waits))
    finally:
        stop(folder / "ours" / "state.db")
        shutil.rmtree(folder, ignore_errors=True)
    table(rows)


def line(case: str, waits: dict[str, list[Wait]]) -> tuple[str, ...]:
    cells = [case]
    for side in SIDES:
        longest = statistics.median(wait.longest for wait in waits[side])
        refused = sum(wait.refused for wait in waits[side])
        cells += [f"{longest * 1000:,.0f}", str(refused)]
    pairs = zip(waits["ours"], waits["peer"], strict=True)
    cells.append(f"{statistics.median(b.longest / a.longest for a, b in pairs):.1f} ×")
    return tuple(cells)


if __name__ == "__main__":
    if sys.argv[1:2] == ["probe"]:
        probe(sys.argv[2], Path(sys.argv[3]))
    elif sys.argv[1:2] == ["act"]:
        act(sys.argv[2], Path(sys.argv[3]), sys.argv[4])
    else:
        main()
