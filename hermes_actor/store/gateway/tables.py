"""Interface of the rules of routes and turns to a store; files and servers implement it."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import hermes_protocol.operations as ops

__all__ = [
    "Held",
    "RouteState",
    "SessionState",
    "StoredRoute",
    "Tables",
    "TranscriptState",
    "TurnLine",
    "UserMessage",
    "Waiter",
]

Entry = dict[str, Any]


class StoredRoute(NamedTuple):
    """The route of one chat: its entry, and the time of its last use."""

    key: str
    entry: Entry
    updated_at: float


class SessionState(NamedTuple):
    """End of a session and its reason; both ``None`` while it is open."""

    ended_at: float | None
    end_reason: str | None


class Held(NamedTuple):
    """A turn: who holds it, since when, and until when at most."""

    token: int
    root: str
    session_id: str
    holder: str
    kind: str
    pid: int
    started: float
    place: str
    taken_at: float
    until: float


class Waiter(NamedTuple):
    """A place in the line for a turn: who waits, since when, and until when at most."""

    ticket: int
    root: str
    session_id: str
    holder: str
    kind: str
    pid: int
    started: float
    place: str
    since: float
    until: float


class TurnLine(NamedTuple):
    """The turn of a conversation, who comes next, and whether the asking ticket is in the line."""

    held: Held | None
    first: Waiter | None
    is_listed: bool


class UserMessage(NamedTuple):
    """A stored message of a user, and whether the id of its platform is known."""

    id: int
    content: Any
    timestamp: float
    has_key: bool


class RouteState(NamedTuple):
    """All that decides about the next message of a chat, read from one state of the store."""

    route: StoredRoute
    tip: str
    session: SessionState | None
    last_message: float | None
    turn: Held | None


class TranscriptState(NamedTuple):
    """Progress of a transcript file: the last message in it, its lines and its bytes."""

    last_id: int
    lines: int
    bytes: int


class Tables(Protocol):
    """The rows of one store inside an open transaction."""

    def find(self, scope: str, key: str) -> StoredRoute | None:
        """Return a route; on a server it is locked until the transaction ends."""
        ...

    def lock(self, scope: str, key: str) -> None:
        """Keep other transactions from creating this route at the same time."""
        ...

    def put(self, scope: str, route: StoredRoute) -> None:
        """Insert or overwrite a route."""
        ...

    def drop(self, scope: str, key: str) -> None:
        """Remove a route, if there is one."""
        ...

    def used_since(self, scope: str, since: float) -> list[StoredRoute]:
        """Return the routes that were used at or after *since*."""
        ...

    def unused_since(self, scope: str, before: float) -> list[StoredRoute]:
        """Return the routes that were last used before *before*."""
        ...

    def routes_to(self, session_id: str) -> list[tuple[str, StoredRoute]]:
        """Return the routes of all scopes that lead to a session, each with its scope."""
        ...

    def session(self, session_id: str) -> SessionState | None:
        """Return the state of a session; ``None`` if it does not exist."""
        ...

    def source(self, session_id: str) -> str | None:
        """Return the source of a session; ``None`` if it does not exist."""
        ...

    def create_session(self, session_id: str, key: str, peer: ops.Peer, now: float) -> None:
        """Insert a session with the columns of its peer that the store has."""
        ...

    def end_session(self, session_id: str, now: float, reason: str) -> None:
        """End a session for good; an end by accident gets this reason instead."""
        ...

    def reopen_session(self, session_id: str) -> None:
        """Clear the end of a session."""
        ...

    def finalize_session(self, session_id: str) -> None:
        """Set the mark of an expired session, where sessions have one."""
        ...

    def last_message(self, session_id: str) -> float | None:
        """Return the time of the newest message of a session."""
        ...

    def newest_user_message(self, session_id: str) -> UserMessage | None:
        """Return the newest message of a user that is visible in a session."""
        ...

    def content_of(self, row: ops.MessageRow) -> Any:
        """Return the content of a message in the form in which the store keeps it."""
        ...

    def note_key(self, session_id: str, message_key: str, message_id: int) -> None:
        """Keep the id that a message has on its platform."""
        ...

    def live_session(self, key: str, source: str) -> str | None:
        """Return the newest session of a chat that is open, or ended by accident."""
        ...

    def tip(self, session_id: str) -> str:
        """Return the session in which a conversation goes on after compressions."""
        ...

    def root(self, session_id: str) -> str:
        """Return the session in which a conversation began."""
        ...

    def turn(self, root: str) -> Held | None:
        """Return the turn of a conversation."""
        ...

    def turn_by_token(self, token: int) -> Held | None:
        """Return the turn with this token, if it is still in the table."""
        ...

    def add_turn(self, held: Held) -> int:
        """Insert a turn and return its token, which is higher than any before."""
        ...

    def set_turn(self, token: int, *, until: float | None = None, session: str = "") -> None:
        """Change the end of a turn, or the session that it works in."""
        ...

    def remove_turn(self, token: int) -> bool:
        """Remove a turn; return False if it was not there."""
        ...

    def first_waiter(self, root: str, now: float) -> Waiter | None:
        """Return the first of those who wait for a turn, but for those whose time is over."""
        ...

    def is_waiting(self, ticket: int) -> bool:
        """Return True if a ticket is in a line."""
        ...

    def add_waiter(self, waiter: Waiter) -> int:
        """Insert a waiter and return its ticket, which is higher than any before."""
        ...

    def remove_waiter(self, ticket: int) -> bool:
        """Remove a waiter; return False if it was not there."""
        ...

    def remove_late_waiters(self, now: float) -> None:
        """Remove the waiters of all conversations whose time is over."""
        ...
