"""The blocking client: one connection per process and database, shared by all threads.

No thread of its own. Whoever waits for an answer and finds nobody reading reads for all; answers
for others are handed to them. A lost connection is made anew, with an actor started if there is
none, and everything unanswered is sent again; callers notice nothing but the time.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

import hermes_protocol.messages as wire
from hermes_actor import limits
from hermes_actor.client.core import ClientCore, Reply
from hermes_actor.client.spawn import start_actor
from hermes_actor.errors import (
    DeadlineExceeded,
    HermesActorError,
    NotAllowed,
    OutcomeUnknown,
    SpawnFailed,
    cannot_use,
)
from hermes_actor.paths import address_of
from hermes_protocol.framing import FrameError, frame
from hermes_protocol.operations import SqlResult, result_type

if TYPE_CHECKING:
    from hermes_actor.client.port import Answer, Lease
    from hermes_actor.paths import Place
    from hermes_protocol.operations import Operation, SqlStatement

__all__ = ["Channel", "connect_once", "share"]

R = TypeVar("R")

_NOBODY_SERVES = frozenset({errno.ENOENT, errno.ECONNREFUSED})

_PASSING = frozenset({
    *_NOBODY_SERVES, errno.EAGAIN, errno.ECONNRESET, errno.EPIPE, errno.ETIMEDOUT, errno.EINTR,
    errno.ENOTCONN, errno.EMFILE, errno.ENFILE, errno.ENOBUFS, None,
})  # fmt: skip
"""Errors of connecting after which another try can succeed."""

_GRACE_SECONDS = 1.0
"""The actor refuses what it takes after its deadline; its answer gets this long to arrive."""

_decoders: dict[Any, msgspec.msgpack.Decoder[Any]] = {}


def _decode(result: bytes, kind: Any) -> Any:
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind)
    return decoder.decode(result)


def connect_once(place: Place) -> socket.socket:
    """A connected socket, or the ``OSError`` of the one try."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with address_of(place) as address:
            sock.connect(address)
    except BaseException:
        sock.close()
        raise
    return sock


