"""Times of the pages over a large store, and what ten live pages cost the writers.

    python stress/bench_web.py [--messages N] [--seconds S] [--writers N] [--rounds N]

The first part asks a real ``hermes-actor web`` for each page several times, over a store of so many
messages, and reports the times as a client sees them. The second part has writing processes at work
with and without ten open live pages, in turn, and compares their latencies. Times are reported,
never asserted.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx2
from support.actors import end_actors
from support.agent_stores import KEY
from support.web import WebProcess

import hermes_protocol.operations as ops
from hermes_actor import SessionDB

PAGES = (
    "sessions", "sessions?sort=messages", "sessions?archived=1", "session?id=s000100",
    "session?id=s000100&last=1", "search?q=zebra", "search?q=%E5%A4%A7%E5%88%AB%E9%87%8E",
    "insights", "chats", "actor",
)  # fmt: skip

SCREENS = 10
"""Live pages that are open at once."""

_WORDS = ("the actor writes what agents say while readers look and nothing waits for long").split()  # noqa: SIM905

_WRITER = """
import json, sys, time
from hermes_actor import SessionDB
path, name, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
spent = []
with SessionDB(path) as db:
    db.create_session(name, "cli")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        begun = time.perf_counter()
        db.append_message(name, "user", "a message of a writer " * 5)
        spent.append(time.perf_counter() - begun)
        time.sleep(0.005)
print(json.dumps(spent))
"""


def fill(path: Path, messages: int) -> None:
    """Make a store of so many messages, fifty to a session, over the last two months."""
    now, per = time.time(), 50
    with SessionDB(path, mode="embedded") as db:
        for number in range(messages // per):
            began = now - (number % 60) * 86_400 - number
            rows = [
                ops.MessageRow(
                    role=("user", "assistant")[place % 2],
                    content=" ".join(_WORDS[(number * 7 + place * 3 + n) % len(_WORDS)]
                                     for n in range(30))
                    + (" zebra 大别野" if (number + place) % 977 == 0 else ""),
                    timestamp=began + place,
                )
                for place in range(per)
            ]  # fmt: skip
            row = ops.SessionRow(
                id=f"s{number:06}", source=("cli", "telegram")[number % 2], model="gpt-5",
                started_at=began, ended_at=began + 60, end_reason="cli_close",
                input_tokens=1000, output_tokens=100, estimated_cost_usd=0.01,
            )  # fmt: skip
            db.import_session(row, rows)
        db.search_messages("zebra")  # waits until the index is complete


def page_times(web: WebProcess, store: str, rounds: int) -> None:
    """Print the time of each page: the first visit, the median, and the longest."""
    print(f"{'page':<44} {'first':>9} {'median':>9} {'longest':>9}")
    with web.client() as client:
        for page in PAGES:
            spent = []
            for _ in range(rounds):
                begun = time.perf_counter()
                answer = client.get(f"/s/{store}/{page}")
                spent.append(1e3 * (time.perf_counter() - begun))
                assert answer.status_code == 200, (page, answer.text)
            figures = (spent[0], statistics.median(spent), max(spent))
            print(f"{page:<44} " + " ".join(f"{value:6.0f} ms" for value in figures), flush=True)


@contextmanager
def live_pages(web: WebProcess, store: str, count: int) -> Iterator[list[int]]:
    """Keep live pages open for the block; gives how many bytes each has received."""
    received = [0] * count

    def follow(number: int, answer: httpx2.Response) -> None:
        try:
            for data in answer.iter_bytes():
                received[number] += len(data)
        except httpx2.HTTPError:
            pass  # closed below

    with ExitStack() as open_pages:
        threads = []
        for number in range(count):
            client = open_pages.enter_context(web.client())
            answer = open_pages.enter_context(client.stream("GET", f"/s/{store}/events"))
            threads.append(threading.Thread(target=follow, args=(number, answer), daemon=True))
            threads[-1].start()
        yield received


def write(path: Path, writers: int, seconds: float, round_: str) -> list[float]:
    """Return the sorted latencies in milliseconds of so many writing processes."""

    running = [
        subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(path), f"w{round_}-{number}", str(seconds)],
            stdout=subprocess.PIPE,
        )
        for number in range(writers)
    ]
    found: list[float] = []
    for process in running:
        out, _ = process.communicate(timeout=seconds + 120)
        found += [1e3 * one for one in json.loads(out)]
    return sorted(found)


def compare(web: WebProcess, path: Path, options: argparse.Namespace) -> None:
    """Print the latencies of writers with and without live pages, round by round in turn."""
    sides: dict[int, list[float]] = {0: [], SCREENS: []}
    for number in range(options.rounds):
        for pages in sorted(sides, reverse=bool(number % 2)):
            with live_pages(web, path.name, pages) as received:
                spent = write(path, options.writers, options.seconds, f"{number}-{pages}")
            sides[pages].append(spent[int(0.99 * len(spent))])
            print(
                f"round {number}, {pages:2} pages: {len(spent):6} writes,"
                f" p50 {statistics.median(spent):6.2f} ms, p99 {sides[pages][-1]:6.2f} ms,"
                f" {sum(received) / 1024:,.0f} KiB sent",
                flush=True,
            )
    without, beside = (statistics.median(sides[pages]) for pages in (0, SCREENS))
    print(f"p99, median of rounds: {without:.2f} ms alone, {beside:.2f} ms beside {SCREENS} pages:"
          f" {beside / without:.2f}×")  # fmt: skip


def main() -> None:
    """Fill a store, time the pages, compare the writers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_500_000)
    parser.add_argument("--seconds", type=float, default=15.0, help="of one round of writing")
    parser.add_argument("--writers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    os.environ["HERMES_ACTOR_SECRETS_KEY"] = KEY
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.db"
        begun = time.monotonic()
        fill(path, options.messages)
        print(f"{options.messages:,} messages, filled in {time.monotonic() - begun:.0f} s")
        try:
            with WebProcess(path.parent) as web:
                page_times(web, path.name, options.rounds)
                compare(web, path, options)
        finally:
            end_actors(path)


if __name__ == "__main__":
    main()
