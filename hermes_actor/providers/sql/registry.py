"""Registry of a server.

All functions take a :class:`ServerConnection` inside an open transaction, and no clock but what the
operation carries. The counterparts for files are in ``hermes_actor/store``.
"""

from __future__ import annotations

from hermes_actor.providers.sql.connection import ServerConnection
from hermes_actor.store.registry import Registry

__all__ = ["ANSWER", "APPLY", "answers", "applies"]

_servers: Registry[ServerConnection] = Registry()
APPLY, ANSWER = _servers.apply, _servers.answer
applies, answers = _servers.applies, _servers.answers
