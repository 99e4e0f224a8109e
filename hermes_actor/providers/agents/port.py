"""The way to an agent store on a server: receipts, retries and the pool are those of sessions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Engine, insert, select, text, update
from sqlalchemy.exc import IntegrityError

from hermes_actor.agent_store.ports import Port
from hermes_actor.agents.changes import apply
from hermes_actor.agents.notes import change_of
from hermes_actor.agents.rows import Rows
from hermes_actor.agents.schema import create_statements
from hermes_actor.agents.tables import VERSION
from hermes_actor.errors import Closed, Conflict, IncompatibleFormat
from hermes_actor.paths import default_home
from hermes_actor.providers.agents.rows import rows_of
from hermes_actor.providers.resolve import masked, provider_class
from hermes_actor.providers.sql.connection import ServerConnection
from hermes_actor.providers.sql.database import share
from hermes_actor.providers.sql.dialect import ServerDialect, Settings
from hermes_actor.providers.sql.port import ServerPort
from hermes_actor.providers.sql.receipts import About, Served
from hermes_actor.providers.sql.tables import own_meta

if TYPE_CHECKING:
    from hermes_actor.client.interfaces import ChangeStream
    from hermes_protocol.operations import Operation

__all__ = ["open_server"]

R = TypeVar("R")

_VERSION = select(own_meta.c.value).where(own_meta.c.key == "agents_version")


def _ensure(engine: Engine, dialect: ServerDialect) -> None:
    """Create the tables that are missing; one process at a time does it."""
    with engine.connect() as conn:
        if _stored_version(conn, dialect) == VERSION:
            return
    with dialect.schema_lock(engine) as conn:
        stored = _stored_version(conn, dialect)
        if stored is not None and stored > VERSION:
            raise IncompatibleFormat(
                f"the agent store has tables of version {stored}, and this program knows up to"
                f" {VERSION}; update hermes-actor"
            )
        dialect.create_common(conn)
        rows = rows_of(ServerConnection(conn, dialect))
        for statement in create_statements(rows.dialect):
            conn.execute(text(rows.spelled(statement)))
        if stored is None:
            conn.execute(insert(own_meta).values(key="agents_version", value=str(VERSION)))
        else:
            number = update(own_meta).where(own_meta.c.key == "agents_version")
            conn.execute(number.values(value=str(VERSION)))


def _stored_version(conn: Any, dialect: ServerDialect) -> int | None:
    if not dialect.has_table(conn, own_meta.name):
        return None
    value = conn.execute(_VERSION).scalar()
    return None if value is None else int(value)


def _apply(conn: ServerConnection, operation: Operation[Any]) -> Any:
    try:
        return apply(rows_of(conn), operation)
    except IntegrityError as error:
        # A race that a constraint has decided: rules are looked at before they can fail.
        raise Conflict("another change of the same rows was quicker; read them again") from error


def _about(operation: Operation[Any]) -> About:
    note = change_of(operation, 0)
    # One column holds what a change is about; a blank cannot be in the name of a table.
    return About(note.op, f"{note.table or ''} {note.agent_id or ''}")


SERVED = Served("agents", _ensure, _apply, _about)


class _Server(Port):
    """A store on a server."""

    def __init__(self, dialect: ServerDialect, url: str, timeout: float) -> None:
        self.address, self.home = masked(url), default_home()
        self._server: ServerPort | None = ServerPort(share(url, dialect, timeout, SERVED))

    def submit(self, operation: Operation[R], timeout: float) -> R:
        return self._opened().submit(operation, timeout)

    def ask(self, question: Callable[[Rows], R], timeout: float) -> R:
        def run(conn: ServerConnection) -> R:
            return question(rows_of(conn))

        return self._opened().database.read(run, (), timeout, False)

    def newest_change(self, timeout: float) -> int:
        """Return the ``commit_no`` of the newest change; see :meth:`ServerPort.newest_change`."""
        return self._opened().newest_change(timeout)

    def subscribe(self, after: int | None, timeout: float) -> ChangeStream:
        return self._opened().subscribe(after, timeout)

    def close(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.release()

    def _opened(self) -> ServerPort:
        if self._server is None:
            raise Closed("this AgentStore is closed")
        return self._server


def open_server(name: str, url: str, timeout: float) -> Port:
    """Open the agent store at *url*, and create its tables if there are none."""
    dialect = provider_class(name)._dialect  # type: ignore[attr-defined]
    return _Server(dialect(Settings()), url, timeout)
