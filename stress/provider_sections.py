"""The sections of `bench_providers.py`: writers, moving a store, searching."""

from __future__ import annotations

import contextlib
import json
import shutil
import statistics
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import corpus
import crew
import peer
import speed_goals
import writer_table
import writers
from alternatives import ALTERNATIVES
from writer_sections import Section, verdict
from writer_table import Round, percentile

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterator

__all__ = ["Bench", "Section"]

COPY_TARGET = 15_000  # messages a second on two cores
SAMPLE_SECONDS = 0.05
BY_HAND = "postgresql-indexed"
SIDES = ("peer", "ours", "server", BY_HAND)
NAMES = {"peer": "peer", "ours": "actor", "server": "postgresql", BY_HAND: "by hand"}
QUERIES = {
    "word": corpus.MEDIUM,
    "common word": corpus.COMMON,
    "phrase": f'"{corpus.PHRASE}"',
    "CJK 4 characters": corpus.CJK_LONG,
    "CJK 2 characters": corpus.CJK_RARE,
}


class Bench:
    """One run. *new_store* gives the address of an empty store on the server."""

    def __init__(self, folder: Path, options: Namespace, new_store: Callable[[], str]) -> None:
        self.folder = folder
        self.options = options
        self.new_store = new_store
        self._moved: str | None = None

    # --- writers -----------------------------------------------------------------------------

    def writes(self) -> Section:
        count, seconds = self.options.writers, self.options.seconds
        print(f"{count} writers, turns of {writers.TURN} writes, a fresh store per round of"
              f" {seconds:g} s; milliseconds, medians of {self.options.rounds} rounds")  # fmt: skip
        print(f"{'N':>3}  {'side':<9}{'writes/s':>9}{'p50':>11}{'p99':>11}{'max':>11}{'worst':>11}"
              f"{'errors':>8}")  # fmt: skip
        rows: dict[str, list[Round]] = {side: [] for side in SIDES}
        for number in range(self.options.rounds):
            for side in SIDES[:: -1 if number % 2 else 1]:
                place = self.folder / f"{side}-{number}"
                place.mkdir()
                rows[side].append(self._round(side, place))
                peer.say(f"{NAMES[side]} round {number + 1}: {rows[side][-1].rate:.0f} writes/s")
                if not self.options.keep:
                    shutil.rmtree(place)
        for side in SIDES:
            print(writer_table.line(count, NAMES[side][:8], rows[side]), flush=True)
        figures = {
            NAMES[side]: {
                name: statistics.median(getattr(done, name) for done in rounds)
                for name in ("rate", "p50", "p99", "max")
            }
            for side, rounds in rows.items()
        }
        pairs = zip(rows["server"], rows[BY_HAND], strict=True)
        ratio = statistics.median(ours.rate / theirs.rate for ours, theirs in pairs if theirs.rate)
        print(
            "by hand: tables of our own, one statement for each change, both indexes, no receipts"
        )
        print(speed_goals.judged("PostgreSQL / by hand", ratio))
        return figures, [
            fault for rounds in rows.values() for one in rounds for fault in one.faults
        ]

    def _round(self, side: str, place: Path) -> Round:
        count, seconds = self.options.writers, self.options.seconds
        if side == BY_HAND:
            store, sessions = self.new_store(), [crew.session_id(n) for n in range(count)]
            ALTERNATIVES[side].create(store, sessions)
            run = crew.write_together(side, store, place, count, seconds, f"{peer.SEED}-{count}")
            return writer_table.round_of(run, seconds, [f"by hand: {one}" for one in run.faults])
        if side != "server":
            return writer_table.measure(side, place / "state.db", count, seconds)
        url = self.new_store()
        with contextlib.closing(writers.open_store(side, url)) as db:
            writer_table.create_sessions(db, count)
            run = crew.write_together(side, url, place, count, seconds, f"{peer.SEED}-{count}")
            faults = [f"postgresql: {fault}" for fault in (*run.faults, *_check(db, run))]
        return writer_table.round_of(run, seconds, faults)

    # --- moving ------------------------------------------------------------------------------

    def source(self) -> Path:
        """The file of both other sections, which stays for the next run."""
        sessions, messages = self.options.sessions, self.options.messages
        name = f"reads-{sessions}-{messages}-{peer.SEED}.db"
        return peer.build(self.folder.parent.parent / name, sessions, messages)

    def move(self) -> Section:
        """`hermes-actor migrate` to an empty store on the server."""
        from hermes_actor import SessionDB

        place = self.folder / "move"
        place.mkdir()
        file = shutil.copyfile(self.source(), place / "state.db")
        url, report = self.new_store(), place / "report.json"
        words = ["migrate", "--from", str(file), "--to", url, "--report", str(report), "--json"]
        memory = list(_memory_of([sys.executable, "-m", "hermes_actor", *words]))
        done = json.loads(report.read_text())
        self._moved = url
        rate, seconds = done["messages_per_second"], done["seconds"]
        third = max(1, len(memory) // 3)
        early, late = max(memory[:third]), max(memory)
        print(f"\nmove of {done['messages']:,} messages, {file.stat().st_size / 1e9:.2f} GB")
        print(f"{'copy':<12}{seconds['copy']:>8.1f} s {rate:>9,} messages/s"
              f"  {verdict(rate, COPY_TARGET, most=False)}")  # fmt: skip
        print(f"{'indexes':<12}{seconds['indexes']:>8.1f} s")
        print(f"{'verify':<12}{seconds['verify']:>8.1f} s")
        most = f"{late / 2**20:>8.0f} MiB at most"
        print(f"{'memory':<12}{most}, {early / 2**20:.0f} in the first third of the time")
        faults = [] if done["verified"] else ["checksums differ"]
        with (
            contextlib.closing(SessionDB(url)) as there,
            contextlib.closing(SessionDB(file)) as here,
        ):
            faults += [
                f"{name} differs"
                for name in ("session_count", "message_count")
                if getattr(there, name)() != getattr(here, name)()
            ]
            one = here.search_sessions(limit=1)[0]["id"]
            if there.export_session(one) != here.export_session(one):
                faults.append(f"the export of {one} differs")
        figures = {"rate": rate, "seconds": seconds, "memory_early": early, "memory_most": late}
        return figures, faults

    # --- searching ---------------------------------------------------------------------------

    def search(self) -> Section:
        """Searches on every side, in turn."""
        from hermes_actor import SessionDB

        faults: list[str] = []
        if self._moved is None:
            _, faults = self.move()
        assert self._moved is not None
        sides: dict[str, Any] = {}
        for side in ("peer", "ours"):
            place = self.folder / f"search-{side}"
            place.mkdir()
            sides[NAMES[side]] = peer.OPEN[side](
                Path(shutil.copyfile(self.source(), place / "state.db"))
            )
        sides["postgresql"] = SessionDB(self._moved)
        print(f"\nsearches on {self.options.messages:,} messages; milliseconds, median and p99 of"
              f" {self.options.calls}, hits")  # fmt: skip
        print(f"{'search':<18}" + "".join(f"{name:>28}" for name in sides))
        figures: dict[str, Any] = {}
        for name, query in QUERIES.items():
            figures[name] = _search(sides, query, self.options.calls)
            told = "".join(
                f"{one['p50']:>12.2f}{one['p99']:>10.2f}{one['hits']:>6}"
                for one in figures[name].values()
            )
            print(f"{name:<18}{told}", flush=True)
        rare = figures["CJK 2 characters"]["postgresql"]["p50"]
        print(speed_goals.judged("PostgreSQL, 2 CJK characters, ms", rare))
        for db in sides.values():
            db.close()
        return figures, faults


def _search(sides: dict[str, Any], query: str, calls: int) -> dict[str, dict[str, float]]:
    spent: dict[str, list[float]] = {name: [] for name in sides}
    hits = {name: len(db.search_messages(query)) for name, db in sides.items()}
    for number in range(calls):
        for name in list(sides)[:: -1 if number % 2 else 1]:
            spent[name].append(
                1e3 * peer.burst(lambda db: db.search_messages(query), sides[name], 1)
            )
    return {
        name: {
            "p50": statistics.median(times),
            "p99": percentile(sorted(times), 0.99),
            "hits": hits[name],
        }
        for name, times in spent.items()
    }


def _check(db: Any, run: crew.Run) -> Iterator[str]:
    """Where a store on a server and the acknowledgements disagree."""
    for worker, report in enumerate(run.reports):
        session, unknown = crew.session_id(worker), set(report.unknown)
        rows = sorted((row["id"], int(row["content"][1:8])) for row in db.get_messages(session))
        kept = [(number, ident) for ident, number in rows if number not in unknown]
        acked = [(n, ident) for n, ident in report.acked if n not in unknown]
        if kept != acked:
            yield f"{session}: {len(acked)} acknowledged, {len(kept)} kept, or out of order"
        if any(after <= before for (_, before), (_, after) in pairwise(rows)):
            yield f"{session}: a message is there twice, or out of order"
        found = db.get_session(session)
        if found["message_count"] != len(rows):
            yield f"{session}: counts {found['message_count']} messages and has {len(rows)}"
        if not report.tokens <= found["api_call_count"] <= report.tokens + len(unknown):
            yield f"{session}: {report.tokens} updates of token counts, {found['api_call_count']}"


def _memory_of(command: list[str]) -> Iterator[int]:
    """Resident bytes of a process from time to time, until it ends; it must end well."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            with contextlib.suppress(OSError, StopIteration):
                lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
                told = next(line for line in lines if line.startswith("VmRSS"))
                yield int(told.split()[1]) * 1024
            time.sleep(SAMPLE_SECONDS)
    if process.returncode:
        raise RuntimeError(f"the command ended with {process.returncode}")
