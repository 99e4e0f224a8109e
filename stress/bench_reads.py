"""Every read method of `SessionDB`, ours beside the peer's, on equal files in one run.

    python stress/bench_reads.py [--sessions N] [--messages N] [--rounds N] [--only peer|ours]

Each side gets a fresh copy of one generated file, because ours adds indexes of its own and the
peer must not profit from them. The ratio is the median over pairs of neighbouring measurements,
not the quotient of the two columns. The exit code says whether the answers agree; times are
reported, never asserted.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sqlite3
import statistics
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import corpus
import peer
import speed_goals

if TYPE_CHECKING:
    from collections.abc import Callable

BENCH = Path(__file__).resolve().parent.parent / ".bench"
FLOOR = 1 / 1.1  # no read may be slower than 1.1 times the peer's
BURST, BURSTS = 0.005, 4  # a round of a short call: bursts of so many seconds, sides in turn


class Case(NamedTuple):
    """One call; `ties` where the specification leaves the order of equal rows open."""

    name: str
    call: Callable[[Any], Any]
    target: float = FLOOR
    ties: bool = False


class Row(NamedTuple):
    """What one case came to: median seconds per side, ratio, how the answers differ."""

    case: Case
    seconds: dict[str, float | None]
    ratio: float | None
    difference: str


def search(name: str, query: str, target: float = FLOOR, **filters: Any) -> Case:
    """A `search_messages` case."""
    return Case(f"search {name}", lambda db: db.search_messages(query, **filters), target)


def listing(name: str, target: float = FLOOR, **options: Any) -> Case:
    """A `list_sessions_rich` case."""
    return Case(f"list {name}", lambda db: db.list_sessions_rich(**options), target, ties=True)


def cases(path: Path) -> list[Case]:
    """The calls, with arguments picked from the file."""
    conn = sqlite3.connect(f"file:{path}?immutable=1", uri=True)

    def pick(sql: str) -> Any:
        return conn.execute(f"{sql} LIMIT 1").fetchone()[0]

    some = pick("SELECT id FROM sessions WHERE message_count > 13 AND title NOT NULL ORDER BY id")
    long = pick("SELECT id FROM sessions ORDER BY message_count DESC, id")
    named = pick(
        "SELECT title FROM sessions WHERE title LIKE '% #_' ORDER BY substr(title, -1) DESC"
    )
    base = named.partition(" #")[0]
    tip = pick(f"SELECT id FROM sessions WHERE title = '{named}'")
    root = pick(f"SELECT id FROM sessions WHERE title = '{base}'")
    empty = pick(
        "SELECT p.id FROM sessions p JOIN sessions c ON c.parent_session_id = p.id"
        " ORDER BY p.message_count > 0, p.id"
    )
    bound = pick("SELECT session_id FROM telegram_dm_topic_bindings")
    handed = pick("SELECT id FROM sessions WHERE handoff_state = 'pending'")
    conn.close()
    common, user = corpus.COMMON, {"chat_id": "1", "user_id": "u1"}
    return [
        Case("get_session", lambda db: db.get_session(some)),
        Case("get_session_title", lambda db: db.get_session_title(some)),
        Case("get_session_by_title", lambda db: db.get_session_by_title(named)),
        Case("resolve_session_by_title", lambda db: db.resolve_session_by_title(base)),
        Case("get_next_title_in_lineage", lambda db: db.get_next_title_in_lineage(base)),
        Case("resolve_session_id exact", lambda db: db.resolve_session_id(some)),
        Case("resolve_session_id prefix", lambda db: db.resolve_session_id(some[:-2])),
        Case("get_compression_tip", lambda db: db.get_compression_tip(root)),
        Case("resolve_resume_session_id", lambda db: db.resolve_resume_session_id(empty)),
        Case("get_messages", lambda db: db.get_messages(some)),
        Case("get_messages longest", lambda db: db.get_messages(long)),
        Case("as_conversation", lambda db: db.get_messages_as_conversation(some)),
        Case("as_conversation ancestors", lambda db: db.get_messages_as_conversation(tip, True)),
        listing("default"),
        listing("source=telegram limit=20", 5, source="telegram", limit=20),
        listing("exclude_sources", exclude_sources=["cron", "tool"]),
        listing("order_by_last_active", 10, order_by_last_active=True),
        listing("last_active + source", order_by_last_active=True, source="telegram"),
        listing("include_children", include_children=True),
        listing("last_active + children", order_by_last_active=True, include_children=True),
        listing("offset=200", offset=200),
        listing("without projection", project_compression_tips=False),
        Case("search_sessions", lambda db: db.search_sessions(), 10),
        Case("search_sessions source", lambda db: db.search_sessions(source="telegram")),
        Case("session_count", lambda db: db.session_count()),
        Case("session_count source", lambda db: db.session_count("telegram")),
        Case("message_count", lambda db: db.message_count()),
        Case("message_count session", lambda db: db.message_count(some)),
        search("common word", common, 2),
        search("medium word", corpus.MEDIUM),
        search("rare word", corpus.RARE),
        search("two words AND", f"{common} AND {corpus.MEDIUM}"),
        search("two words OR", f"{corpus.MEDIUM} OR {corpus.RARE}"),
        search("phrase", f'"{corpus.PHRASE}"'),
        search("prefix", corpus.PREFIX),
        search("CJK 4 characters", corpus.CJK_LONG),
        search("CJK 2 frequent", corpus.CJK_FREQUENT, 10),
        search("CJK 2 rare", corpus.CJK_RARE, 10),
        search("CJK 1 character", corpus.CJK_SINGLE),
        search("common role=user", common, role_filter=["user"]),
        search("common source=telegram", common, source_filter=["telegram"]),
        search("CJK 2 source=telegram", corpus.CJK_FREQUENT, source_filter=["telegram"]),
        Case("export_session", lambda db: db.export_session(some)),
        Case("export_all source=acp", lambda db: db.export_all("acp")),
        Case("get_meta", lambda db: db.get_meta("last_auto_prune")),
        Case("get_handoff_state", lambda db: db.get_handoff_state(handed)),
        Case("list_pending_handoffs", lambda db: db.list_pending_handoffs()),
        Case("unlinked telegram sessions",
             lambda db: db.list_unlinked_telegram_sessions_for_user(**user), ties=True),
        Case("topic_mode_enabled", lambda db: db.is_telegram_topic_mode_enabled(**user)),
        Case("topic_binding", lambda db: db.get_telegram_topic_binding(chat_id="1", thread_id="3")),
        Case("session_linked_to_topic",
             lambda db: db.is_telegram_session_linked_to_topic(session_id=bound)),
    ]  # fmt: skip


def canonical(answer: Any) -> str:
    """An answer as text in which 1, 1.0 and True differ and the order of keys does not."""
    return json.dumps(answer, sort_keys=True, default=repr)


def compare(case: Case, first: Any, second: Any) -> str:
    """Empty if both answers are the same, else where they part."""
    if canonical(first) == canonical(second):
        return ""
    if not isinstance(first, list) or not isinstance(second, list):
        return f"{first!r:.300} != {second!r:.300}"
    if case.ties and Counter(map(canonical, first)) == Counter(map(canonical, second)):
        return ""
    for place, (left, right) in enumerate(zip(first, second, strict=False)):
        keys = [k for k in {**left, **right} if repr(left.get(k)) != repr(right.get(k))]
        if keys:
            return f"row {place}: {[(k, left.get(k), right.get(k)) for k in keys]!r:.400}"
    return f"{len(first)} rows != {len(second)} rows"


def measure(case: Case, sides: dict[str, Any], rounds: int) -> Row:
    """Warm up, compare the answers, then time the sides in turn."""
    answers: dict[str, Any] = {}
    repeats: dict[str, int] = {}
    both, slowest = len(sides) == 2, 0.0
    for name, db in sides.items():
        try:
            answers[name] = case.call(db)
            once = peer.burst(case.call, db, 1)
            repeats[name], slowest = max(1, int(BURST / once)), max(slowest, once)
        except Exception as error:
            answers[name] = error
    spent: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds * (BURSTS if slowest < BURST * BURSTS else 1)):
        for name in list(repeats)[:: 1 if number % 2 else -1]:
            spent[name].append(peer.burst(case.call, sides[name], repeats[name]))
    medians = {name: statistics.median(times) if times else None for name, times in spent.items()}
    # Neighbours in time are compared: a machine that changes pace shifts both of a pair.
    pairs = [theirs / ours for theirs, ours in zip(*spent.values(), strict=False)] if both else []
    difference = compare(case, *answers.values()) if both else ""
    return Row(case, medians, statistics.median(pairs) if pairs else None, difference)


def line(row: Row) -> str:
    """One line of the table, and another where the answers differ."""
    told = f"{row.case.name:<30}"
    for name in ("peer", "ours"):
        seconds = row.seconds.get(name)
        told += f"  {'-' if seconds is None else f'{seconds * 1e3:.3f}':>10}"
    if row.ratio is not None:
        told += f"  {row.ratio:>9.2f}  {row.case.target:>6.2f}"
        told += "  ok" if row.ratio >= row.case.target else "  MISS"
    return told + (f"\nDIFFERENT {row.case.name}: {row.difference}" if row.difference else "")


def report_imports() -> dict[str, float | None]:
    """Print the times of the imports, and what ours is to the peer's; return the times."""
    imports = peer.import_times()
    for what, seconds in imports.items():
        print(f"{what}: " + ("failed" if seconds is None else f"{seconds * 1e3:.1f} ms"))
    ours, theirs = (imports[what] for what in peer.OF_SESSION_DB)
    if ours and theirs:
        print(speed_goals.judged("import", ours / theirs))
    return imports


