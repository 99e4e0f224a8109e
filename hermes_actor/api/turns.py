"""Turns: the exclusive right to write one conversation, taken, kept and given back by a client.

A turn is a row of the store with a token that only grows. Writes that carry the token are refused
as soon as another one has taken the turn. The waiting side looks at the row, and at the process of
its holder: a holder that was killed is noticed by its end, and not by a time that runs out.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

import hermes_protocol.operations as ops
from hermes_actor.errors import HermesActorError, TurnBusy, TurnLost
from hermes_actor.store import queries

# Imported for its answers.
from hermes_actor.store.gateway import reads
from hermes_actor.store.gateway.tables import Held
from hermes_actor.system.process_identity import has_ended, own_place, start_of
from hermes_actor.system.processes import ProcessEnd

if TYPE_CHECKING:
    from hermes_actor.api.base import Methods

__all__ = ["AsyncTurn", "Turn", "TurnRequest", "ended_turn"]

_SUBJECTS = (reads,)

_FIRST_LOOK_SECONDS = 0.01
_LONGEST_LOOK_SECONDS = 0.05


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
    """An attempt to take a turn, repeated until it succeeds or its time is over."""

    def __init__(
        self, db: Methods, session_id: str, holder: str, kind: str, wait: float, seconds: float
    ) -> None:
        self._db = db
        self._session_id = session_id
        self._fixed = {"session_id": session_id, "holder": holder, "kind": kind}
        self._fixed |= {"place": own_place()}
        self._seconds = seconds
        self._until = time.monotonic() + wait
        self._look = _FIRST_LOOK_SECONDS
        self.holder: Held | None = None
        """The turn of the other holder, as it was seen last."""

    def attempt(self) -> Turn | None:
        """Return the turn, or ``None`` if it must be waited for; raises :class:`TurnBusy`."""
        gone = 0
        for _ in range(2):
            try:
                return self._take(gone)
            except TurnBusy as busy:
                self.holder = self._db._query(queries.turn_of_session, self._session_id)
                gone = ended_turn(self.holder)
                if gone or self.holder is None:
                    continue  # free by now
                if time.monotonic() >= self._until:
                    raise busy
                return None
        return None

    def wait(self) -> Turn:
        """Take the turn, waiting for its holder; raises :class:`TurnBusy` when the time is over."""
        while (turn := self.attempt()) is None:
            self._pause()
        return turn

    def interval(self) -> float:
        """Return the time until the next look, which grows, but never beyond the end."""
        self._look = min(self._look * 1.5, _LONGEST_LOOK_SECONDS)
        return max(0.001, min(self._look, self._until - time.monotonic()))

    def _take(self, gone: int) -> Turn:
        pid = os.getpid()
        operation = ops.TurnTake(
            now=time.time(),
            seconds=self._seconds,
            pid=pid,
            started=start_of(pid),
            gone=gone,
            **self._fixed,
        )
        return Turn(self._db, self._db._submit(operation), self._seconds)

    def _pause(self) -> None:
        seconds, held = self.interval(), self.holder
        if held is None or held.place != own_place() or held.pid == os.getpid():
            time.sleep(seconds)
            return
        # Woken by the end of the holder's process, if that comes first.
        with ProcessEnd(held.pid) as end:
            end.wait(seconds)


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
        while self._turn is None:
            self._turn = await self._db._run(request.attempt)
            if self._turn is None:
                await anyio.sleep(request.interval())
        return self._turn

    async def __aexit__(self, *error: object) -> None:
        import anyio

        assert self._turn is not None
        turn = self._turn
        # Also when the task is cancelled: the next message of the conversation waits for it.
        with anyio.CancelScope(shield=True):
            await self._db._run(lambda: turn.__exit__(*error))
