"""Writers and readers of a history, each a process of its own.

Run as a script with one JSON word. The process imports what it needs, forks its workers, says one
byte for each that is ready, and lets all of them end when its standard input ends. Every worker
appends to a file of its own in the folder of the history: a line before a request is sent, a line
after its answer has been read. A line is one call of ``write``, so that a worker that is killed
leaves whole lines.
"""

from __future__ import annotations

import json
import os
import random
import resource
import select
import sys
import threading
import time
import traceback
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

SOURCE = "stress"
"""The source of every session of a history."""

OPEN_SECONDS = 60.0
"""The timeout of everybody at the beginning, before their own begins to count."""

WINDOW = 16
"""Of so many of the newest rows a read takes the digest."""


class Order(NamedTuple):
    """What the workers of one process are to do."""

    db: str
    folder: str
    python: str
    """What they start an actor with."""
    name: str
    seed: int
    writers: int = 1
    readers: int = 0
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
    descriptors: int = 0
    """Files that the process of a writer has open besides."""
    strikes: str = ""
    """While this file is there, exceptions strike writers, see :mod:`harness.strikes`."""
    keepers: int = 0
    """Clients that know what their sessions hold, see :mod:`harness.keeper`."""
    largest: int = 0
    """Texts of keepers have up to so many bytes; 0: a few words."""
    visitors: int = 0
    """Clients that connect, change one thing, and leave; again and again."""
    holders: int = 0
    """Clients that keep the writer to themselves, see :mod:`harness.holder`."""


def main() -> int:
    order = Order(**json.loads(sys.argv[1]))
    sys.executable = order.python
    import hermes_actor.client.actor_client
    import hermes_actor.client.reader
    import hermes_actor.testing.history  # noqa: F401 - once, before the forks
    from harness.mutations import break_client

    break_client()
    children = []
    for kind, count, work in _kinds(order):
        for number in range(count):
            child = os.fork()
            if not child:
                _obey(order, f"{order.name}{kind}{number}", work)
            children.append(child)
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


Work = Callable[["Order", str, "Recorder"], None]


def _kinds(order: Order) -> Iterator[tuple[str, int, Work]]:
    """The letter, the number and the work of each kind of worker."""
    yield "w", order.writers, write
    yield "r", order.readers, read
    yield "v", order.visitors, visit
    if order.keepers:
        from harness.keeper import keep

        yield "k", order.keepers, keep
    if order.holders:
        from harness.holder import hold

        yield "h", order.holders, hold


def _obey(order: Order, name: str, work: Work) -> None:
    code = 1
    try:
        work(order, name, Recorder(Path(order.folder) / name))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


