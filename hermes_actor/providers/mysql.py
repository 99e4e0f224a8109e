"""Sessions on a MySQL or MariaDB server."""

from __future__ import annotations

from typing import ClassVar

from hermes_actor.providers.sql.dialect import ServerDialect
from hermes_actor.providers.sql.mysql.dialect import MySQLDialect
from hermes_actor.providers.sql.session_db import ServerSessionDB

__all__ = ["MySQLSessionDBProvider"]


class MySQLSessionDBProvider(ServerSessionDB):
    """The provider ``mysql``: ``mysql://user:password@host/database``."""

    provider: ClassVar[str] = "mysql"
    _dialect: type[ServerDialect] = MySQLDialect
