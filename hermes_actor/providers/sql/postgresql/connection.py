"""Connections to PostgreSQL: from an address, or out of a pool that the caller has made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import Engine, NullPool, create_engine

from hermes_actor.errors import BadConfig

if TYPE_CHECKING:
    from hermes_actor.providers.sql.dialect import Settings

__all__ = ["engine_of_pool", "engine_of_url"]

_DIALECT = "postgresql+psycopg://"


def engine_of_url(url: str, settings: Settings) -> Engine:
    """Return an engine with a pool of its own, without connecting. Raises :class:`BadConfig`."""
    parameters = _parameters(url)
    return create_engine(
        _DIALECT, creator=lambda: _connect(parameters, settings), **settings.engine_options()
    )


def engine_of_pool(pool: Any) -> Engine:
    """Return an engine on a ready pool: SQLAlchemy's, or one with ``getconn`` and ``putconn``."""
    if not hasattr(pool, "getconn"):
        return create_engine(_DIALECT, pool=pool, hide_parameters=True)
    engine = create_engine(_DIALECT, creator=pool.getconn, poolclass=NullPool, hide_parameters=True)
    # To close a connection is to give it back.
    engine.dialect.do_close = engine.dialect.do_terminate = pool.putconn  # type: ignore[method-assign]
    return engine


def _connect(parameters: Mapping[str, Any], settings: Settings) -> psycopg.Connection[Any]:
    conn = psycopg.connect(
        **{
            "connect_timeout": max(2, round(settings.connect_timeout_seconds)),
            "application_name": "hermes-actor",
            "tcp_user_timeout": round(settings.statement_timeout_seconds * 1000),
            **parameters,
        },
        autocommit=True,
    )
    try:
        conn.execute(
            "SELECT set_config('statement_timeout', %s, false),"
            " set_config('synchronous_commit', %s, false),"
            " set_config('default_transaction_isolation', 'read committed', false),"
            " set_config('client_encoding', 'UTF8', false)",
            (
                str(round(settings.statement_timeout_seconds * 1000)),
                settings.synchronous_commit,
            ),
        )
        conn.autocommit = False
    except BaseException:
        conn.close()
        raise
    return conn


def _parameters(url: str) -> dict[str, Any]:
    """Return the libpq parameters of a URL or of a ``key=value`` connection string."""
    for scheme in ("postgresql+psycopg://", "postgres+psycopg://"):
        if url.startswith(scheme):
            url = "postgresql://" + url[len(scheme) :]
    try:
        parameters: dict[str, Any] = conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        # What libpq says may repeat a part of the text, and a password can be in any part.
        raise BadConfig("the address of the PostgreSQL server cannot be understood") from (
            None if url else error
        )
    if "," in str(parameters.get("host", "")):
        # Of several servers only the one that takes changes will do.
        parameters.setdefault("target_session_attrs", "read-write")
    return parameters
