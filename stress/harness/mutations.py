"""Deliberate faults of the whole actor and of its clients, for the selftest.

``--set break=NAME`` runs a job against such a build. The fault is put into the process under test
by its entry, and into clients by their own; the product knows nothing of it. Each one is a mistake
that a programmer could make, and each must be found. Faults of the engine under power cuts are with
the jobs about disks.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from typing import Any

__all__ = ["BREAKS", "break_build", "break_client"]


def _put(owner: Any, name: str, value: Any) -> None:
    """Replace something that must be there: a fault that breaks nothing would find nothing."""
    assert hasattr(owner, name), f"{owner.__name__} has no {name} any more"
    setattr(owner, name, value)


def _decode_errors_only() -> None:
    """Of all that can be wrong with bytes, only the decoder's own error is expected."""
    import msgspec

    from hermes_protocol import framing

    def decode(decoder: Any, body: bytes) -> Any:
        try:
            return decoder.decode(body)
        except msgspec.DecodeError as error:
            raise framing.FrameError(str(error)) from error

    _put(framing, "decode", decode)


def _no_guard() -> None:
    """The files are not checked for being the same, and a process opens one of them."""
    from hermes_actor.engine.checkpoint import Checkpointer
    from hermes_actor.engine.file_identity import FileIdentityGuard

    plain = Checkpointer.run

    def run(self: Checkpointer, *arguments: Any) -> None:
        plain(self, *arguments)
        # Closing it drops every lock that SQLite has on the file in this process.
        os.close(os.open(self._connection.paths.db, os.O_RDONLY))

    _put(FileIdentityGuard, "intact", lambda _self: True)
    _put(Checkpointer, "run", run)


def _two_owners() -> None:
    """In a hand-off the successor gets everything while the old actor has the file open."""
    from hermes_actor.actor.writer_thread import WriterThread

    async def stop(_self: WriterThread) -> None:
        return

    _put(WriterThread, "stop", stop)


def _receipts_by_the_clock() -> None:
    """Receipts older than an hour go, by the wall clock, and it is not recorded that they did."""
    from hermes_actor.engine.receipts import Receipts

    init, find = Receipts.__init__, Receipts.find
    born: dict[int, float] = {}

    def begin(self: Receipts, *arguments: Any) -> None:
        init(self, *arguments)
        born[id(self)] = time.time()

    def sweep_and_find(self: Receipts, conn: Any, ticket: Any, **more: Any) -> Any:
        if abs(time.time() - born[id(self)]) > 1800:
            born[id(self)] = time.time()
            conn.execute("DELETE FROM hermes_actor_receipts")
            self._clients.clear()
        return find(self, conn, ticket, **more)

    _put(Receipts, "__init__", begin)
    _put(Receipts, "find", sweep_and_find)


