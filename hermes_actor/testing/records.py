"""Recorded histories: the lines that clients write down, and the state of the file afterwards.

Every client appends to a file of its own, named after its session. A line is a kind and words:

| kind | words | meaning |
|---|---|---|
| ``i`` | number, time, checksum of the text | a change is about to be sent |
| ``o`` | number, time, place, id | it was acknowledged |
| ``f``, ``u`` | number, time, error | it was refused, or its outcome is unknown |
| ``r`` | began, ended, place, rows, window, digest | a read of one snapshot |
| ``l`` | began, ended, compared, missing changes as JSON | a search for acknowledged changes |
| ``k`` | began | a call has returned |
| ``e`` | time, text | something is wrong, as the client saw it |
| ``j`` | JSON | a report of the work's own |

Times are of ``time.monotonic``. A line is one call of ``write``, so that a client that is killed
leaves whole lines.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from hermes_actor.testing.history import NEVER, Answer, Read, Row, Violation, Write, check

__all__ = [
    "SOURCE", "Final", "Look", "Recorded", "Recorder", "RecordReader", "checksum", "final_state",
    "judge", "load", "rows_by_id", "without_places",
]  # fmt: skip

SOURCE = "testing"
"""The source of every session of a history."""


def checksum(text: str) -> int:
    """Return the payload of a change that writes *text*."""
    return zlib.crc32(text.encode())


class Recorder:
    """The file of one client."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def __call__(self, *words: Any) -> None:
        """Append one line, at once: readers follow these files."""
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())


class Look(NamedTuple):
    """One search for acknowledged changes: how many, and which of them it did not see."""

    compared: int
    missing: list[str]
    began: float
    ended: float


class Recorded(NamedTuple):
    """Everything that the clients of one folder have written down."""

    writes: list[Write]
    reads: list[Read]
    answers: list[Answer]
    errors: list[str]
    """Reads that have failed."""
    refusals: list[str]
    """Changes that have failed, with the words of their errors."""
    looks: Sequence[Look] = ()
    reports: Mapping[str, Any] = {}
    """Last report of each client, by its name."""


class Final(NamedTuple):
    """State of the file after the run."""

    rows: list[Row]
    places: list[int]
    orphans: list[int]
    structure: list[str]


class RecordReader:
    """Incremental reader of the files of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[str, int] = {}
        self._writes: dict[tuple[str, int], Write] = {}
        self._looks: list[Look] = []
        self._reports: dict[str, Any] = {}
        self._rest = Recorded([], [], [], [], [], self._looks, self._reports)

    @property
    def recorded(self) -> Recorded:
        """Everything up to the last :meth:`poll`."""
        return self._rest._replace(writes=list(self._writes.values()))

    def poll(self) -> list[Write]:
        """Read every whole line since the last call; return the changes that have ended since."""
        ended: list[Write] = []
        for file in sorted(self._folder.iterdir()) if self._folder.is_dir() else ():
            if file.is_file():
                for line in self._lines(file):
                    self._take(file.name, line, ended)
        return ended

    def _lines(self, file: Path) -> list[str]:
        with file.open("rb") as stream:
            stream.seek(self._read.get(file.name, 0))
            data = stream.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read[file.name] = self._read.get(file.name, 0) + len(whole)
        return whole.decode().splitlines()

    def _take(self, name: str, line: str, ended: list[Write]) -> None:
        kind, *words = line.split(" ", 4)
        rest = self._rest
        if kind == "i":
            number, payload = int(words[0]), int(words[2])
            write = Write(name, number, payload, float(words[1]), NEVER, "unknown")
            self._writes[name, number] = write
        elif kind in "ofu":
            self._ended(name, kind, int(words[0]), words[1:], ended)
        elif kind == "r":
            rows, window, digest = map(int, words[3].split())
            rest.reads.append(
                Read(name, float(words[0]), float(words[1]), int(words[2]), rows, window, digest)
            )
        elif kind == "l":
            missing = json.loads(words[3])
            self._looks.append(Look(int(words[2]), missing, float(words[0]), float(words[1])))
        elif kind == "e":
            rest.errors.append(f"{name} at {line.removeprefix('e ')}")
        elif kind == "j":
            self._reports[name] = json.loads(line.removeprefix("j "))

    def _ended(
        self, name: str, kind: str, number: int, words: list[str], ended: list[Write]
    ) -> None:
        write = self._writes[name, number]
        if kind == "o":
            place, result = int(words[1]), int(words[2])
            if write.outcome == "ok":
                self._rest.answers.append(Answer(name, number, place, result))
                return
            write = write._replace(outcome="ok", place=place, result=result)
        else:
            self._rest.refusals.append(f"{name} {number} at {' '.join(words)}")
            write = write._replace(outcome="failed" if kind == "f" else "unknown")
        self._writes[name, number] = write = write._replace(ended=float(words[0]))
        ended.append(write)


def load(folder: Path) -> Recorded:
    """Return everything that was recorded in a folder of histories."""
    reader = RecordReader(folder)
    reader.poll()
    return reader.recorded


_IS_PLAIN = "SELECT 1 FROM hermes_actor_meta WHERE key = 'kind' AND value = 'plain'"


def final_state(conn: Any) -> Final:
    """Return the state of a file, read through *conn*. Changes of others are left out.

    A receipt of an appended message has its id as the result; that is how the two are matched. On
    a plain file every change appends one row, whose id is its place.
    """
    receipts: dict[int, tuple[int, bytes]] = {}
    places, rows, ours = [], [], set()
    is_plain = bool(conn.execute(_IS_PLAIN).fetchall())
    for client, place, result in conn.execute(
        "SELECT client, commit_no, result FROM hermes_actor_receipts"
    ):
        places.append(place)
        decoded = place if is_plain else msgspec.msgpack.decode(result)
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
        rows.append(Row(place, session, number, checksum(text), ident))
    # What others have appended they may have deleted since.
    orphans = sorted(place for place, client in receipts.values() if client in ours)
    return Final(rows, places, orphans, _structure(conn, rows))


def rows_by_id(conn: Any, prefix: str = "") -> Final:
    """Return the state of a file whose receipts are gone: ids of messages are the places.

    Only sessions whose id begins with *prefix* count.
    """
    sql = (
        "SELECT m.id, m.session_id, m.content FROM messages m"
        " JOIN sessions s ON s.id = m.session_id WHERE s.source = ?"
    )
    rows = [
        Row(ident, session, int(text.split(" ", 2)[1]), checksum(text), ident)
        for ident, session, text in conn.execute(sql, (SOURCE,))
        if session.startswith(prefix)
    ]
    return Final(rows, [], [], _structure(conn, rows, prefix))


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


def _structure(conn: Any, rows: list[Row], prefix: str = "") -> list[str]:
    """Return everything that SQLite and the counters find wrong with the file."""
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
        if session.startswith(prefix) and count != counted.get(session, 0):
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
    """Return every violation of a recorded history. *gaps*: all changes of the file are known.

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
