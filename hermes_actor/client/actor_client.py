"""The blocking client: the port of a SessionDB to the actor of its file."""

from __future__ import annotations

import atexit
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

import hermes_protocol.messages as wire
from hermes_actor import limits
from hermes_actor.client.connection import ActorConnection
from hermes_actor.client.exchange import Sending, actor_timeout
from hermes_actor.client.leases import Leases
from hermes_actor.client.protocol import encode, stages
from hermes_actor.errors import HermesActorError, wrong_kind
from hermes_actor.system import fork
from hermes_actor.system.shared import SharedObjects
from hermes_protocol.client import PendingReply, decode_result
from hermes_protocol.features import PLAIN, SESSIONS, kind_in
from hermes_protocol.operations import result_type

if TYPE_CHECKING:
    from hermes_actor.client.interfaces import Answer, ChangeStream, Lease, SqlLease
    from hermes_actor.paths import StorePaths
    from hermes_protocol.operations import Operation, SqlReply, SqlRun

__all__ = ["ActorClient", "acquire"]

R = TypeVar("R")


class ActorClient:
    """The client of one actor, for all threads of a process. Get it with :func:`acquire`."""

    def __init__(self, paths: StorePaths, kind: str = SESSIONS) -> None:
        self.paths = paths
        self._connection = ActorConnection(paths, kind)
        self._leases = Leases(self._connection)
        # Also after its last release: a call may be under way, whose connection lives on.
        fork.notify(self)

    def connect(self, timeout: float) -> None:
        """Return when the actor serves; start one if there is none.

        Raises as :meth:`RetryPolicy.failed`, :class:`DeadlineExceeded`, and :class:`Closed`.
        """
        self._connection.ensure_connected(time.monotonic() + timeout)

    def need(self, kind: str) -> None:
        """Have the actor take this client, from here on, only if the file is of *kind*.

        Raises :class:`WrongKind` if it is not. Another user of the client, which takes any kind,
        goes on in either case.
        """
        connection = self._connection
        with connection.lock:
            welcome = connection.protocol.welcome
            found = kind_in(welcome.features) if welcome is not None else None
            if kind != PLAIN and found not in (None, kind):
                raise wrong_kind(self.paths.db, str(found), kind)
            if kind != PLAIN:
                connection.kind = connection.protocol.kind = kind

    def submit(self, operation: Operation[R], timeout: float) -> R:
        """Have *operation* applied; return its result once it is committed and synced (G1).

        Sent again on a new connection until it is answered, and applied once (G2). Raises the typed
        error of the change; its ``executed`` says whether the change was made.
        """
        self._leases.refuse_inside()
        return self._submit(operation, timeout)

    def _submit(
        self,
        operation: Operation[R],
        timeout: float,
        under_way: list[PendingReply] | None = None,
    ) -> R:
        connection, deadline = self._connection, time.monotonic() + timeout
        # Before it connects: what no actor takes is refused without starting one.
        whole = encode(operation)
        steps = [] if under_way is None else under_way
        try:
            connection.ensure_connected(deadline)
            self._number(operation, whole, steps, deadline)
            result = connection.wait(steps)
        except BaseException:
            connection.withdraw(steps)  # what has not left never will
            raise
        decoded: R = decode_result(result, result_type(type(operation)))
        return decoded

    def send(self, operations: Sequence[Operation[Any]], timeout: float) -> list[Answer]:
        """Send several operations, in order; return their answers, which can be waited for later.

        Waits for room in the window, and until the kernel has taken all. If that fails half-way,
        the answers to those that have not left carry the error; if none has left, it is raised.
        """
        self._leases.refuse_inside()
        connection, deadline = self._connection, time.monotonic() + timeout
        # All before the first is numbered: one that cannot be encoded stops none half-way.
        encoded = [encode(operation) for operation in operations]
        answers = [_Answer(connection, result_type(type(one))) for one in operations]
        try:
            connection.ensure_connected(deadline)
            for operation, whole, answer in zip(operations, encoded, answers, strict=True):
                self._number(operation, whole, answer.steps, deadline)
                answer.is_whole = True
            # Only the last parts are waited for: a connection carries frames in order.
            connection.send([answer.steps[-1] for answer in answers], deadline)
        except BaseException as error:
            some_left = connection.break_off(answers, error)
            # Raised for all of them, it would call those that have left not executed. An interrupt
            # is raised in any case: its caller wants to stop.
            if not some_left or not isinstance(error, HermesActorError):
                raise
        return list(answers)

    def _number(
        self,
        operation: Operation[Any],
        whole: bytes | None,
        steps: list[PendingReply],
        deadline: float,
    ) -> None:
        """Number an operation, whose bytes are *whole* if it need not go in parts."""
        connection = self._connection
        for step in [whole] if whole is not None else stages(connection.protocol, operation):
            connection.request(steps, step, deadline)

    def catch_up(self, through: int, timeout: float, *, damaged: int | None = None) -> None:
        """Return when both full-text indexes cover all messages up to *through*.

        Raises :class:`IndexBehind` if they do not in time. *damaged*: see :class:`IndexOwner`.
        """
        self._ask(
            lambda ask: wire.CatchUp(
                ask=ask,
                through=through,
                timeout=actor_timeout(timeout),
                verify=damaged is not None,  # for an actor that does not know the other yet
                damaged=damaged,
            ),
            time.monotonic() + timeout,
        )

    def lease(self, timeout: float) -> Lease:
        """Begin an interactive transaction; see :meth:`Leases.open`."""
        return self._leases.open(timeout)

    # Without refuse_inside(): a program may write with two connections in one thread, and expects
    # the second one to wait until its timeout.

    def run(
        self, run: SqlRun, timeout: float, under_way: list[PendingReply] | None = None
    ) -> SqlReply:
        """Run statements of a connection as one change; see :class:`SqlPort`.

        Its requests are appended to *under_way*, an empty list, for :meth:`interrupt`.
        """
        return self._submit(run, timeout, under_way)

    def interrupt(self, under_way: list[PendingReply]) -> None:
        """Have the run end that another thread waits for: its statement fails as interrupted."""
        self._connection.interrupt(under_way)

    def open_lease(
        self,
        settings: Mapping[str, int | str],
        timeout: float,
        *,
        first: SqlRun | None = None,
        seconds: float | None = None,
        pause: float | None = None,
        begun: list[SqlLease] | None = None,
    ) -> SqlLease:
        """Begin the transaction of a connection; see :class:`SqlPort`."""
        return self._leases.open_sql(settings, timeout, first, (seconds, pause), begun)

    def statistics(self) -> dict[str, Any]:
        """Return the status document. Raises :class:`DeadlineExceeded` if the actor is silent."""
        deadline = time.monotonic() + limits.DEFAULT_TIMEOUT_SECONDS
        status = self._ask(lambda ask: wire.StatusRequest(ask=ask), deadline)
        document: dict[str, Any] = msgspec.json.decode(status)
        return document

    def subscribe(self, after: int | None, timeout: float) -> ChangeStream:
        """Return the changes after ``commit_no`` *after*, or from now on."""
        from hermes_actor.client.subscription import ActorChangeStream  # few programs subscribe

        return ActorChangeStream(self.paths, after, timeout, self._connection.kind)

    def release(self) -> None:
        """End one use; the last one closes the client."""
        if _clients.release(self.paths.db, self):
            self.close()

    def close(self) -> None:
        """Take no more calls, and wait for nothing: calls that are under way end first."""
        self._connection.close()

    def after_fork(self) -> None:
        """Become another client, in a child, without the leases of its parent."""
        self._connection.after_fork()
        self._leases = Leases(self._connection)

    def _ask(self, make: Callable[[int], msgspec.Struct], deadline: float) -> bytes:
        """An ask is tried again on a new connection; it changes nothing."""
        self._leases.refuse_inside()
        connection = self._connection
        while True:
            connection.ensure_connected(deadline)
            with connection.lock:
                reply = connection.ask(make, deadline)
            try:
                return connection.wait([reply])
            # Only an ask is repeated here. A request is sent again below, by the connection itself,
            # under its old number.
            except ConnectionResetError:
                continue


