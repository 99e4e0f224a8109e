"""Work of the clients of a history, for the pool of writers.

Writers send operations to the writer of the file, so that each answer has its place in the order of
changes; readers take snapshots of that order. All of it is recorded as
:mod:`hermes_actor.testing.records` says.
"""

from __future__ import annotations

import os
import random
import resource
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from hermes_actor.errors import HermesActorError
from hermes_actor.testing.records import SOURCE, Recorder, checksum
from hermes_actor.testing.worker import Worker

__all__ = ["OPEN_SECONDS", "WORK", "Options", "look", "prepare", "read", "visit", "write"]

OPEN_SECONDS = 60.0
"""The timeout of every client at the beginning, before its own begins to count."""

WINDOW = 16
"""Of so many of the newest rows a read takes the digest."""

WORK = {
    "writers": ("w", "harness.client:write"),
    "readers": ("r", "harness.client:read"),
    "visitors": ("v", "harness.client:visit"),
    "keepers": ("k", "harness.keeper:keep"),
    "holders": ("h", "harness.holder:hold"),
}
"""The letter and the work of each kind of client."""


class Options(NamedTuple):
    """Options of the work of a client."""

    pause: float = 0.0
    """Mean seconds between two rounds of a writer."""
    depth: int = 1
    """A writer sends up to so many changes at once."""
    large: float = 0.0
    """The share of changes that are too large for one frame."""
    timeout: float = 30.0
    look: float = 0.08
    """Seconds between two reads."""
    forks: float = 0.0
    """The share of rounds after which a writer forks and its child writes too."""
    threads: int = 0
    """More clients in the process of each writer, on the same connection."""
    quiet: float = 0.0
    """Seconds for which a writer is connected before its first change."""
    quiet_while: str = ""
    """A file: a quiet writer waits until it is gone, too."""
    descriptors: int = 0
    """Files that the process of a writer has open besides."""
    strikes: str = ""
    """While this file is there, exceptions strike writers, see :mod:`harness.strikes`."""
    largest: int = 0
    """Texts of keepers have up to so many bytes; 0: a few words."""
    kind: str = "sessions"
    """The kind of the file: on plain ones writers and readers are programs with ``connect()``."""


def prepare() -> None:
    """Import what the clients need once, before they are forked, and break what is to be broken."""
    import hermes_actor.client.actor_client
    import hermes_actor.client.reader
    import hermes_actor.testing.history  # noqa: F401
    from harness.mutations import break_client

    break_client()


# --- writers -------------------------------------------------------------------------------------


def write(worker: Worker) -> None:
    """Send changes, one after the other or several at once, and record every answer."""
    options, rng = Options(**worker.options), worker.rng
    kept_open = many_descriptors(options.descriptors)
    writer = Writer(worker, options, worker.name, rng, worker.record)
    if options.quiet:
        writer.be_quiet(options.quiet, options.quiet_while)
    writer.create()
    threads = [_beside(worker, options, number) for number in range(options.threads)]
    worker.ready()
    for thread in threads:
        thread.start()
    while not worker.pause():
        writer.round()
        if options.forks and rng.random() < options.forks:
            writer.fork()
    for thread in threads:
        thread.join()
    writer.close()
    for descriptor in kept_open:
        os.close(descriptor)


def _beside(worker: Worker, options: Options, number: int) -> threading.Thread:
    """Return a client in a thread of its own, on the connection that its process has already."""
    name = f"{worker.name}t{number}"
    rng = random.Random(f"{worker.seed} {name}")
    writer = Writer(worker, options, name, rng, Recorder(worker.folder / name))
    writer.create()

    def work() -> None:
        while not worker.over(rng.expovariate(1 / options.pause) if options.pause else 0.0):
            writer.round()

    return threading.Thread(target=work)


def many_descriptors(number: int) -> list[int]:
    """Open so many files, as a gateway with many sockets has them."""
    if number:
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) for _ in range(number)]


_opened: list[Any] = []
"""Stores on servers, for as long as this process lives."""


def _channel(db: str, timeout: float = OPEN_SECONDS, kind: str = "sessions") -> Any:
    """The way to the writer of a file, or to a server if *db* is a URL."""
    if kind == "plain":
        from harness.plain_client import open_program

        return open_program(db, timeout)
    if "://" in db:
        from hermes_actor import SessionDB

        _opened.append(SessionDB(db, timeout=timeout))
        return _opened[-1]._port
    from hermes_actor.client.actor_client import acquire
    from hermes_actor.paths import resolve_paths

    return acquire(resolve_paths(Path(db)), timeout)


def _place(answer: Any, result: int) -> int:
    """Return the place of a change in the order; on a server the ids of messages, which grow."""
    steps = getattr(answer, "steps", None)
    return steps[-1].commit_no if steps else result