def _kept_snapshot() -> None:
    """A reader does not end its read transaction, and uses the connection again."""
    from hermes_actor.client import reader

    plain = reader._in_snapshot

    def in_snapshot(conn: Any, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        if conn.execute("PRAGMA journal_mode").fetchone() != ("wal",):
            # The file is just being made; who stayed in it would keep its owner out.
            return plain(conn, function, arguments)
        if not conn.in_transaction:
            conn.execute("BEGIN")
        result = function(conn, *arguments)
        if result is None:
            conn.execute("ROLLBACK")  # nothing to see yet
        return result

    _put(reader, "_in_snapshot", in_snapshot)


def _reply_before_commit() -> None:
    """The answers leave when a batch is applied, just before it is committed."""
    from hermes_actor.engine.connection import WriteConnection
    from hermes_actor.engine.writer import Writer

    run_batch, commit = Writer.run_batch, WriteConnection.commit

    def late(self: WriteConnection, commit_no: int | None = None, writes: int = 0) -> None:
        if commit_no is None:
            commit(self, commit_no, writes)
        else:
            self.commit_no = commit_no

    def begin_with_the_last(self: Writer, requests: Any) -> Any:
        if self.connection.conn.in_transaction:
            commit(self.connection, self.connection.commit_no, 1)
        return run_batch(self, requests)

    _put(WriteConnection, "commit", late)
    _put(Writer, "run_batch", begin_with_the_last)


def _no_digest() -> None:
    """Whether a number was used for another change is not looked at."""
    from hermes_actor.engine.receipts import Receipts

    find = Receipts.find

    def find_any(self: Receipts, conn: Any, ticket: Any, **more: Any) -> Any:
        ((digest,),) = conn.execute(
            "SELECT COALESCE(MAX(digest), ?) FROM hermes_actor_receipts"
            " WHERE client = ? AND seq = ?",
            (ticket.digest, ticket.client, ticket.seq),
        )
        return find(self, conn, ticket._replace(digest=digest), **more)

    _put(Receipts, "find", find_any)


def _late_execution() -> None:
    """What was refused because its time was over stays in its lane."""
    from hermes_actor.engine.jobs import Job

    _put(Job, "take", lambda _self: True)
    from hermes_actor.actor.mailbox import Mailbox

    def take_expired(self: Mailbox, now: float) -> list[Job]:
        return [job for lane in self._lanes.values() for _, job in lane if job.deadline < now]

    _put(Mailbox, "take_expired", take_expired)
    from hermes_actor.engine.writer import Writer

    run_batch = Writer.run_batch

    def patient(self: Writer, requests: Any) -> Any:
        return run_batch(self, [one._replace(deadline=float("inf")) for one in requests])

    _put(Writer, "run_batch", patient)


def _no_owner_lock() -> None:
    """The lock is shared, so that every process gets it."""
    import fcntl

    from hermes_actor.engine import ownership

    class Shared:
        LOCK_EX, LOCK_NB = fcntl.LOCK_SH, fcntl.LOCK_NB
        flock = staticmethod(fcntl.flock)

    _put(ownership, "fcntl", Shared)


def _no_holders() -> None:
    from hermes_actor.actor import status

    _put(status, "wal_read_lock_pids", lambda _shm: [])


def _forgetful() -> None:
    """Who opens a store begins without receipts."""
    from hermes_actor.engine.connection import WriteConnection

    plain = WriteConnection.run_startup_recovery

    def run_startup_recovery(self: WriteConnection, deadline: float) -> None:
        if not self.recovered:
            plain(self, deadline)
            self.conn.execute("DELETE FROM hermes_actor_receipts")

    _put(WriteConnection, "run_startup_recovery", run_startup_recovery)


def _shared_connection() -> None:
    """After a fork a child takes itself for its parent."""
    from hermes_actor.client.actor_client import ActorClient

    _put(ActorClient, "after_fork", lambda _self: None)


def _not_synced() -> None:
    """Commits are left to the kernel."""
    from hermes_actor.engine.startup import open_database

    plain = open_database._configure

    def configure(conn: Any) -> None:
        plain(conn)
        conn.execute("PRAGMA synchronous = OFF")

    _put(open_database, "_configure", configure)


def _relaxed_commits() -> None:
    """A server may acknowledge before its log is written."""
    from hermes_actor.providers.sql import session_db

    plain = session_db._settings

    def settings(given: Any) -> Any:
        return plain(given)._replace(synchronous_commit="off")

    _put(session_db, "_settings", settings)


def _open_doors() -> None:
    """Files and folder get the modes that a careless program would give them."""
    from hermes_actor.actor import listener

    plain = os.open

    def careless(path: Any, flags: int, mode: int = 0o777, **more: Any) -> int:
        os.umask(0)
        return plain(path, flags, mode | 0o044, **more)

    os.open = careless
    assert vars(listener)["os"].open is careless


# --- of the reviews: each brings back a defect that the product once had -------------------------


def _old_floor() -> None:
    """What a connection agreed on at its beginning is not looked at."""
    from hermes_actor.actor.requests import RequestTracker
    from hermes_actor.engine.receipts import NO_FLOOR

    ticket = RequestTracker._ticket
    _put(RequestTracker, "_ticket", lambda *words: ticket(*words)._replace(floor=NO_FLOOR))


def _never_rebuilt() -> None:
    """An index that is found damaged stays as it is."""
    from hermes_actor.engine.index.maintenance import IndexMaintenance

    def raise_it(_self: IndexMaintenance, error: Exception) -> bool:
        raise error

    _put(IndexMaintenance, "_rebuild_after", raise_it)
    _put(IndexMaintenance, "rebuild_if_damaged", lambda _self, _schema: None)
    _put(IndexMaintenance, "report_damage", lambda _self, _reason: None)


def _trusted_watermark() -> None:
    """The tables are not checked for what the watermark says."""
    from hermes_actor.engine.index import indexer

    _put(indexer, "covers", lambda *_words: True)
    _put(indexer, "index_gaps", lambda _conn, _above, watermark, *_words: watermark)


def _endless() -> None:
    """A statement may run for as long as it likes."""
    from hermes_actor.engine.statement_limit import StatementLimit

    _put(StatementLimit, "__call__", lambda _self: None)


def _any_state() -> None:
    """What is replaced need not be what was copied."""
    from hermes_actor.engine import admin_tasks

    plain = admin_tasks._replace_content

    def replace_content(connection: Any, source: Any, deadline: float, _: str, wanted: Any) -> None:
        plain(connection, source, deadline, "", wanted)

    _put(admin_tasks, "_replace_content", replace_content)


def _late_maintenance() -> None:
    """Commands ask before they are welcomed, and actors do what no client waits for any more."""
    from hermes_actor.client import control
    from hermes_actor.engine.jobs import Maintain
    from hermes_actor.errors import NotRunning

    plain = Maintain.__init__

    def wanted(self: Maintain, *arguments: Any, **options: Any) -> None:
        plain(self, *arguments, **options)
        self.is_wanted = lambda: True

    _put(Maintain, "__init__", wanted)

    def at_once(paths: Any, make: Any, timeout: float, *, name: str) -> bytes:
        protocol = vars(control)["client_protocol"](name)
        deadline = time.monotonic() + timeout
        sock = vars(control)["dial"](paths, deadline)
        reply, question = protocol.ask(make)
        try:
            sock.sendall(protocol.hello() + question)
            while not reply.done:
                vars(control)["wait_readable"](sock, deadline)
                data = sock.recv(1 << 16)
                if not data:
                    raise NotRunning("it has just ended")
                protocol.receive(data)
        finally:
            sock.close()
        if reply.error is not None:
            raise reply.error
        return reply.result or b""

    from hermes_actor.recovery import store_owner

    _put(store_owner, "call", at_once)


def _indexed_inside() -> None:
    """However large a text is, it is indexed in one piece inside a transaction of the writer."""
    from hermes_actor import limits

    _put(limits, "INDEX_ASIDE_BYTES", 1 << 62)


# Of clients.


def _refused() -> None:
    """A pipeline that breaks off tells that nothing was executed, and leaves it to be sent."""
    from hermes_actor.client.exchange import Exchange

    def break_off(_self: Exchange, sendings: Any, error: BaseException) -> bool:
        for sending in sendings:
            sending.error = error
        return False

    _put(Exchange, "break_off", break_off)


def _lost_reader() -> None:
    """A reader that an exception has ended is waited for by all others."""
    from hermes_actor.client.connection import ActorConnection, _Waiter

    pump_once = ActorConnection._pump_once

    def trusting(self: ActorConnection, me: _Waiter, deadline: float) -> float | None:
        if self._reader is not None:
            self._reader.until = float("inf")
        return pump_once(self, me, deadline)

    def work(self: ActorConnection, done: Any, deadline: float, steps: Any = ()) -> None:
        me = _Waiter(done, steps)
        while True:
            with self.lock:
                seconds = self._pump_once(me, deadline)
            if seconds is None:
                return
            me.wait(seconds)

    _put(ActorConnection, "_pump_once", trusting)
    _put(ActorConnection, "_work", work)


def _blocking_sends() -> None:
    """A thread that sends waits for the kernel, with all others behind it."""
    from hermes_actor.client.exchange import Exchange

    plain = Exchange.send

    def send(self: Exchange) -> None:
        if self.sock is not None and self.frames:
            self.sock.setblocking(True)
            try:
                plain(self)
            finally:
                self.sock.setblocking(False)

    _put(Exchange, "send", send)


def _few_descriptors() -> None:
    """The process that starts an actor waits for it with ``select``."""
    import select

    from hermes_actor.client import spawn

    plain = spawn._wait_ready

    def wait_ready(paths: Any, ready: Any, *words: Any) -> None:
        select.select([ready], [], [], 0)
        plain(paths, ready, *words)

    _put(spawn, "_wait_ready", wait_ready)


def _reset_without_end() -> None:
    """A reset starts another session, and does not end the old one."""
    from hermes_actor.store.gateway.files import FileTables

    _put(FileTables, "end_session", lambda *_words: None)


def _token_not_compared() -> None:
    """A write under a turn is taken, also when another process has the turn by now."""
    from hermes_actor.store.gateway import turn_rules

    _put(turn_rules, "fence", lambda *_words: None)


def _doubled_deliveries() -> None:
    """A message is appended however often its platform delivers it."""
    import hermes_protocol.operations as ops
    from hermes_actor.store import messages
    from hermes_actor.store.gateway import files
    from hermes_actor.store.registry import APPLY

    def append(conn: Any, op: ops.MessageOnce) -> ops.Once:
        plain = ops.MessageAppend(session_id=op.session_id, message=op.message)
        return ops.Once(id=messages.append(conn, plain))

    assert APPLY[ops.MessageOnce] is files.append_once
    APPLY[ops.MessageOnce] = append


def _marked_before_written() -> None:
    """The follower of a transcript keeps how far it has come, and then writes."""
    from hermes_actor.gateway import transcripts

    plain, late = transcripts._append, transcripts.Transcripts._mark

    def append(*words: Any) -> None:
        pending.append(words)

    def mark(self: Any, *words: Any) -> None:
        late(self, *words)
        while pending:
            time.sleep(0.01)  # time enough to be killed in between
            plain(*pending.pop())

    pending: list[Any] = []
    _put(transcripts, "_append", append)
    _put(transcripts.Transcripts, "_mark", mark)


def _claimed_by_all() -> None:
    """Every watcher that asks for an expired session gets it."""
    import hermes_protocol.operations as ops
    from hermes_actor.store import dispatch  # noqa: F401 - registers what is replaced
    from hermes_actor.store.registry import APPLY

    assert ops.RouteClaim in APPLY
    APPLY[ops.RouteClaim] = lambda conn, op: True


def _index_without_lock() -> None:
    """The index file is written from a snapshot that another process may have overtaken."""
    from hermes_actor.gateway.mirror import Mirror
    from hermes_actor.store import queries

    def write(self: Mirror) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        routes = self._db._query(queries.all_routes, self._scope)
        time.sleep(random.uniform(0.0, 0.2))
        self._replace({route.key: route.entry for route in routes})

    _put(Mirror, "write", write)


def _index_in_place() -> None:
    """The index file is written where it is, and not beside it."""
    import json

    from hermes_actor.gateway.mirror import Mirror

    def replace(self: Mirror, entries: dict[str, object]) -> None:
        text = json.dumps(entries, indent=2)
        with open(self.path, "w") as file:
            for begin in range(0, len(text), 500):
                file.write(text[begin : begin + 500])
                file.flush()
                time.sleep(0.002)

    _put(Mirror, "_replace", replace)


BREAKS: dict[str, Callable[[], None]] = {
    "reset-without-end": _reset_without_end,
    "token-not-compared": _token_not_compared,
    "doubled-deliveries": _doubled_deliveries,
    "decode-errors-only": _decode_errors_only,
    "no-guard": _no_guard,
    "two-owners": _two_owners,
    "receipts-by-the-clock": _receipts_by_the_clock,
    "reply-before-commit": _reply_before_commit,
    "no-digest": _no_digest,
    "late-execution": _late_execution,
    "no-owner-lock": _no_owner_lock,
    "no-holders": _no_holders,
    "forgetful": _forgetful,
    "not-synced": _not_synced,
    "open-doors": _open_doors,
    "old-floor": _old_floor,
    "never-rebuilt": _never_rebuilt,
    "trusted-watermark": _trusted_watermark,
    "endless": _endless,
    "any-state": _any_state,
    "late-maintenance": _late_maintenance,
    "indexed-inside": _indexed_inside,
    "claimed-by-all": _claimed_by_all,
}
"""Of the process under test, by name."""

_OF_CLIENTS: dict[str, Callable[[], None]] = {
    "marked-before-written": _marked_before_written,
    "index-in-place": _index_in_place,
    "index-without-lock": _index_without_lock,
    "kept-snapshot": _kept_snapshot,
    "shared-connection": _shared_connection,
    "relaxed-commits": _relaxed_commits,
    "told-no": _refused,
    "lost-reader": _lost_reader,
    "blocking-sends": _blocking_sends,
    "few-descriptors": _few_descriptors,
}


def break_build(name: str) -> None:
    """In the process under test."""
    BREAKS.get(name, lambda: None)()


def break_client() -> None:
    """In a client, if the environment says so."""
    _OF_CLIENTS.get(os.environ.get("HERMES_STRESS_BREAK", ""), lambda: None)()
