"""Subscription to the changes of a store on a server."""

from __future__ import annotations

import logging
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING

from hermes_actor.errors import Closed
from hermes_actor.providers.sql.dialect import Cursor, Step
from hermes_protocol.messages import Changed, Gap

if TYPE_CHECKING:
    from hermes_actor.providers.sql.connection import ServerConnection
    from hermes_actor.providers.sql.database import Database

__all__ = ["ServerChanges"]

_log = logging.getLogger("hermes_actor.providers")

_AT_ONCE = 500
_LOOK_EVERY_SECONDS = 1.0
"""Longest time until a change is seen that was not notified: it began before the subscription."""


def _change(step: Step) -> Changed:
    """Return the notification of a receipt, of either kind of store."""
    if not step.op.startswith("agents."):
        return Changed(commit_no=step.commit_no, op=step.op, session_id=step.session_id)
    table, _, agent_id = (step.session_id or " ").partition(" ")
    return Changed(
        commit_no=step.commit_no, op=step.op, table=table or None, agent_id=agent_id or None
    )


class ServerChanges:
    """Changes of a store, read from its receipts.

    One thread takes and waits; any thread may wake and close.
    """

    def __init__(self, database: Database, after: int | None, timeout: float) -> None:
        self._database = database
        self._timeout = timeout
        self._news: deque[Changed | Gap] = deque()
        self._stop = threading.Event()
        self._heard = threading.Event()
        self._listener = threading.Thread(
            target=_listen, args=(database, self._heard, self._stop), daemon=True, name="changes"
        )
        self._place = self._begin(after)
        self._listener.start()
        # Who forgets to close must not leave a thread and a connection behind.
        self._forget = weakref.finalize(self, _end, self._stop, self._heard)

    def take(self) -> Changed | Gap | None:
        """Return the next change or gap, ``None`` if there is none; may ask the server.

        Raises :class:`Closed` after :meth:`close`.
        """
        if self._stop.is_set():
            raise Closed("this subscription is closed")
        if not self._news:
            # Cleared before looking: what comes after the look is heard again.
            self._heard.clear()
            steps: list[Step] = self._database.read(
                _next_steps, (self._place,), self._timeout, True
            )
            for step in steps:
                self._place = step.place
                if step.op.startswith("agents.") == (self._database.served.name == "agents"):
                    self._news.append(_change(step))
        return self._news.popleft() if self._news else None

    def wait(self, seconds: float | None) -> None:
        """Wait for a notification, at most *seconds* and never longer than a second."""
        limit = _LOOK_EVERY_SECONDS if seconds is None else min(seconds, _LOOK_EVERY_SECONDS)
        self._heard.wait(limit)

    def wake(self) -> None:
        """Have :meth:`wait` return. Safe from any thread."""
        self._heard.set()

    def close(self) -> None:
        """End the subscription and its listening thread. Idempotent."""
        self._forget()

    def _begin(self, after: int | None) -> Cursor:
        place, oldest, newest = self._database.read(_place_after, (after,), self._timeout, False)
        if after is not None and after > newest:
            # The number is yet to come: this is not the store in which it was seen.
            self._news.append(Gap(after=after, through=newest))
        elif after is not None and after < oldest - 1:
            self._news.append(Gap(after=after, through=oldest - 1))
        return place


def _place_after(conn: ServerConnection, after: int | None) -> tuple[Cursor, int, int]:
    oldest, newest = conn.dialect.known_changes(conn)
    inside = None if after is not None and after > newest else after
    return conn.dialect.place_after(conn, inside), oldest, newest


def _next_steps(conn: ServerConnection, place: Cursor) -> list[Step]:
    return conn.dialect.changes_after(conn, place, _AT_ONCE)


def _listen(database: Database, heard: threading.Event, stop: threading.Event) -> None:
    """Run the listening thread: reconnect after a loss, and fetch what was missed."""
    while not stop.is_set():
        try:
            database.dialect.listen(database.engine, heard, stop)
        except Exception as error:
            # Whatever it is, followers look by themselves every second until it is over.
            _log.debug("listening for changes failed: %s", error)
            stop.wait(_LOOK_EVERY_SECONDS)
        heard.set()


def _end(stop: threading.Event, heard: threading.Event) -> None:
    stop.set()
    heard.set()
