"""The table of `bench_writers.py`: rounds of N writers, the sides in turn, and the ratios."""

from __future__ import annotations

import shutil
import statistics
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import crew
import peer
import speed_goals
from writer_index import engine_synchronous
from writer_sections import verdict

if TYPE_CHECKING:
    from argparse import Namespace
    from pathlib import Path

RATE_TARGETS = {4: 2.5}
P99_TARGET, MAX_TARGET = 1 / 8, 1 / 25
CROWD = 16  # where waiting times are judged, and indexing is waited for
PIPELINE_AT = (1, CROWD)
FULL = 2  # PRAGMA synchronous


class Round(NamedTuple):
    """One side, one number of writers, one file. Times in milliseconds."""

    rate: float
    p50: float
    p99: float
    max: float
    errors: Counter[str]
    sample: str
    faults: list[str]
    synchronous: set[int | None]
    sustained: float | None = None
    status: dict[str, Any] | None = None


Table = dict[tuple[int, str], list[Round]]


def percentile(ordered: list[float], share: float) -> float:
    """The value that *share* of all do not exceed; 0 if there are none."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def measure(side: str, path: Path, count: int, seconds: float) -> Round:
    """Run one round of one side on a file that does not exist yet."""
    # The same text for both sides and in every round.
    seed = f"{peer.SEED}-{count}"
    sustained, status = None, None
    if side == "peer":
        db = peer.open_peer(path)
        create_sessions(db, count)
        db.close()
        run = crew.write_together(side, path, path.parent, count, seconds, seed)
    else:
        with crew.actor_on(path) as db:
            create_sessions(db, count)
            run = crew.write_together(side, path, path.parent, count, seconds, seed)
            status = db._port.statistics()
            if count == CROWD and crew.await_index(db, path, 60) == 0:
                kept = sum(len(report.acked) + report.tokens for report in run.reports)
                sustained = kept / (time.monotonic() - run.start)
    faults = [f"{side} N={count}: {fault}" for fault in crew.check(path, run)]
    return round_of(run, seconds, faults)._replace(sustained=sustained, status=status)


def round_of(run: crew.Run, seconds: float, faults: list[str]) -> Round:
    """The figures of one round, from the reports of its workers."""
    latency = sorted(1e3 * value for report in run.reports for value in report.latency)
    return Round(
        rate=sum(report.in_time for report in run.reports) / seconds,
        p50=percentile(latency, 0.5),
        p99=percentile(latency, 0.99),
        max=latency[-1] if latency else 0.0,
        errors=sum((Counter(report.errors) for report in run.reports), Counter()),
        sample=next((report.sample for report in run.reports if report.sample), ""),
        faults=faults,
        synchronous={report.synchronous for report in run.reports},
    )


def create_sessions(db: Any, count: int) -> None:
    """Create the sessions of so many writers."""
    for number in range(count):
        db.create_session(crew.session_id(number), "cli", model="hermes-4-405b")


def table(folder: Path, options: Namespace) -> Table:
    """All rounds; sides in turn, and the first of a round alternates."""
    rows: Table = {}
    for count in options.writers:
        sides = [options.only] if options.only else ["peer", "ours"]
        if count in PIPELINE_AT and options.only != "peer" and options.pipeline:
            sides.append("pipeline")
        for number in range(options.rounds):
            for side in sides[:: -1 if number % 2 else 1]:
                place = folder / f"{side}-{count}-{number}"
                place.mkdir()
                done = measure(side, place / "state.db", count, options.seconds)
                rows.setdefault((count, side), []).append(done)
                peer.say(f"N={count} {side} round {number + 1}: {done.rate:.0f} writes/s")
                if not options.keep:
                    shutil.rmtree(place)
        for side in sides:
            print(line(count, side, rows[count, side]), flush=True)
    return rows


def line(count: int, side: str, rounds: list[Round]) -> str:
    """One line of the table; errors and what the file says against us on lines of their own."""
    told = f"{count:>3}  {side:<9}{_median(rounds, 'rate'):>9.0f}"
    for name in ("p50", "p99", "max"):
        told += f"{_median(rounds, name):>11.2f}"
    errors: Counter[str] = sum((done.errors for done in rounds), Counter())
    told += f"{max(done.max for done in rounds):>11.2f}{errors.total():>8}"
    if errors:
        kinds = ", ".join(f"{name} {number}" for name, number in errors.most_common())
        sample = next(done.sample for done in rounds if done.sample)
        told += f"\n     {kinds}; the first: {sample}"
    for fault in [fault for done in rounds for fault in done.faults][:10]:
        told += f"\nWRONG {fault}"
    return told


def _median(rounds: list[Round], name: str) -> float:
    return float(statistics.median(getattr(done, name) for done in rounds))


def ratios(rows: Table) -> dict[str, float]:
    """Print what ours is to the peer beside the targets; the ratios by name."""
    found: dict[str, float] = {}

    def tell(name: str, count: int, side: str, what: str, target: float | None) -> None:
        ours, theirs = rows.get((count, side)), rows.get((count, "peer"))
        if not ours or not theirs:
            return
        pairs = [(getattr(o, what), getattr(t, what)) for o, t in zip(ours, theirs, strict=True)]
        if any(not o or not t for o, t in pairs):
            return
        found[name] = statistics.median(o / t for o, t in pairs)
        if name in speed_goals.GOALS:
            print(speed_goals.judged(name, found[name]))
            return
        judged = verdict(found[name], target, most=what != "rate") if target else ""
        inverse = f"(1/{1 / found[name]:.1f})" if what != "rate" else ""
        print(f"{name:<28}{found[name]:>8.3f} {inverse:<9} {judged}")

    for count in sorted({count for count, _ in rows}):
        tell(f"writes/s N={count}", count, "ours", "rate", RATE_TARGETS.get(count))
    tell(f"p99 N={CROWD}", CROWD, "ours", "p99", P99_TARGET)
    tell(f"max N={CROWD}", CROWD, "ours", "max", MAX_TARGET)
    for count in PIPELINE_AT:
        tell(f"pipeline writes/s N={count}", count, "pipeline", "rate", None)
    failed = sum(d.errors.total() for (_, side), ds in rows.items() if side != "peer" for d in ds)
    print(f"{'errors of ours':<28}{failed:>8}           {'ok' if not failed else 'MISS'}")
    sustained = [d.sustained for d in rows.get((CROWD, "ours"), []) if d.sustained]
    if sustained:
        rate = statistics.median(sustained)
        print(f"ours N={CROWD} until all is indexed, through the actor: {rate:.0f} writes/s")
        # The peer indexes in the write: its rate is that with no lag, and so is this one.
        theirs = [d.rate for d in rows.get((CROWD, "peer"), [])]
        if len(sustained) == len(theirs):
            pairs = zip(sustained, theirs, strict=True)
            found["sustained"] = statistics.median(ours / peers for ours, peers in pairs)
            print(f"{f'sustained writes/s N={CROWD}':<28}{found['sustained']:>8.3f}")
    return found


def check_synchronous(folder: Path, rows: Table) -> list[str]:
    """Ask both sides for `PRAGMA synchronous`; complaints if one is not FULL."""
    ours = engine_synchronous(folder / "pragma.db")
    asked: set[int | None] = set()
    for (_, side), rounds in rows.items():
        if side == "peer":
            asked |= {value for done in rounds for value in done.synchronous}
    theirs = ", ".join(map(str, sorted(asked, key=str))) or "not asked"
    print(f"synchronous: peer {theirs} (each worker's connection), ours {ours} (the engine's)")
    return [] if ours == FULL and asked <= {FULL} else ["synchronous is not FULL on both sides"]
