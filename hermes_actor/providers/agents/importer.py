"""The importer of an OpenHermit database: reads its tables, and writes through the registry."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, MetaData, Text, cast, func, inspect, literal, select
from sqlalchemy import Table as ServerTable
from sqlalchemy.exc import SQLAlchemyError

from hermes_actor.agent_store.migration import Copied, copy_rows
from hermes_actor.agents.foreign_rows import converted
from hermes_actor.agents.rows import Row
from hermes_actor.agents.tables import TABLES, Table
from hermes_actor.errors import BadConfig, CannotMigrate, RequestError
from hermes_actor.providers.resolve import choose_by_url, is_url, masked, provider_class
from hermes_actor.providers.sql.dialect import Settings

if TYPE_CHECKING:
    from hermes_actor.agent_store.store import AgentStore

__all__ = ["import_database"]

_ROWS_AT_ONCE, _BYTES_AT_ONCE = 1_000, 2**25


def import_database(url: str, target: AgentStore, *, dry_run: bool) -> dict[str, Copied]:
    """Take over the tables of *url*; return what became of the rows of each.

    The source is only read, and rows whose key exists in the target stay as they are, so it can be
    run again. Ciphertexts are kept: the same key opens them. Raises :class:`CannotMigrate` if the
    database has none of the tables.
    """
    if not is_url(url) or choose_by_url(url).file is not None:
        raise BadConfig(f"not the URL of a database server: {url[:80]!r}")
    dialect: Any = provider_class(choose_by_url(url).name)._dialect  # type: ignore[attr-defined]
    engine = dialect(Settings()).engine(url)
    try:
        with _readable(url), engine.connect() as conn:
            names = set(inspect(conn).get_table_names())
            if not {"agents", "sessions", "session_events"} <= names:
                raise CannotMigrate("the database has no tables of OpenHermit; nothing was changed")
            return {
                table.name: _table(conn, table, target, dry_run)
                for table in TABLES.values()
                if table.name in names
            }
    finally:
        engine.dispose()


@contextmanager
def _readable(url: str) -> Iterator[None]:
    """Raise :class:`CannotMigrate` for what the server of the source refuses inside the block."""
    try:
        yield
    except (SQLAlchemyError, NotImplementedError) as error:
        said = masked(str(getattr(error, "orig", None) or error)).strip().partition("\n")[0]
        raise CannotMigrate(
            f"{masked(url)} cannot be read: {said}; what was imported before stays, and the import"
            " can be run again"
        ) from error


def _table(conn: Connection, table: Table, target: AgentStore, dry_run: bool) -> Copied:
    bad: list[str] = []
    rows = _converted(conn, table, bad)
    if dry_run:
        return Copied(sum(1 for _ in rows), 0, bad)
    done = copy_rows(target, table, rows)
    return done._replace(left_out=bad + done.left_out)


def _at_once(conn: Connection, source: ServerTable) -> int:
    """Return how many rows may be in memory together, by the largest of them (G8)."""
    sizes = (func.coalesce(func.octet_length(cast(one, Text)), 0) for one in source.columns)
    largest = conn.execute(select(func.max(sum(sizes, literal(0))))).scalar()
    return max(1, min(_ROWS_AT_ONCE, _BYTES_AT_ONCE // max(1, int(largest or 0))))


def _converted(conn: Connection, table: Table, bad: list[str]) -> Iterator[Row]:
    source = ServerTable(table.name, MetaData(), autoload_with=conn)
    options = {"stream_results": True, "max_row_buffer": _at_once(conn, source)}
    found = conn.execution_options(**options).execute(select(source))
    for row in found.mappings():
        try:
            yield converted(table, dict(row))
        except (
            RequestError, TypeError, AttributeError, LookupError, ValueError, OverflowError,
            RecursionError,
        ) as error:  # fmt: skip
            key = ", ".join(str(row.get(name)) for name in table.whole_key)
            bad.append(f"{key}: {error}")