class _Answer(Sending):
    """The answer to one operation, when it comes; of a staged one, the first error of its parts."""

    __slots__ = ("_connection", "_kind")

    def __init__(self, connection: ActorConnection, kind: Any) -> None:
        super().__init__()
        self._connection = connection
        self._kind = kind

    def result(self) -> Any:
        if self.error is not None:
            raise self.error
        return decode_result(self._connection.wait(self.steps), self._kind)


_clients: SharedObjects[Path, ActorClient] = SharedObjects()


def acquire(paths: StorePaths, timeout: float, kind: str = SESSIONS) -> ActorClient:
    """Return the client of *paths* that this process shares, connected to its actor.

    *kind* is the kind of file whose operations the caller uses; ``plain``: only those that every
    kind knows. An actor is started if there is none, and gives a new file that kind. Raises what
    :meth:`ActorClient.connect` raises, and :class:`WrongKind`. The caller ends its use with
    :meth:`ActorClient.release`.
    """
    client = _clients.acquire(paths.db, lambda: ActorClient(paths, kind))
    try:
        client.connect(timeout)  # outside of the lock: stores of other files do not wait for it
        client.need(kind)
    except BaseException:
        client.release()
        raise
    return client


@atexit.register
def _close_all() -> None:
    for client in _clients.clear():
        # The Bye lets the actor remove the receipts now, not 100,000 changes later. One that cannot
        # be sent must not spoil the exit of the program.
        with contextlib.suppress(Exception):
            client.close()
