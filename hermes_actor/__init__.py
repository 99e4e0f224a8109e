"""hermes-actor: one writer that serves every process of an agent.

``SessionDB`` is all that most programs need; ``connect`` is for programs that are written for
``sqlite3``. Importing the package costs little: the asynchronous twin, the
actor, the command line and everything they use are imported by themselves when they are needed.
The names of this module are looked up when they are used first, so that a command that only prints
its help does not pay for a store.
"""

from typing import TYPE_CHECKING, Any

from hermes_actor._version import __version__

if TYPE_CHECKING:
    from hermes_actor import dbapi
    from hermes_actor.agent_store.async_store import AsyncAgentStore
    from hermes_actor.agent_store.scheduler import Scheduler
    from hermes_actor.agent_store.store import AgentStore
    from hermes_actor.async_session_db import AsyncSessionDB
    from hermes_actor.dbapi import connect
    from hermes_actor.session_db import SessionDB
    from hermes_protocol.messages import Changed, Gap

__all__ = [
    "AgentStore", "AsyncAgentStore", "AsyncSessionDB", "Changed", "Gap", "Scheduler", "SessionDB",
    "__version__", "connect", "dbapi",
]  # fmt: skip


_HOMES = {
    "AgentStore": "hermes_actor.agent_store.store",
    "AsyncAgentStore": "hermes_actor.agent_store.async_store",
    "AsyncSessionDB": "hermes_actor.async_session_db",
    "Changed": "hermes_protocol.messages",
    "Gap": "hermes_protocol.messages",
    "Scheduler": "hermes_actor.agent_store.scheduler",
    "SessionDB": "hermes_actor.session_db",
    "connect": "hermes_actor.dbapi",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES and name != "dbapi":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    if name == "dbapi":
        return importlib.import_module("hermes_actor.dbapi")
    found = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return found
