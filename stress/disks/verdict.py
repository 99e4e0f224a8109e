"""Is what the disk was left with what was promised? Asked of the real code, which must open it.

After a cut the next owner opens the file with the standard ``sqlite3`` and passes its barrier.
Then the rows must be exactly those of one ``commit_no`` that the run has had, at or above the
highest acknowledged one; receipts must tell the same; everything that is sent again must be
answered from its receipt or be applied now, so that each request is there once; and the indexes
must catch up.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path

import msgspec

from disks.bench import digest_of, request_of
from disks.power_cuts import Image
from disks.recording import Promises
from hermes_actor.engine.environment import Environment
from hermes_actor.engine.index.build_folder import BuildHere
from hermes_actor.engine.index.fulltext import broken_parts
from hermes_actor.engine.jobs import Outcome
from hermes_actor.engine.writer import Writer
from hermes_actor.errors import HermesActorError, OutcomeUnknown
from hermes_actor.paths import resolve_paths
from hermes_actor.sqlite import sqlite3
from hermes_protocol.features import SESSIONS
from hermes_protocol.framing import decode_operation
from hermes_protocol.operations import MessageAppend, SqlLease

__all__ = ["Broken", "Judge", "judge_writer", "lay_out"]

AGAIN = 8
"""Acknowledged requests that are sent again after a cut, the newest ones."""


class Broken(Exception):
    """A promise was broken; the message says which."""


def demand(fact: bool, text: str) -> None:
    if not fact:
        raise Broken(text)


def lay_out(image: Image, folder: Path, name: str) -> Path:
    """Put the files of an image, and nothing else, into *folder*.

    All of them are new ones: a writer that broke may still have the old ones open. Done for every
    cut, so it creates no store and no folder.
    """
    where = os.fspath(folder)
    try:
        for old in os.listdir(where):
            try:
                os.unlink(f"{where}/{old}")
            except IsADirectoryError:
                shutil.rmtree(f"{where}/{old}")
    except FileNotFoundError:
        os.makedirs(where)
    for file, data in image.items():
        with open(f"{where}/{file}", "wb", buffering=0) as written:
            written.write(data)
    return folder / name


class Judge:
    """Judges images of one recorded run.

    What the barrier has made of an image decides everything after it, so each such state is looked
    at in full only once for each set of promises.
    """

    def __init__(self, folder: Path, name: str = "state.db") -> None:
        self._folder = folder
        self._name = name
        self._seen: set[int] = set()
        self.states = 0

    def judge(self, image: Image, promises: Promises) -> None:
        """Raise :class:`Broken` if *image* breaks a promise."""
        key = _fingerprint(image, promises)
        if key in self._seen:
            return
        self._seen.add(key)
        self.judge_files(lay_out(image, self._folder, self._name), promises)

    def judge_files(self, path: Path, promises: Promises) -> None:
        """The same for files that lie there."""
        try:
            self._open_and_judge(path, promises)
        except (HermesActorError, sqlite3.Error) as error:
            raise Broken(f"the next owner fails: {type(error).__name__}: {error}") from error

    def _open_and_judge(self, path: Path, promises: Promises) -> None:
        writer = Writer(
            resolve_paths(path),
            Environment(
                sleep=lambda _seconds: None,
                start=lambda work: work(),
                start_builder=BuildHere,
            ),
        )
        try:
            demand(writer.recover(), "the barrier is not passed")
            # No other process has the file open, so reading it takes no lock from any.
            key = _fingerprint({path.name: path.read_bytes()}, promises)
            if key not in self._seen:
                self._seen.add(key)
                self.states += 1
                judge_writer(writer, promises)
        finally:
            if writer.connection.broken is None:
                writer.close()


def _fingerprint(image: Image, promises: Promises) -> int:
    return hash((len(promises.sent), len(promises.acks), *sorted(image.items())))


def judge_writer(writer: Writer, promises: Promises) -> None:
    """Judge a file that its next owner has just opened. Raises :class:`Broken`."""
    _same_rows(writer, promises)
    _same_receipts(writer, promises)
    _exactly_once(writer, promises)
    if writer.kind.name == SESSIONS:
        _index_catches_up(writer)
    _structure(writer)


def _same_rows(writer: Writer, promises: Promises) -> None:
    number = writer.commit_no
    acknowledged = max((ack.commit_no for ack in promises.acks.values()), default=0)
    demand(
        number >= acknowledged, f"lost: {acknowledged} was acknowledged, the file ends at {number}"
    )
    if not promises.states:
        if writer.kind.name == SESSIONS:
            _same_messages(writer, promises)
        return
    if number in promises.states:
        right = digest_of(writer.connection.conn, writer.kind.name) == promises.states[number]
        demand(right, f"altered: the rows of {number} are not those that were committed")
        return
    # A batch that was cut short or has failed may be there, all of it.
    before = max((n for n in promises.states if n < number), default=0)
    right = number - before in (0, len(promises.batch))
    demand(right, f"torn batch: the file ends at {number}, which no batch did")


def _same_messages(writer: Writer, promises: Promises) -> None:
    """For a run of which the rows are not known: a message for each receipt, and no other."""
    expected: Counter[tuple[object, object]] = Counter()
    for key in _receipts(writer):
        operation = decode_operation(promises.sent[key].operation) if key in promises.sent else None
        if isinstance(operation, MessageAppend):
            expected[operation.session_id, operation.message.content] += 1
        elif isinstance(operation, SqlLease):
            (step,) = msgspec.msgpack.decode(promises.sent[key].run)["steps"]
            session, content, *_ = step["parameters"]
            expected[session, content] += 1
    found = Counter(
        writer.connection.conn.execute("SELECT session_id, content FROM messages").fetchall()
    )
    demand(found == expected, f"messages: {list((found - expected) + (expected - found))[:3]}")


def _receipts(writer: Writer) -> dict[tuple[bytes, int], tuple[int, bytes]]:
    rows = writer.connection.conn.execute(
        "SELECT client, seq, commit_no, result FROM hermes_actor_receipts"
    )
    return {(client, seq): (commit_no, result) for client, seq, commit_no, result in rows}


def _same_receipts(writer: Writer, promises: Promises) -> None:
    found = _receipts(writer)
    numbers = sorted(commit_no for commit_no, _ in found.values())
    demand(numbers == list(range(1, writer.commit_no + 1)), f"gap in commit order: {numbers}")
    for key, ack in promises.acks.items():
        demand(found.get(key) == ack, f"receipt of {key}: told {ack}, found {found.get(key)}")
    for key in promises.refused:
        demand(key not in found, f"failed but present: {key} was told that it is not executed")
    for key in found:
        demand(key in promises.sent, f"phantom: nobody has sent {key}")


def _exactly_once(writer: Writer, promises: Promises) -> None:
    """Everything that has no answer is sent again in order, and some of what has one."""
    before = _receipts(writer)
    newest = sorted(promises.acks, key=lambda key: promises.acks[key].commit_no)[-AGAIN:]
    again = [*newest, *(key for key in promises.sent if key not in promises.acks)]
    outcomes: list[Outcome] = []
    while len(outcomes) < len(again):
        rest = again[len(outcomes) :]
        outcomes += writer.run_batch([request_of(promises.sent[key]) for key in rest])
    for key, outcome in zip(again, outcomes, strict=True):
        told = outcome.commit_no, bytes(outcome.result or b"")
        if key in before:
            right = outcome.replayed and told == before[key]
        else:
            # A later one of its client was applied: then it was refused, and stays so.
            right = not outcome.replayed and not isinstance(outcome.error, OutcomeUnknown)
        demand(right, f"{key} sent again: {outcome}, before: {before.get(key)}")
    counted = writer.connection.conn.execute(
        "SELECT COUNT(*), COUNT(DISTINCT commit_no), MAX(commit_no) FROM hermes_actor_receipts"
    ).fetchone()
    right = counted in ((writer.commit_no,) * 3, (0, 0, None))
    demand(right, f"receipts {counted} at {writer.commit_no}")


def _index_catches_up(writer: Writer) -> None:
    writer.index.complete()
    conn = writer.connection.conn
    (messages,) = conn.execute("SELECT COUNT(*) FROM messages").fetchone()
    for table in ("messages_fts", "messages_fts_trigram"):
        (indexed,) = conn.execute(f"SELECT COUNT(*) FROM {table}_docsize").fetchone()
        demand(indexed == messages, f"{table} has {indexed} of {messages} messages")


def _structure(writer: Writer) -> None:
    conn = writer.connection.conn
    found = conn.execute("PRAGMA integrity_check").fetchall()
    demand(found == [("ok",)], f"integrity check: {found[:3]}")
    demand(not conn.execute("PRAGMA foreign_key_check").fetchall(), "foreign key check")
    if writer.kind.name != SESSIONS:
        return
    conn.execute("BEGIN")
    demand(not broken_parts(conn), "a full-text table or a trigger is missing")
    for table in ("messages_fts", "messages_fts_trigram"):
        try:
            conn.execute(f"INSERT INTO {table}({table}) VALUES ('integrity-check')")
        except sqlite3.DatabaseError as error:
            demand(False, f"{table}: {error}")
    conn.execute("ROLLBACK")
