"""Rules of turns: one holder for each conversation, and a token that every write is compared with.

A turn ends when it is released, when its time is over, or when a caller has seen that the process
of its holder has ended. Nothing is kept in the memory of a writer, so a turn outlives its actor,
and so does the line of those who wait for one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hermes_protocol.operations as ops
from hermes_actor.errors import TurnBusy, TurnLost, TurnRequired
from hermes_actor.store.gateway.tables import Held, Tables, Waiter

__all__ = ["ALL_SOURCES", "CHANGES", "busy", "fence", "fence_operation", "holds", "require_turn"]

ALL_SOURCES = "*"
"""Stands for every source where a turn is required."""

_FREE = (ops.SessionReopen, ops.SessionTitle)
_WRITES = (
    ops.MessageAppend, ops.MessageOnce, ops.MessagesReplace, ops.MessagesClear, ops.SessionEnd,
    ops.SessionContinue, ops.SessionTokens, ops.SessionPrompt, *_FREE,
)  # fmt: skip
"""Operations on one conversation that can carry a turn."""


def take(tables: Tables, op: ops.TurnTake) -> ops.Turn:
    """Give the turn to the caller.

    Raises:
        TurnBusy: another one holds it, or waits for it and comes first.
    """
    root, tip = tables.root(op.session_id), tables.tip(op.session_id)
    held = tables.turn(root)
    if held is not None and held.token != op.gone and held.until > op.now:
        raise busy(op.session_id, held, op.now)
    first = tables.first_waiter(root, op.now)
    if first is not None and first.ticket != op.ticket:
        raise TurnBusy(
            f"{first.holder or 'another program'} (pid {first.pid}) waits for the turn of session"
            f" {op.session_id!r}, and comes first"
        )
    if op.ticket:
        tables.remove_waiter(op.ticket)
    if held is not None:
        tables.remove_turn(held.token)
    turn = Held(
        0, root, tip, op.holder, op.kind, op.pid, op.started, op.place, op.now, op.now + op.seconds
    )
    return ops.Turn(token=tables.add_turn(turn), root=root, session_id=tip)


def wait(tables: Tables, op: ops.TurnWait) -> int:
    """Put the caller at the end of the line for a turn. Those whose time is over are removed."""
    tables.remove_late_waiters(op.now)
    root = tables.root(op.session_id)
    return tables.add_waiter(
        Waiter(
            0, root, op.session_id, op.holder, op.kind, op.pid, op.started, op.place, op.now,
            op.now + op.seconds,
        )
    )  # fmt: skip


def leave(tables: Tables, op: ops.TurnLeave) -> bool:
    """Take a ticket out of its line: its holder gave up, or has ended, or does not come."""
    return tables.remove_waiter(op.ticket)


def busy(session_id: str, held: Held | None, now: float) -> TurnBusy:
    """Return the error for a turn that another one holds; ``None``: it has just ended."""
    if held is None:
        return TurnBusy(f"another process has the turn of session {session_id!r}")
    return TurnBusy(
        f"{held.holder or 'another program'} (pid {held.pid}) has had the turn of session"
        f" {session_id!r} for {max(0.0, now - held.taken_at):.0f} s"
    )


def renew(tables: Tables, op: ops.TurnRenew) -> None:
    """Put off the end of a turn. Raises :class:`TurnLost` if it has ended."""
    held = tables.turn_by_token(op.token)
    if held is None or held.until <= op.now:
        raise _lost(op.token)
    tables.set_turn(op.token, until=op.now + op.seconds)


def release(tables: Tables, op: ops.TurnRelease) -> bool:
    """End a turn; false if it had ended before."""
    return tables.remove_turn(op.token)


def steal(tables: Tables, op: ops.TurnSteal) -> bool:
    """End the turn of a conversation for an operator."""
    held = tables.turn(tables.root(op.session_id))
    return held is not None and tables.remove_turn(held.token)


def holds(tables: Tables, session_id: str, now: float) -> bool:
    """Return True if the conversation of a session has a turn."""
    held = tables.turn(tables.root(session_id))
    return held is not None and held.until > now


def fence(tables: Tables, session_id: str, token: int, now: float) -> None:
    """Raise :class:`TurnLost` unless *token* is the turn of this session's conversation."""
    held = tables.turn_by_token(token)
    if held is None or held.until <= now:
        raise _lost(token)
    # The walk to the root only for a session that the turn does not name.
    if session_id not in (held.session_id, held.root) and tables.root(session_id) != held.root:
        raise TurnLost(f"turn {token} is for session {held.session_id!r}, not for {session_id!r}")


def fence_operation(tables: Tables, op: Any) -> None:
    """Compare the token of an operation on a session; those on routes do it by their own rules."""
    session = _session_of(op)
    if session is not None:
        fence(tables, session, op.turn, _time_of(op))


def require_turn(tables: Tables, op: Any, sources: frozenset[str]) -> None:
    """Raise :class:`TurnRequired` for a write of a conversation of *sources* without a turn.

    The switches of operators stay free: titles, reopening, and all that leads a chat elsewhere.
    """
    session = None if isinstance(op, _FREE) else _session_of(op)
    source = None if session is None else tables.source(session)
    if source is not None and (source in sources or ALL_SOURCES in sources):
        raise TurnRequired(
            f"session {session!r} of {source!r} is written under a turn only"
            " (turns.required in config.yaml): take one with db.turn(), and pass it as turn="
        )


def _session_of(op: Any) -> str | None:
    """Return the session that an operation writes; ``None`` if it is not about one conversation."""
    if not isinstance(op, _WRITES):
        return None
    for name in ("session_id", "id", "old"):
        found = getattr(op, name, None)
        if found is not None:
            return str(found)
    return None


def _time_of(op: Any) -> float:
    """Return when a change was made, by the clock that turns go by if the operation says that."""
    at: float = getattr(op, "at", 0.0)
    if at:
        return at
    if isinstance(op, ops.MessageAppend | ops.MessageOnce):
        return op.message.timestamp
    if isinstance(op, ops.MessagesReplace):
        return op.messages[0].timestamp if op.messages else 0.0
    if isinstance(op, ops.SessionEnd):
        return op.ended_at
    if isinstance(op, ops.SessionTokens):
        return op.started_at
    if isinstance(op, ops.SessionContinue):
        return op.now
    return 0.0  # of a client that does not send it: the token alone is compared


def _lost(token: int) -> TurnLost:
    return TurnLost(
        f"turn {token} has ended: another process may be answering; nothing was written"
    )


CHANGES: dict[type[ops.Operation[Any]], Callable[[Any, Any], Any]] = {
    ops.TurnTake: take,
    ops.TurnWait: wait,
    ops.TurnLeave: leave,
    ops.TurnRenew: renew,
    ops.TurnRelease: release,
    ops.TurnSteal: steal,
}
"""The rule of each operation on turns."""
