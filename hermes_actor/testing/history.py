"""The rules that every history of a store obeys, and the search for what breaks them.

A history is what writers and readers saw, with times of one monotonic clock, and what the file
says when all is over. Every change has its *place* in one order, ``commit_no``, which its answer
names; so no order has to be guessed, and everything here takes O(n log n).

1.  ``lost``: what was acknowledged is there.
2.  ``doubled``: nothing is there twice.
3.  ``phantom``: nothing is there that was not sent.
4.  ``resurrected``: what was refused is not there.
5.  ``altered``: what is there is what was sent.
6.  ``mismatch``: every answer, also one that was given again, names the place and the result of
    the change that is there.
7.  ``torn``: a receipt is there exactly if its change is.
8.  ``gap``: the places are 1, 2, 3 and so on.
9.  ``client-order``: the changes of one client are in the order in which it sent them.
10. ``real-time``: what was answered before something else was sent comes before it.
11. ``no-prefix``: a read sees exactly the changes up to some place.
12. ``stale``: a read sees what was acknowledged before it began.
13. ``future``: a read sees nothing that was sent after it ended.
14. ``backward``: a read sees what a read that ended before it began has seen.
15. ``cut``: after a power cut the file holds all that was acknowledged before, and of the rest a
    beginning of what was under way.
16. ``stuck``: once the faults are over, every client gets an answer in time.
17. ``structure``: the file is sound.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

__all__ = [
    "NEVER", "RULES", "Answer", "Read", "Row", "Violation", "Write", "check", "check_cut",
    "digest_of",
]  # fmt: skip

RULES = (
    "lost", "doubled", "phantom", "resurrected", "altered", "mismatch", "torn", "gap",
    "client-order", "real-time", "no-prefix", "stale", "future", "backward", "cut", "stuck",
    "structure",
)  # fmt: skip

NEVER = float("inf")

_MODULUS, _BASE = 2**61 - 1, 1_000_003


class Write(NamedTuple):
    """One change, however often it was sent. Times are of ``time.monotonic``."""

    client: str
    number: int
    """Counts the changes of one client in the order in which it sent them."""
    payload: int | None
    """A hash of what was sent; ``None`` if it is not known any more."""
    began: float
    """Time at which it was first sent."""
    ended: float
    """Time at which it was first answered, or given up; :data:`NEVER` if neither."""
    outcome: str
    """``ok``, ``failed`` (and certainly not applied) or ``unknown``."""
    place: int | None = None
    """Place that the answer named, if it did."""
    result: Any = None


class Answer(NamedTuple):
    """An answer to a change that had been answered before, or was sent twice."""

    client: str
    number: int
    place: int
    result: Any


class Row(NamedTuple):
    """One change that is in the file."""

    place: int | None
    """Of its receipt; ``None`` if it has none."""
    client: str
    number: int
    payload: int
    result: Any = None


class Read(NamedTuple):
    """Everything that one read saw, in one snapshot."""

    reader: str
    began: float
    ended: float
    place: int
    """The newest place that it saw."""
    rows: int
    """Number of changes that it saw."""
    window: int = 0
    """Of how many of the last of them it has taken the digest."""
    digest: int = 0


class Violation(NamedTuple):
    """A rule that is broken, and by what."""

    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.text}"


def digest_of(payloads: Iterable[int]) -> int:
    """Return the digest of a window of payloads, as :class:`Read` has it."""
    digest = 0
    for payload in payloads:
        digest = (digest * _BASE + payload) % _MODULUS
    return digest


def check(
    writes: Sequence[Write],
    rows: Sequence[Row],
    reads: Sequence[Read] = (),
    *,
    answers: Iterable[Answer] = (),
    places: Sequence[int] | None = None,
    orphans: Iterable[int] = (),
    has_receipts: bool = True,
    structure: Iterable[str] = (),
    calm: float | None = None,
    timeout: float = 5.0,
) -> list[Violation]:
    """Every violation of every rule but ``cut``.

    *places* are those of all receipts, also of changes that leave no row (rule 8); *orphans* those
    of receipts whose row is missing (rule 7). Without *has_receipts* those two rules are not
    looked at. *structure* is what SQLite finds wrong with the file. From *calm* on there were no
    faults, and *timeout* is how many seconds an answer may take from then on.
    """
    present = {(row.client, row.number): row for row in reversed(rows)}
    found = [Violation("structure", text) for text in structure]
    found += _contents(writes, rows, present)
    found += _answers(answers, present)
    if has_receipts:
        found += _without_receipt(rows)
        found += [Violation("torn", f"receipt {place} without its change") for place in orphans]
    found += _gaps(places or ())
    order = sorted((row for row in present.values() if row.place is not None), key=_place)
    sent = {(write.client, write.number): write for write in writes}
    found += _order(order, sent)
    found += _reads(reads, order, sent, writes)
    if calm is not None:
        found += _liveness(writes, calm, timeout)
    return found


def _place(row: Row) -> int:
    assert row.place is not None
    return row.place


def _name(what: Row | Write | Answer) -> str:
    return f"{what.client} {what.number}"


# --- rules 1 to 8 --------------------------------------------------------------------------------


Violations = Iterator[Violation]


def _contents(
    writes: Sequence[Write], rows: Sequence[Row], present: Mapping[tuple[str, int], Row]
) -> Violations:
    yield from _doubled(rows)
    for write in writes:
        there = present.get((write.client, write.number))
        if there is None:
            if write.outcome == "ok":
                text = f"{_name(write)}, acknowledged with {write.place}, is gone"
                yield Violation("lost", text)
            continue
        if write.outcome == "failed":
            yield Violation("resurrected", f"{_name(write)} was refused and is there")
        if write.payload is not None and there.payload != write.payload:
            yield Violation("altered", f"{_name(write)} is not what was sent")
        if write.outcome == "ok" and (write.place, write.result) != (there.place, there.result):
            yield Violation(
                "mismatch",
                f"{_name(write)} was answered {write.place}, {write.result!r};"
                f" the file says {there.place}, {there.result!r}",
            )
    known = {(write.client, write.number) for write in writes}
    for row in present.values():
        if (row.client, row.number) not in known:
            yield Violation("phantom", f"{_name(row)} was never sent")


def _doubled(rows: Sequence[Row]) -> Violations:
    for (client, number), times in Counter((row.client, row.number) for row in rows).items():
        for _ in range(times - 1):
            yield Violation("doubled", f"{client} {number} is there twice")


def _without_receipt(rows: Sequence[Row]) -> Violations:
    for row in rows:
        if row.place is None:
            yield Violation("torn", f"{_name(row)} is there without a receipt")


def _answers(answers: Iterable[Answer], present: Mapping[tuple[str, int], Row]) -> Violations:
    for answer in answers:
        row = present.get((answer.client, answer.number))
        if row is None or (row.place, row.result) != (answer.place, answer.result):
            yield Violation(
                "mismatch",
                f"{_name(answer)} was answered again {answer.place}, {answer.result!r};"
                f" the file says {row and (row.place, row.result)}",
            )


def _gaps(places: Iterable[int]) -> Violations:
    expected = 1
    for place in sorted(places):
        if place != expected:
            yield Violation("gap", f"{place} follows {expected - 1}")
        expected = place + 1


# --- rules 9 and 10 ------------------------------------------------------------------------------


def _order(order: Sequence[Row], sent: Mapping[tuple[str, int], Write]) -> Violations:
    latest: dict[str, int] = {}
    begun = -NEVER
    for row in order:
        if latest.get(row.client, -1) > row.number:
            yield Violation("client-order", f"{_name(row)} comes after {latest[row.client]}")
        latest[row.client] = max(latest.get(row.client, -1), row.number)
        write = sent.get((row.client, row.number))
        if write is None:
            continue
        if write.outcome == "ok" and begun > write.ended:
            text = f"{_name(row)} was answered before its forerunner was sent"
            yield Violation("real-time", text)
        begun = max(begun, write.began)


# --- rules 11 to 14 ------------------------------------------------------------------------------


def _reads(
    reads: Sequence[Read],
    order: Sequence[Row],
    sent: Mapping[tuple[str, int], Write],
    writes: Sequence[Write],
) -> Violations:
    if not reads:
        return
    places = [_place(row) for row in order]
    prefix = _prefix_digests(order)
    acknowledged = [
        (write.ended, write.place)
        for write in writes
        if write.outcome == "ok" and write.place is not None
    ]
    begun = [
        (sent[row.client, row.number].began, _place(row))
        for row in order
        if (row.client, row.number) in sent
    ]
    least = _highest_before(acknowledged, [read.began for read in reads])
    most = _highest_before(begun, [read.ended for read in reads])
    seen = _highest_before(
        [(read.ended, read.place) for read in reads], [read.began for read in reads]
    )
    for number, read in enumerate(reads):
        who = f"read {number} of {read.reader}"
        rows = bisect_right(places, read.place)
        if rows != read.rows:
            text = f"{who} saw {read.rows} rows up to {read.place}, not {rows}"
            yield Violation("no-prefix", text)
        elif read.window and _window(prefix, rows, read.window) != read.digest:
            text = f"{who} saw other rows before {read.place} than there are"
            yield Violation("no-prefix", text)
        if read.place < least[number]:
            text = f"{who} saw {read.place}; {least[number]} was acknowledged before it"
            yield Violation("stale", text)
        newest = places[rows - 1] if rows else 0
        if newest > most[number]:
            text = f"{who} saw {newest}; until its end only {most[number]} had been sent"
            yield Violation("future", text)
        if read.place < seen[number]:
            text = f"{who} saw {read.place}; an earlier one had seen {seen[number]}"
            yield Violation("backward", text)


def _prefix_digests(order: Sequence[Row]) -> list[int]:
    digests, digest = [0], 0
    for row in order:
        digest = (digest * _BASE + row.payload) % _MODULUS
        digests.append(digest)
    return digests


def _window(prefix: Sequence[int], rows: int, window: int) -> int:
    window = min(window, rows)
    return (prefix[rows] - prefix[rows - window] * pow(_BASE, window, _MODULUS)) % _MODULUS


def _highest_before(points: list[tuple[float, int]], moments: list[float]) -> list[int]:
    """Return, for each time, the highest place of all points strictly before it."""
    points.sort()
    highest, at, result = 0, 0, [0] * len(moments)
    for index in sorted(range(len(moments)), key=moments.__getitem__):
        while at < len(points) and points[at][0] < moments[index]:
            highest = max(highest, points[at][1])
            at += 1
        result[index] = highest
    return result


# --- rules 15 and 16 -----------------------------------------------------------------------------


def check_cut(
    acknowledged: int, sent: int, rows: Sequence[Row], *, batch: int | None = None
) -> list[Violation]:
    """Return violations of what a power cut may leave, in places.

    *acknowledged* were answered before it, *sent* went to SQLite before it.

    *rows* is what is there after recovery. At most *batch* changes may have been under way.
    """
    places = [row.place for row in rows if row.place is not None]
    found = [*_doubled(rows), *_without_receipt(rows), *_gaps(places)]
    if len(places) < acknowledged:
        text = f"{acknowledged} changes were acknowledged and {len(places)} are left"
        found.append(Violation("cut", text))
    if len(places) > sent:
        found.append(Violation("cut", f"{len(places)} changes are there and {sent} were sent"))
    if batch is not None and sent - acknowledged > batch:
        text = f"{sent - acknowledged} changes were under way, more than a batch of {batch}"
        found.append(Violation("cut", text))
    return found


def _liveness(writes: Sequence[Write], calm: float, timeout: float) -> Violations:
    for write in writes:
        if write.ended > max(calm, write.began) + timeout:
            text = f"{_name(write)} has no answer {timeout:g} s after the last fault"
            yield Violation("stuck", text)
