"""The real engine on a recording disk: what a workload can do, and what is written down of it.

Runs in a process of its own, because of the second copy of SQLite: only children that
:func:`record` makes open a file with apsw, and only their parent opens one with ``sqlite3``.
Between the events of the disk stand those of the clients: ``sent`` before a batch is given to the
writer, ``ack`` or ``failed`` for each answer, and ``state`` with a digest of all rows for each
``commit_no`` that was reached.
"""

from __future__ import annotations

import errno
import hashlib
import os
import pickle
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from disks.apsw_connection import ApswConnection
from disks.recording import Recording, Sent
from disks.recording_vfs import Fault, RecordingVfs
from hermes_actor import limits
from hermes_actor.agents.tables import TABLES
from hermes_actor.engine.admin_tasks import vacuum
from hermes_actor.engine.checkpoint import Action
from hermes_actor.engine.environment import Environment
from hermes_actor.engine.index.build_folder import BuildHere
from hermes_actor.engine.jobs import Outcome, Request
from hermes_actor.engine.receipts import NO_FLOOR, Ticket
from hermes_actor.engine.shared_sync import SharedSync
from hermes_actor.engine.writer import Writer
from hermes_actor.errors import ActorBroken, HermesActorError
from hermes_actor.paths import resolve_paths
from hermes_actor.sqlite import sqlite3
from hermes_protocol import operations as ops
from hermes_protocol.features import SESSIONS
from hermes_protocol.framing import decode_operation

if TYPE_CHECKING:
    from hermes_actor.sqlite import Connection

__all__ = ["Bench", "Workload", "digest_of", "record"]

_encode = msgspec.msgpack.Encoder().encode

Workload = Callable[["Bench"], None]

_TABLES = {
    "sessions": ("sessions", "messages", "state_meta"),
    "agents": tuple(TABLES),
    "plain": ("item", "part"),
}


def digest_of(conn: Connection, kind: str = SESSIONS) -> str:
    """A digest of every row that clients of a file of *kind* can see."""
    rows = [
        conn.execute(f"SELECT * FROM {name} ORDER BY 1, 2").fetchall() for name in _TABLES[kind]
    ]
    return hashlib.blake2b(repr(rows).encode(), digest_size=12).hexdigest()


