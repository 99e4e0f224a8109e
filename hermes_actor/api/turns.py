"""Turns: the exclusive right to write one conversation, taken, kept and given back by a client.

A turn is a row of the store with a token that only grows. Writes that carry the token are refused
as soon as another one has taken the turn. The waiting side stands in a line and looks at the row,
and at the process of its holder: one that was killed is noticed by its end, and not by a time that
runs out.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

import hermes_protocol.operations as ops
from hermes_actor.errors import HermesActorError, TurnBusy, TurnLost, Unsupported
from hermes_actor.store import queries

# Imported for its answers.
from hermes_actor.store.gateway import reads
from hermes_actor.store.gateway.tables import Held, Waiter
from hermes_actor.system.process_identity import has_ended, own_place, start_of
from hermes_actor.system.processes import ProcessEnd

if TYPE_CHECKING:
    from hermes_actor.api.base import Methods

__all__ = ["AsyncTurn", "Turn", "TurnRequest", "ended_turn"]

_SUBJECTS = (reads,)

_FIRST_LOOK_SECONDS = 0.01
_LONGEST_LOOK_SECONDS = 0.05
_CLAIM_SECONDS = 2.0
"""After this long the first of a line that leaves a free turn alone is passed over: many looks."""


class Turn:
    """A turn that was taken: ``with db.turn(session_id) as turn``. Leaving the block ends it.

    Pass it as ``turn=`` to the calls that write the conversation. A forked child holds nothing:
    there every use raises :class:`TurnLost`.
    """

    def __init__(self, db: Methods, taken: ops.Turn, seconds: float) -> None:
        self._db = db
        self._pid = os.getpid()
        self._seconds = seconds
        self.token = taken.token
        self.root = taken.root
        self.session_id = taken.session_id
        """The latest session of the conversation when the turn was taken."""

    def __int__(self) -> int:
        if os.getpid() != self._pid:
            raise TurnLost(f"turn {self.token} belongs to process {self._pid}, not to its child")
        return self.token

    def renew(self, seconds: float | None = None) -> None:
        """Keep the turn for *seconds* from now on, as long as it was taken for by default.

        Raises:
            TurnLost: it has ended.
        """
        length = self._seconds if seconds is None else seconds
        self._db._submit(ops.TurnRenew(token=int(self), now=time.time(), seconds=length))

    def release(self) -> bool:
        """End the turn; return False if it had ended before."""
        return self._db._submit(ops.TurnRelease(token=int(self)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if os.getpid() != self._pid:
            return
        if kind is None:
            self.release()
            return
        # The error of the block is the one to see. The turn ends with this process at the latest.
        with suppress(HermesActorError):
            self.release()


class TurnRequest:
    """An attempt to take a turn, repeated until it succeeds or its time is over.

    Those who wait stand in a line that the store keeps, and take the turn in the order in which
    they came. A first one whose process has ended is taken out by the others, and so is one that
    leaves a free turn alone: a process that was stopped stands at the end when it goes on.
    """

    def __init__(
        self, db: Methods, session_id: str, holder: str, kind: str, wait: float, seconds: float
    ) -> None:
        self._db = db
        self._session_id = session_id
        self._fixed: dict[str, Any] = {"session_id": session_id, "holder": holder, "kind": kind}
        self._fixed |= {"place": own_place()}
        self._seconds = seconds
        self._until = time.monotonic() + wait
        self._look = _FIRST_LOOK_SECONDS
        self._ticket = 0
        self._is_first = False
        self._tried = False
        self._unclaimed = (0, 0.0)
        """The ticket that leaves a free turn alone, and since when."""
        self.holder: Held | None = None
        """The turn of the other holder, as it was seen last."""

    def attempt(self) -> Turn | None:
        """Return the turn, or ``None`` if it must be waited for; raises :class:`TurnBusy`."""
        if not self._tried:
            self._tried = True
            with suppress(TurnBusy):
                return self._take(0)
        while True:
            self._stand_in_line()
            line = self._db._query(queries.turn_line, self._session_id, self._ticket, time.time())
            self.holder = line.held
            gone = ended_turn(line.held)
            is_free = line.held is None or bool(gone) or line.held.until <= time.time()
            if not line.is_listed:
                self._ticket = 0
            missing = self._missing(line.first, is_free)
            if missing:
                self._db._submit(ops.TurnLeave(ticket=missing))
                continue
            if is_free and (line.first is None or line.first.ticket == self._ticket):
                with suppress(TurnBusy):
                    return self._take(gone)
            if time.monotonic() >= self._until:
                return self._take(gone)  # its error names the holder of this moment
            self._note_place(line.first)
            return None

    def wait(self) -> Turn:
        """Take the turn, waiting for its holder; raises :class:`TurnBusy` when the time is over."""
        try:
            while (turn := self.attempt()) is None:
                self.pause()
        finally:
            self.leave()
        return turn

    def leave(self) -> None:
        """Stand in the line no longer; nothing happens if the turn was taken."""
        if self._ticket:
            # A ticket that stays because of an error is passed over when its time is over.
            with suppress(HermesActorError):
                self._db._submit(ops.TurnLeave(ticket=self._ticket))
            self._ticket = 0

    def interval(self) -> float:
        """Return the time until the next look, which grows, but never beyond the end."""
        self._look = min(self._look * 1.5, _LONGEST_LOOK_SECONDS)
        return max(0.001, min(self._look, self._until - time.monotonic()))

    def pause(self) -> None:
        """Wait until the next look, or until the holder's process ends."""
        seconds, held = self.interval(), self.holder
        if held is None or held.place != own_place() or held.pid == os.getpid():
            time.sleep(seconds)
            return
        with ProcessEnd(held.pid) as end:
            end.wait(seconds)

    def _take(self, gone: int) -> Turn:
        operation = ops.TurnTake(
            **self._asking(self._seconds), gone=gone, ticket=self._ticket, **self._fixed
        )
        taken = Turn(self._db, self._db._submit(operation), self._seconds)
        self._ticket = 0
        return taken

    def _stand_in_line(self) -> None:
        left = self._until - time.monotonic()
        if self._ticket or left <= 0:
            return
        # An actor of an earlier build has no line: there the quickest is next.
        with suppress(Unsupported):
            operation = ops.TurnWait(**self._asking(left + _CLAIM_SECONDS), **self._fixed)
            self._ticket = self._db._submit(operation)

    @staticmethod
    def _asking(seconds: float) -> dict[str, Any]:
        pid = os.getpid()
        return {"now": time.time(), "seconds": seconds, "pid": pid, "started": start_of(pid)}

    def _missing(self, first: Waiter | None, is_free: bool) -> int:
        """Return the first ticket of the line if its owner will not come, else 0."""
        if first is None or first.ticket == self._ticket:
            return 0
        if has_ended(first.pid, first.started, first.place):
            return first.ticket
        if not is_free:
            self._unclaimed = (0, 0.0)
        elif self._unclaimed[0] != first.ticket:
            self._unclaimed = (first.ticket, time.monotonic())
        is_late = is_free and time.monotonic() - self._unclaimed[1] > _CLAIM_SECONDS
        return first.ticket if is_late else 0

    def _note_place(self, first: Waiter | None) -> None:
        is_first = first is not None and first.ticket == self._ticket
        if is_first and not self._is_first:
            self._look = _FIRST_LOOK_SECONDS
        self._is_first = is_first


def ended_turn(held: Held | None) -> int:
    """Return the token of a turn whose holder has ended; 0 if there is none, or it lives."""
    if held is None or not has_ended(held.pid, held.started, held.place):
        return 0
    return held.token


class AsyncTurn:
    """The awaitable form: ``async with db.turn(session_id) as turn``."""

    def __init__(self, db: Any, **request: Any) -> None:
        self._db = db
        self._request = request
        self._turn: Turn | None = None

    async def __aenter__(self) -> Turn:
        import anyio

        store = await self._db._store()
        request = await self._db._run(lambda: TurnRequest(store, **self._request))
        try:
            while self._turn is None:
                self._turn = await self._db._run(request.attempt)
                if self._turn is None:
                    await anyio.sleep(request.interval())
        finally:
            with anyio.CancelScope(shield=True):
                await self._db._run(request.leave)
        return self._turn

    async def __aexit__(self, *error: object) -> None:
        import anyio

        assert self._turn is not None
        turn = self._turn
        # Also when the task is cancelled: the next message of the conversation waits for it.
        with anyio.CancelScope(shield=True):
            await self._db._run(lambda: turn.__exit__(*error))