class Channel:
    """The way to one actor. Get it with :func:`share`."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._users = 0
        self._reset()

    def _reset(self) -> None:
        self._core = ClientCore(name=Path(sys.argv[0] or "python").name)
        self._sock: socket.socket | None = None
        self._changed = threading.Condition(threading.RLock())
        self._leading = False
        self._lease_holder: tuple[int, _ChannelLease] | None = None

    # --- the port ------------------------------------------------------------------------------

    def submit(self, operation: Operation[R], patience: float) -> R:
        (answer,) = self.send([operation], patience)
        return cast("R", answer.result())

    def send(self, operations: Sequence[Operation[Any]], patience: float) -> list[Answer]:
        self._refuse_inside_lease()
        deadline = time.monotonic() + patience
        answers: list[Answer] = []
        waiting: list[bytes] = []
        with self._changed:
            self._connected(deadline)
            for operation in operations:
                encoded = self._core.encode(operation)
                steps = [encoded] if encoded is not None else self._core.stages(operation)
                replies = []
                for step in steps:
                    while not self._core.has_room:
                        self._send(b"".join(waiting))
                        waiting.clear()
                        if time.monotonic() > deadline:
                            raise OutcomeUnknown("the actor takes nothing; some changes were sent")
                        self._read_or_wait(deadline)
                        self._connected(deadline)
                    reply, data = self._core.request(step, deadline - time.monotonic())
                    waiting.append(data)
                    replies.append(reply)
                answers.append(_Answer(self, replies, deadline, result_type(type(operation))))
            self._send(b"".join(waiting))
        return answers

    def catch_up(self, through: int, patience: float) -> None:
        self._ask(
            lambda ask: wire.CatchUp(ask=ask, through=through, patience=patience),
            time.monotonic() + patience,
        )

    def lease(self, patience: float) -> Lease:
        self._refuse_inside_lease()
        deadline = time.monotonic() + patience
        while True:
            with self._changed:
                self._connected(deadline)
                # The number is taken and sent in one step: what is sent later is numbered later.
                number = self._core.reserve()
                message = partial(wire.LeaseOpen, lease=number, patience=patience)
                reply, data = self._core.ask(lambda ask, message=message: message(ask=ask))
                self._send(data)
            try:
                self._await(reply, deadline)
                break
            except ConnectionResetError:
                with self._changed:
                    self._core.unreserve(number)
            except BaseException:
                with self._changed:
                    self._core.unreserve(number)
                raise
        lease = _ChannelLease(self, number, deadline)
        self._lease_holder = (threading.get_ident(), lease)
        return lease

    def statistics(self) -> dict[str, Any]:
        """The status document of the actor."""
        deadline = time.monotonic() + limits.PATIENCE_SECONDS
        status = self._ask(lambda ask: wire.StatusRequest(ask=ask), deadline)
        document: dict[str, Any] = msgspec.json.decode(status)
        return document

    def release(self) -> None:
        _channels.release(self)

    # --- calls -----------------------------------------------------------------------------------

    def _ask(self, make: Callable[[int], msgspec.Struct], deadline: float) -> bytes:
        """An ask is tried again on a new connection; it changes nothing."""
        self._refuse_inside_lease()
        while True:
            with self._changed:
                self._connected(deadline)
                reply, data = self._core.ask(make)
                self._send(data)
            try:
                return self._await(reply, deadline)
            except ConnectionResetError:
                continue

    def _refuse_inside_lease(self) -> None:
        if self._lease_holder is not None and self._lease_holder[0] == threading.get_ident():
            raise NotAllowed("a call inside _execute_write would wait for its own transaction")

    def _await(self, reply: Reply, deadline: float) -> bytes:
        with self._changed:
            while not reply.done:
                if time.monotonic() > deadline + _GRACE_SECONDS:
                    self._core.give_up(reply)
                    raise OutcomeUnknown("the actor has not answered within the patience")
                self._read_or_wait(deadline + _GRACE_SECONDS)
                if self._sock is None and not reply.done:
                    self._reconnect_for(reply, deadline)
        if reply.error is not None:
            raise reply.error
        assert reply.result is not None
        return reply.result

    def _reconnect_for(self, reply: Reply, deadline: float) -> None:
        """Connect again, which sends the request again. Without success nobody can tell."""
        try:
            self._connected(deadline)
        except HermesActorError as error:
            self._core.give_up(reply)
            if reply.number < 0:
                raise
            raise OutcomeUnknown(
                f"the connection was lost after the change was sent, and then: {error}"
            ) from error

    def _read_or_wait(self, deadline: float) -> None:
        """Read once for everybody, or wait until somebody else has. The condition is held."""
        patience = max(0.0, deadline - time.monotonic()) + 0.001
        if self._leading or self._sock is None:
            self._changed.wait(min(patience, 0.1) if self._sock is None else patience)
            return
        self._leading, sock = True, self._sock
        self._changed.release()
        data: bytes | None = None
        try:
            # The time-out of the socket is shared with senders, so it is not used for waiting.
            ready = select.poll()
            ready.register(sock, select.POLLIN)
            if ready.poll(patience * 1000):
                data = sock.recv(limits.RECEIVE_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            data = None
        except OSError:
            data = b""
        finally:
            self._changed.acquire()
            self._leading = False
            self._changed.notify_all()
        if self._sock is not sock:
            return  # somebody has connected anew: these bytes are of the past
        if data:
            self._take(data)
        elif data is not None:
            self._lost()

    def _take(self, data: bytes) -> None:
        try:
            self._core.receive(data)
        except FrameError:
            self._lost()

    def _send(self, data: bytes) -> None:
        if self._sock is None:
            return  # sent again by whoever connects
        try:
            self._sock.sendall(data)
        except OSError:
            # The request is kept: it goes out again with the next connection.
            self._lost()

    def _lost(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    # --- connecting ------------------------------------------------------------------------------

    def _connected(self, deadline: float) -> None:
        """Have a connection on which the actor has said Welcome. The condition is held."""
        pause, failed_starts = limits.RECONNECT_FIRST_SECONDS, 0
        while self._sock is None:
            try:
                self._sock = self._introduce(self._reach(deadline), deadline)
                self._sock.sendall(self._core.resend())
            except SpawnFailed:
                # It may have been killed while it came up; one that cannot come up fails again.
                failed_starts += 1
                if failed_starts == limits.SPAWN_TRIES or time.monotonic() >= deadline:
                    raise
            except OSError as error:
                if isinstance(error, HermesActorError):
                    raise
                self._lost()
                if error.errno not in _PASSING:
                    raise cannot_use(self._place.db, self._place.folder, error) from error
                if time.monotonic() >= deadline:
                    raise DeadlineExceeded(
                        f"no actor answers for {self._place.db}: {error}"
                    ) from error
                time.sleep(pause)
                pause = min(2 * pause, limits.RECONNECT_MAX_SECONDS)
        self._changed.notify_all()

    def _reach(self, deadline: float) -> socket.socket:
        try:
            return connect_once(self._place)
        except OSError as error:
            if error.errno not in _NOBODY_SERVES:
                raise
        start_actor(self._place, max(deadline, time.monotonic() + 1), self._somebody_serves)
        return connect_once(self._place)

    def _somebody_serves(self) -> bool:
        try:
            connect_once(self._place).close()
        except OSError as error:
            return error.errno not in _NOBODY_SERVES
        return True

    def _introduce(self, sock: socket.socket, deadline: float) -> socket.socket:
        """Say Hello and wait for Welcome: only that answer proves that somebody serves."""
        try:
            sock.settimeout(max(0.05, deadline - time.monotonic()))
            sock.sendall(self._core.hello())
            while self._core.welcome is None:
                data = sock.recv(limits.RECEIVE_BYTES)
                if not data:
                    raise ConnectionResetError("the actor closed the connection")
                self._core.receive(data)
        except FrameError as error:
            sock.close()
            raise ConnectionResetError(f"not an actor of this protocol: {error}") from error
        except BaseException:
            sock.close()
            raise
        sock.settimeout(None)
        return sock

    def close(self) -> None:
        """Say good-bye, so that the actor can forget us."""
        with self._changed:
            if self._sock is not None:
                with contextlib.suppress(OSError):
                    if not self._core.in_flight:
                        self._sock.settimeout(1.0)
                        self._sock.sendall(frame(wire.Bye()))
                self._lost()

    def after_fork(self) -> None:
        """In a child: another client, with a connection of its own."""
        sock = self._sock
        self._reset()
        if sock is not None:
            # Our copy only; the parent's connection stays open.
            sock.close()


class _Answer:
    """The answer to one operation, when it comes; of a staged one, the first error of its parts."""

    __slots__ = ("_channel", "_deadline", "_kind", "_replies")

    def __init__(self, channel: Channel, replies: list[Reply], deadline: float, kind: Any) -> None:
        self._channel = channel
        self._replies = replies
        self._deadline = deadline
        self._kind = kind

    def done(self) -> bool:
        return all(reply.done for reply in self._replies)

    def result(self) -> Any:
        result = b""
        for reply in self._replies:
            result = self._channel._await(reply, self._deadline)
        return _decode(result, self._kind)


class _ChannelLease:
    """The caller's end of an interactive transaction."""

    def __init__(self, channel: Channel, number: int, deadline: float) -> None:
        self._channel = channel
        self._number = number
        self._deadline = deadline
        self._sock = channel._sock

    def execute(self, statement: SqlStatement) -> SqlResult:
        encoded = msgspec.Raw(msgspec.msgpack.encode(statement))
        result = self._ask(
            lambda ask: wire.LeaseRun(ask=ask, lease=self._number, statement=encoded)
        )
        return cast("SqlResult", _decode(result, SqlResult))

    def commit(self) -> None:
        channel = self._channel
        try:
            with channel._changed:
                reply, data = channel._core.commit_lease(self._number)
                if channel._sock is None:
                    channel._connected(self._deadline)  # which sends it again
                else:
                    channel._send(data)
            channel._await(reply, self._deadline)
        finally:
            self._ended()

    def rollback(self) -> None:
        try:
            self._ask(lambda ask: wire.LeaseRollback(ask=ask, lease=self._number))
        finally:
            with self._channel._changed:
                self._channel._core.unreserve(self._number)
            self._ended()

    def _ended(self) -> None:
        # An expired lease must not take the mark of the one that came after it.
        holder = self._channel._lease_holder
        if holder is not None and holder[1] is self:
            self._channel._lease_holder = None

    def _ask(self, make: Callable[[int], msgspec.Struct]) -> bytes:
        channel = self._channel
        with channel._changed:
            if channel._sock is not self._sock:
                raise DeadlineExceeded("the connection was lost: the transaction was rolled back")
            reply, data = channel._core.ask(make)
            channel._send(data)
        try:
            return channel._await(reply, self._deadline)
        except ConnectionResetError:
            raise DeadlineExceeded(
                "the connection was lost: the transaction was rolled back"
            ) from None


class _Channels:
    """The channels of this process, one per database."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._channels: dict[Path, Channel] = {}
        os.register_at_fork(after_in_child=self._after_fork)
        atexit.register(self._close_all)

    def share(self, place: Place, patience: float) -> Channel:
        """The channel to the actor of *place*, which is started if there is none."""
        with self._guard:
            channel = self._channels.get(place.db)
            if channel is None:
                channel = self._channels[place.db] = Channel(place)
            channel._users += 1
        try:
            with channel._changed:
                channel._connected(time.monotonic() + patience)
        except BaseException:
            self.release(channel)
            raise
        return channel

    def release(self, channel: Channel) -> None:
        with self._guard:
            channel._users -= 1
            if channel._users > 0:
                return
            self._channels.pop(channel._place.db, None)
        channel.close()

    def _close_all(self) -> None:
        with self._guard:
            channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            with contextlib.suppress(Exception):
                channel.close()

    def _after_fork(self) -> None:
        self._guard = threading.Lock()
        for channel in self._channels.values():
            channel.after_fork()


_channels = _Channels()
share = _channels.share