class Bench:
    """A writer on a recording disk, and clients that number their requests."""

    def __init__(
        self, path: Path, *, seed: int = 0, with_wal: bool = True, fault: Fault | None = None
    ) -> None:
        self.seed = seed
        self.place = resolve_paths(path)
        self.vfs = RecordingVfs()
        self.vfs.fault = fault
        self.clock = 0.0
        self._seqs: dict[bytes, int] = {}
        self.env = Environment(
            monotonic=self._now,
            sleep=self._sleep,
            write_again=self._write_again,
            sync=self._sync,
            start=lambda work: work(),
            start_builder=BuildHere,
            connect_writer=lambda path: cast(
                "Connection", ApswConnection(path, "recording", with_wal=with_wal)
            ),
            connect_reader=lambda path: cast(
                "Connection", ApswConnection(path, "recording", read_only=True)
            ),
        )
        self.writer: Writer

    def _now(self) -> float:
        self.clock += 1e-6
        return self.clock

    def _sleep(self, seconds: float) -> None:
        self.clock += seconds

    def _write_again(self, path: str) -> None:
        try:
            self.vfs.check("sync", Path(path).name)
        except Exception as error:
            raise OSError(errno.EIO, "Input/output error") from error
        Environment().write_again(path)
        if Path(path).exists():
            name, data = Path(path).name, Path(path).read_bytes()
            self.log.extend([("write", name, 0, data), ("sync", name)])

    def _sync(self, _descriptor: int) -> None:
        """Sync the WAL for several leases."""
        name = self.place.wal.name
        try:
            self.vfs.check("sync", name)
        except Exception as error:
            raise OSError(errno.EIO, "Input/output error") from error
        self.log.append(("sync", name))

    @property
    def log(self) -> list[Any]:
        return self.vfs.log

    # --- the life of the writer ------------------------------------------------------------------

    def open(self, *, anchored: bool = True) -> None:
        """Open the file and pass the barrier."""
        self.writer = Writer(self.place, self.env, anchored=anchored)
        self.writer.recover()
        self.note_state()

    def close(self) -> None:
        self.writer.close()

    def note_state(self) -> None:
        connection, fault = self.writer.connection, self.vfs.fault
        self.vfs.fault = None  # a look of ours is none of the product's business
        if connection.recovered and connection.broken is None:
            counts = dict(self.vfs.counts)
            digest = digest_of(connection.conn, self.writer.kind.name)
            self.log.append(("state", connection.commit_no, digest))
            self.vfs.counts = counts
        self.vfs.fault = fault

    # --- what clients do -------------------------------------------------------------------------

    def do(self, *work: tuple[str, ops.Operation[Any]]) -> None:
        """One batch: (client, operation) each, with new numbers."""
        self.send([self._numbered(client, operation) for client, operation in work])

    def _numbered(self, client: str, operation: ops.Operation[Any]) -> Sent:
        who = client.encode().ljust(16, b"-")
        self._seqs[who] = seq = self._seqs.get(who, 0) + 1
        return Sent(who, seq, _encode(operation))

    def send(self, batch: list[Sent]) -> None:
        """Give requests to the writer and write down their answers."""
        for sent in batch:
            self._seqs[sent.client] = max(sent.seq, self._seqs.get(sent.client, 0))
        self.log.append(("sent", batch))
        while batch:
            outcomes = self.writer.run_batch([request_of(sent) for sent in batch])
            for sent, outcome in zip(batch, outcomes, strict=False):
                self._note_answer(sent, outcome)
            batch = batch[len(outcomes) :]
            self._check()
        self.note_state()

    def leases(self, *work: tuple[str, ops.Operation[Any]]) -> None:
        """Leases of several clients that share a sync: (client, what it changes) each."""
        connection = self.writer.connection
        shared = SharedSync(connection.sync_wal, connection.shared_sync_failed, lambda: None)
        connection.settle = shared.settle
        for client, operation in work:
            who = client.encode().ljust(16, b"-")
            self._seqs[who] = seq = self._seqs.get(who, 0) + 1
            sent = Sent(who, seq, _encode(ops.SqlLease(lease=seq)), _encode(operation))
            self.log.append(("sent", [sent]))
            try:
                run = operation if isinstance(operation, ops.SqlRun) else None
                settings = None if run is None else run.settings
                self.writer.leases.begin(float("inf"), settings, may_share=True)
                if run is not None:
                    self.writer.leases.run(run)
                else:
                    self.writer.kind.apply(connection.conn, operation)
                    self.writer.leases.has_changed = True
                outcome = self.writer.leases.end(request_of(sent))
            except HermesActorError as error:
                outcome = Outcome(error=error)
            if outcome.error is None and connection.shares_sync:
                shared.withhold(partial(self._note_answer, sent, outcome))
            else:
                self._note_answer(sent, outcome)
            self.writer.abandon()
            self.note_state()
        shared.settle()
        shared.close()
        self._check()

    def _note_answer(
        self, sent: Sent, outcome: Outcome, error: BaseException | None = None
    ) -> None:
        if (error := error or outcome.error) is None:
            result = bytes(outcome.result or b"")
            self.log.append(("ack", sent.client, sent.seq, outcome.commit_no, result))
            return
        executed, kind = getattr(error, "executed", "no"), type(error)
        typed = issubclass(kind, HermesActorError)
        self.log.append(("failed", sent.client, sent.seq, kind.__name__, executed, typed))

    def _check(self) -> None:
        """A writer that is broken ends its process, like the actor does."""
        if self.writer.connection.broken is not None:
            raise ActorBroken(str(self.writer.connection.broken))

    # --- upkeep ----------------------------------------------------------------------------------

    @contextmanager
    def _upkeep(self) -> Iterator[None]:
        """Like the loop of the engine: what fails is tried again later, unless it broke."""
        try:
            yield
        except (HermesActorError, sqlite3.Error) as error:
            self.log.append(("upkeep", type(error).__name__, str(error)))
        self._check()

    def checkpoint(self, action: Action = Action.PASSIVE) -> None:
        with self._upkeep():
            self.writer.checkpointer.run(action, limits.RESTART_BUDGET_SECONDS)

    def vacuum(self) -> None:
        error = vacuum(self.writer.connection, self.writer.checkpointer, float("inf"))
        if error is not None:
            raise error

    def index(self) -> None:
        """Index everything, as a search would have it."""
        with self._upkeep():
            while self.writer.index.run_slice(0.0):
                pass
            self.writer.index.complete()

    def bulk(self) -> None:
        """Index aside what is enough for that, and nothing else."""
        with self._upkeep():
            while self.writer.index.run_bulk_slice() is not None:
                pass

    def end_of_fault(self) -> None:
        """From now on the disk does what it is asked."""
        self.vfs.fault = None
        self.log.append(("end of fault", self.writer.connection.broken is None))

    def idle(self, seconds: float = 10.0) -> None:
        """Let so much quiet time pass."""
        until = self.clock + seconds
        while self.clock < until:
            pause = limits.UPKEEP_RETRY_SECONDS
            with self._upkeep():
                pause = self.writer.idle_slice() or 0.0
            self.clock += pause


def request_of(sent: Sent) -> Request:
    operation = decode_operation(sent.operation)
    lease = isinstance(operation, ops.SqlLease)
    signed = b"lease %d" % sent.seq if lease else sent.operation
    digest = hashlib.blake2b(signed, digest_size=8).digest()
    return Request(operation, ticket=Ticket(sent.client, sent.seq, digest, 0, 0, NO_FLOOR))


def record(
    path: Path,
    workload: Workload,
    *,
    seed: int = 0,
    fault: Fault | None = None,
    with_wal: bool = True,
    patch: Callable[[], None] = lambda: None,
) -> Recording:
    """Run *workload* in a child process and return what was written down.

    The child ends without closing anything, as a killed process does. *patch* is called in it
    first: that is how a selftest breaks the product on purpose.
    """
    into = path.with_name(f"{path.name}.recording")
    child = os.fork()
    if child == 0:
        bench = Bench(path, seed=seed, with_wal=with_wal, fault=fault)
        _record_and_end(bench, into, workload, patch)
    _, status = os.waitpid(child, 0)
    if not into.exists():
        raise RuntimeError(f"the recording of {workload} ended with status {status}")
    data = into.read_bytes()
    into.unlink()
    recording: Recording = pickle.loads(data)
    if recording.crash is not None:
        raise RuntimeError(f"a workload failed:\n{recording.crash}")
    return recording


def _record_and_end(
    bench: Bench, into: Path, workload: Workload, patch: Callable[[], None]
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    crash = None

    def end() -> None:
        told = Recording(bench.log, dict(bench.vfs.counts), crash)
        into.write_bytes(pickle.dumps(told))
        os._exit(0)

    bench.vfs.on_kill = end
    try:
        patch()
        workload(bench)
    except HermesActorError as error:
        bench.log.append(("ended", type(error).__name__, str(error)))
    except BaseException:
        crash = traceback.format_exc()
    end()