class Writer:
    """One client, which numbers its changes."""

    def __init__(
        self,
        worker: Worker,
        options: Options,
        name: str,
        rng: random.Random,
        record: Recorder,
    ) -> None:
        from hermes_protocol import operations

        self._worker, self._options = worker, options
        self._name, self._rng, self._record = name, rng, record
        self._operations = operations
        self._number = 0
        self._forks = 0
        self._channel = _channel(worker.store, kind=options.kind)

    def create(self) -> None:
        """The session; it leaves no line: only its messages are rows of a history."""
        session = self._operations.SessionCreate(id=self._name, source=SOURCE, started_at=1.0)
        self._channel.submit(session, OPEN_SECONDS)

    def be_quiet(self, seconds: float, while_there: str) -> None:
        """Be connected, and send nothing that changes anything: for *seconds*, and while a file is
        there."""
        self._channel.statistics()
        over = self._worker.over(seconds)
        while not over and while_there and os.path.exists(while_there):
            over = self._worker.over(0.05)

    def _struck(self) -> AbstractContextManager[None]:
        """A block in which an exception may strike, if the order says so."""
        # Signals, and what a trace function raises, reach the main thread only.
        here = threading.current_thread() is threading.main_thread()
        if not here or not self._options.strikes or not os.path.exists(self._options.strikes):
            return nullcontext()
        from harness.strikes import struck

        return struck(self._rng)

    def round(self) -> None:
        """Send some changes and wait for all answers."""
        rng = self._rng
        sent, texts = [], []
        for _ in range(rng.randint(1, self._options.depth)):
            self._number += 1
            size = rng.randrange(1, 80)
            # On a plain file each part of a large change has a number of its own, and no row.
            large = self._options.large if self._options.kind != "plain" else 0.0
            if rng.random() < large:
                size = rng.randrange(1_100_000, 1_600_000)
            text = f"{self._name} {self._number} {'x' * size}"
            row = self._operations.MessageRow(role="user", timestamp=1.0, content=text)
            sent.append(self._operations.MessageAppend(session_id=self._name, message=row))
            texts.append((self._number, text))
        for number, text in texts:
            self._record("i", number, time.monotonic(), checksum(text))
        try:
            with self._struck():
                answers = self._channel.send(sent, self._options.timeout)
        except BaseException as error:
            for number, _ in texts:
                self._failed(number, error)
            return
        for (number, _), answer in zip(texts, answers, strict=True):
            try:
                with self._struck():
                    result = answer.result()
            except BaseException as error:
                self._failed(number, error)
            else:
                self._record("o", number, time.monotonic(), _place(answer, result), result)

    def _failed(self, number: int, error: BaseException) -> None:
        executed = getattr(error, "executed", "unknown")
        kind = "f" if executed == "no" else "u"
        text = " ".join(f"{type(error).__name__}: {error}".split())
        self._record(kind, number, time.monotonic(), text[:300])

    def fork(self) -> None:
        """A child that inherits everything and writes too, as a client of its own."""
        self._forks += 1
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            return
        name = f"{self._name}f{self._forks}"
        self._name, self._number = name, 0
        self._record = Recorder(self._worker.folder / name)
        code = 1
        try:
            self.create()
            for _ in range(3):
                self.round()
            code = 0
        finally:
            os._exit(code)

    def close(self) -> None:
        self._channel.release()


def visit(worker: Worker) -> None:
    """Open a new connection for each change. A line ``k`` for each call."""
    from hermes_protocol.operations import MetaSet

    options = Options(**worker.options)
    kept_open = many_descriptors(options.descriptors)
    worker.ready()
    while not worker.over(0.02):
        began = time.monotonic()
        try:
            channel = _channel(worker.store, options.timeout)
            try:
                channel.submit(MetaSet(key=worker.name, value="visited"), options.timeout)
            finally:
                channel.release()
        except HermesActorError:
            pass  # that it comes back is all that is asked of it
        worker.record("k", began)
    for descriptor in kept_open:
        os.close(descriptor)


# --- readers -------------------------------------------------------------------------------------


def read(worker: Worker) -> None:
    """Take snapshots, one after the other: how far the order of changes is, and what is there."""
    path, options = Path(worker.store), Options(**worker.options)
    snapshot = _snapshots(worker.store, options.kind)
    worker.ready()
    while not worker.over(options.look):
        began = time.monotonic()
        try:
            seen = snapshot(look) if path.exists() else None
        except (HermesActorError, sqlite3.Error) as error:
            text = " ".join(f"{type(error).__name__}: {error}".split())
            worker.record("e", time.monotonic(), text[:300])
            continue
        if seen is not None:
            worker.record("r", began, time.monotonic(), *seen)


def _snapshots(db: str, kind: str) -> Callable[..., Any]:
    """Return what reads a file of a kind in one snapshot."""
    if kind == "plain":
        from harness.plain_client import snapshots

        return snapshots(db)
    from hermes_actor.client.reader import Reader
    from hermes_actor.paths import resolve_paths

    return Reader(resolve_paths(Path(db))).snapshot


def look(conn: Any) -> tuple[int, int, int, int] | None:
    """Return the newest place, number of rows, length and digest of a window of the newest rows."""
    from hermes_actor.testing.history import digest_of

    wanted = "SELECT COUNT(*) FROM sqlite_master WHERE name IN ('hermes_actor_meta', 'messages')"
    if conn.execute(wanted).fetchone() != (2,):
        return None
    ((place,),) = conn.execute("SELECT value FROM hermes_actor_meta WHERE key = 'commit_no'")
    ((rows,),) = conn.execute(
        "SELECT COALESCE(SUM(message_count), 0) FROM sessions WHERE source = ?", (SOURCE,)
    )
    last = conn.execute(
        "SELECT content FROM messages WHERE session_id IN"
        " (SELECT id FROM sessions WHERE source = ?) ORDER BY id DESC LIMIT ?",
        (SOURCE, WINDOW),
    ).fetchall()
    payloads = [checksum(text) for (text,) in reversed(last)]
    return place, rows, len(payloads), digest_of(payloads)