def main() -> int:
    """Build, copy, time, report; 1 if an answer differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--sessions", type=int, default=10_000)
    add("--messages", type=int, default=150_000)
    add("--rounds", type=int, default=7)
    add("--path", type=Path, help="the generated file (built when missing)")
    add("--only", choices=list(peer.OPEN), help="run one side alone")
    add("--cases", default="", help="only cases whose name contains this")
    add("--keep", action="store_true", help="leave the two copies in .bench/run")
    add("--imports", action="store_true", help="only the imports")
    add("--json", action="store_true", help="end with all figures on one line")
    options = parser.parse_args()
    if options.imports:
        report_imports()
        return 0
    name = f"reads-{options.sessions}-{options.messages}-{peer.SEED}.db"
    path = peer.build(options.path or BENCH / name, options.sessions, options.messages)
    print(f"{path.name}, {path.stat().st_size / 1e9:.2f} GB; the peer on a pristine copy, ours on")
    print(f"another with the indexes it adds; milliseconds, medians of {options.rounds} rounds")
    chosen = [case for case in cases(path) if options.cases in case.name]
    sides = {}
    for side in [options.only] if options.only else list(peer.OPEN):
        folder = BENCH / "run" / side
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        sides[side] = peer.OPEN[side](shutil.copyfile(path, folder / "state.db"))
    print(f"{'case':<30}  {'peer':>10}  {'ours':>10}  {'ratio':>9}  {'target':>6}")
    rows = []
    for case in chosen:
        rows.append(measure(case, sides, options.rounds))
        print(line(rows[-1]), flush=True)
    for db in sides.values():
        db.close()
    if not options.keep:
        shutil.rmtree(BENCH / "run")
    imports = report_imports()
    print(", ".join(f"{key} {value}" for key, value in peer.machine().items()))
    differing = [row.case.name for row in rows if row.difference]
    print(f"{len(rows)} cases, answers differ in {len(differing)}: {', '.join(differing) or '-'}")
    if options.json:
        figures = {row.case.name: {**row.seconds, "ratio": row.ratio} for row in rows}
        report = {"cases": figures, "differing": differing, "imports": imports}
        print(json.dumps({**report, "machine": peer.machine(), "file": path.name}))
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