class Recorder:
    """One file of a history."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def __call__(self, *words: Any) -> None:
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())


def over(seconds: float) -> bool:
    """Pause. True when it is time to end."""
    return bool(select.select([0], [], [], seconds)[0])


# --- writers -------------------------------------------------------------------------------------


def write(order: Order, name: str, record: Recorder) -> None:
    """Changes, one after the other or several at once, with all that was told about them."""
    rng = random.Random(f"{order.seed} {name}")
    kept_open = many_descriptors(order.descriptors)
    writer = Writer(order, name, rng, record)
    if order.quiet:
        writer.be_quiet(order.quiet)
    writer.create()
    threads = [_beside(order, f"{name}t{number}") for number in range(order.threads)]
    os.write(1, b".")
    while not over(rng.expovariate(1 / order.pause) if order.pause else 0.0):
        writer.round()
        if order.forks and rng.random() < order.forks:
            writer.fork()
    for thread in threads:
        thread.join()
    writer.close()
    for descriptor in kept_open:
        os.close(descriptor)


def _beside(order: Order, name: str) -> threading.Thread:
    """A client in a thread of its own, on the connection that its process has already."""
    rng = random.Random(f"{order.seed} {name}")
    writer = Writer(order, name, rng, Recorder(Path(order.folder) / name))
    writer.create()

    def work() -> None:
        while not over(rng.expovariate(1 / order.pause) if order.pause else 0.0):
            writer.round()

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def many_descriptors(number: int) -> list[int]:
    """Open so many files, as a gateway with many sockets has them."""
    if number:
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) for _ in range(number)]


_opened: list[Any] = []
"""Stores on servers, for as long as this process lives."""


def _channel(db: str, timeout: float = OPEN_SECONDS) -> Any:
    """The way to the writer of a file, or to a server if *db* is a URL."""
    if "://" in db:
        from hermes_actor import SessionDB

        _opened.append(SessionDB(db, timeout=timeout))
        return _opened[-1]._port
    from hermes_actor.client.actor_client import acquire
    from hermes_actor.paths import resolve_paths

    return acquire(resolve_paths(Path(db)), timeout)


def _paths(answer: Any, result: int) -> int:
    """Where a change stands in the order; a server tells only the ids of messages, which grow."""
    steps = getattr(answer, "steps", None)
    return steps[-1].commit_no if steps else result


class Writer:
    """One client, which numbers its changes."""

    def __init__(self, order: Order, name: str, rng: random.Random, record: Recorder) -> None:
        from hermes_protocol import operations

        self._order, self._name, self._rng, self._record = order, name, rng, record
        self._operations = operations
        self._number = 0
        self._forks = 0
        self._channel = _channel(order.db)

    def create(self) -> None:
        """The session; it leaves no line: only its messages are rows of a history."""
        session = self._operations.SessionCreate(id=self._name, source=SOURCE, started_at=1.0)
        self._channel.submit(session, OPEN_SECONDS)

    def be_quiet(self, seconds: float) -> None:
        """Be connected, and send nothing that changes anything."""
        self._channel.statistics()
        over(seconds)

    def _struck(self) -> AbstractContextManager[None]:
        """A block in which an exception may strike, if the order says so."""
        # Signals, and what a trace function raises, reach the main thread only.
        here = threading.current_thread() is threading.main_thread()
        if not here or not self._order.strikes or not os.path.exists(self._order.strikes):
            return nullcontext()
        from harness.strikes import struck

        return struck(self._rng)

    def round(self) -> None:
        """Send some changes and wait for all answers."""
        rng = self._rng
        sent, texts = [], []
        for _ in range(rng.randint(1, self._order.depth)):
            self._number += 1
            size = rng.randrange(1, 80)
            if rng.random() < self._order.large:
                size = rng.randrange(1_100_000, 1_600_000)
            text = f"{self._name} {self._number} {'x' * size}"
            row = self._operations.MessageRow(role="user", timestamp=1.0, content=text)
            sent.append(self._operations.MessageAppend(session_id=self._name, message=row))
            texts.append((self._number, text))
        for number, text in texts:
            self._record("i", number, time.monotonic(), zlib.crc32(text.encode()))
        try:
            with self._struck():
                answers = self._channel.send(sent, self._order.timeout)
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
                self._record("o", number, time.monotonic(), _paths(answer, result), result)

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
        self._record = Recorder(Path(self._order.folder) / name)
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


def visit(order: Order, name: str, record: Recorder) -> None:
    """Connections of their own: a new one for each change. A line ``k`` for each call."""
    from hermes_actor.errors import HermesActorError
    from hermes_protocol.operations import MetaSet

    kept_open = many_descriptors(order.descriptors)
    os.write(1, b".")
    while not over(0.02):
        began = time.monotonic()
        try:
            channel = _channel(order.db, order.timeout)
            try:
                channel.submit(MetaSet(key=name, value="visited"), order.timeout)
            finally:
                channel.release()
        except HermesActorError:
            pass  # that it comes back is all that is asked of it
        record("k", began)
    for descriptor in kept_open:
        os.close(descriptor)


# --- readers -------------------------------------------------------------------------------------


def read(order: Order, name: str, record: Recorder) -> None:
    """Snapshots, one after the other: how far the order of changes is, and what is there."""
    from hermes_actor.client.reader import Reader
    from hermes_actor.errors import HermesActorError
    from hermes_actor.paths import resolve_paths

    path = Path(order.db)
    reader = Reader(resolve_paths(path))
    os.write(1, b".")
    while not over(order.look):
        began = time.monotonic()
        try:
            seen = reader.snapshot(look) if path.exists() else None
        except HermesActorError as error:
            text = " ".join(f"{type(error).__name__}: {error}".split())
            record("e", time.monotonic(), text[:300])
            continue
        if seen is not None:
            record("r", began, time.monotonic(), *seen)
    reader.close()


def look(conn: Any) -> tuple[int, int, int, int] | None:
    """Newest place, number of rows, length and digest of a window of the newest rows."""
    from hermes_actor.testing.history import digest_of

    own = conn.execute("SELECT 1 FROM sqlite_master WHERE name = 'hermes_actor_meta'").fetchall()
    if not own:
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
    payloads = [zlib.crc32(text.encode()) for (text,) in reversed(last)]
    return place, rows, len(payloads), digest_of(payloads)


if __name__ == "__main__":
    sys.exit(main())
