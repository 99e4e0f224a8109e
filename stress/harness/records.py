"""Recorded histories: what clients have written down, and what the file says in the end."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from harness.client import SOURCE
from hermes_actor.testing.history import NEVER, Answer, Read, Row, Violation, Write, check

__all__ = ["Final", "Recorded", "final_state", "judge", "load", "without_places"]


class Recorded(NamedTuple):
    """What the clients of one folder have seen."""

    writes: list[Write]
    reads: list[Read]
    answers: list[Answer]
    errors: list[str]
    """Reads that have failed."""
    refusals: list[str]
    """Changes that have failed, with the words of their errors."""


class Final(NamedTuple):
    """What the file says."""

    rows: list[Row]
    places: list[int]
    orphans: list[int]
    structure: list[str]


def load(folder: Path) -> Recorded:
    """Read every file of a folder of histories."""
    recorded = Recorded([], [], [], [], [])
    for file in sorted(folder.iterdir()):
        if file.is_file():
            _load_one(file.name, file.read_text().splitlines(), recorded)
    return recorded


def _load_one(name: str, lines: Iterable[str], recorded: Recorded) -> None:
    writes: dict[int, Write] = {}
    for line in lines:
        kind, *words = line.split(" ", 4)
        if kind == "i":
            number = int(words[0])
            writes[number] = Write(name, number, int(words[2]), float(words[1]), NEVER, "unknown")
        elif kind in "ofu":
            _ended(writes, kind, int(words[0]), words[1:], recorded, name)
        elif kind == "r":
            began, ended, place, rest = words
            rows, window, digest = map(int, rest.split())
            recorded.reads.append(
                Read(name, float(began), float(ended), int(place), rows, window, digest)
            )
        elif kind == "e":
            recorded.errors.append(f"{name} at {line.removeprefix('e ')}")
    recorded.writes.extend(writes.values())


def _ended(
    writes: dict[int, Write],
    kind: str,
    number: int,
    words: list[str],
    recorded: Recorded,
    name: str,
) -> None:
    write = writes[number]
    if kind != "o":
        recorded.refusals.append(f"{name} {number} at {' '.join(words)}")
        outcome = "failed" if kind == "f" else "unknown"
        writes[number] = write._replace(ended=float(words[0]), outcome=outcome)
        return
    place, result = int(words[1]), int(words[2])
    if write.outcome == "ok":
        recorded.answers.append(Answer(name, number, place, result))
        return
    writes[number] = write._replace(ended=float(words[0]), outcome="ok", place=place, result=result)


def final_state(conn: Any) -> Final:
    """What the file says, through a connection of whatever SQLite. Changes of others are left out.

    A receipt of an appended message has its id as the result; that is how the two are matched.
    """
    receipts: dict[int, tuple[int, bytes]] = {}
    places, rows, ours = [], [], set()
    for client, place, result in conn.execute(
        "SELECT client, commit_no, result FROM hermes_actor_receipts"
    ):
        places.append(place)
        decoded = msgspec.msgpack.decode(result)
        if isinstance(decoded, int) and not isinstance(decoded, bool):
            receipts[decoded] = place, client
    for ident, session, text, source in conn.execute(
        "SELECT m.id, m.session_id, m.content, s.source FROM messages m"
        " LEFT JOIN sessions s ON s.id = m.session_id"
    ):
        place, client = receipts.pop(ident, (None, None))
        if source != SOURCE:
            continue
        ours.add(client)
        number = int(text.split(" ", 2)[1])
        rows.append(Row(place, session, number, zlib.crc32(text.encode()), ident))
    # What others have appended they may have deleted since.
    orphans = sorted(place for place, client in receipts.values() if client in ours)
    return Final(rows, places, orphans, _structure(conn, rows))


def without_places(recorded: Recorded, finals: Sequence[Final]) -> tuple[Recorded, Final]:
    """A history whose receipts were not kept, and the rows of several files together.

    A row that is in several files, with one id, is one row: the content of one was copied into the
    other. With two ids it was made twice.
    """
    rows = {(row.client, row.number, row.result): row for final in finals for row in final.rows}
    writes = [write._replace(place=None) for write in recorded.writes]
    structure = [text for final in finals for text in final.structure]
    whole = Final([row._replace(place=None) for row in rows.values()], [], [], structure)
    return recorded._replace(writes=writes, answers=[]), whole


def _structure(conn: Any, rows: list[Row]) -> list[str]:
    """What is wrong with the file, as far as SQLite and the counters can tell."""
    found = [
        f"integrity_check: {text}"
        for (text,) in conn.execute("PRAGMA integrity_check")
        if text != "ok"
    ]
    found += [f"foreign_key_check: {row}" for row in conn.execute("PRAGMA foreign_key_check")]
    counted: dict[str, int] = {}
    for row in rows:
        counted[row.client] = counted.get(row.client, 0) + 1
    for session, count in conn.execute(
        "SELECT id, message_count FROM sessions WHERE source = ?", (SOURCE,)
    ):
        if count != counted.get(session, 0):
            found.append(f"{session} counts {count} messages and has {counted.get(session, 0)}")
    return found


def judge(
    recorded: Recorded,
    final: Final,
    *,
    calm: float | None = None,
    timeout: float = 30.0,
    gaps: bool = True,
    receipts: bool = True,
    answered: bool = False,
) -> list[Violation]:
    """Every violation of a recorded history. *gaps*: whether all changes of the file are known.

    Without *receipts* see :func:`without_places`. *answered*: a change that is sent after *calm*
    must succeed.
    """
    found = check(
        recorded.writes,
        final.rows,
        recorded.reads,
        answers=recorded.answers,
        places=final.places if gaps and receipts else None,
        orphans=final.orphans,
        has_receipts=receipts,
        structure=final.structure,
        calm=calm,
        timeout=timeout,
    )
    if calm is not None and answered:
        found += [
            Violation("stuck", f"{write.client} {write.number} has failed after the last fault")
            for write in recorded.writes
            if write.began > calm and write.outcome != "ok" and write.ended < NEVER
        ]
    return found + [
        Violation("structure", f"a read has failed: {text}") for text in recorded.errors
    ]
