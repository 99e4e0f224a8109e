"""hermes-actor: one writer that serves every process of an agent.

``SessionDB`` is all that most programs need. Importing it costs little: the asynchronous twin, the
actor, the command line and everything they use are imported by themselves when they are needed.
"""

from typing import TYPE_CHECKING, Any

from hermes_actor._version import __version__
from hermes_actor.session_db import SessionDB
from hermes_protocol.messages import Changed, Gap

if TYPE_CHECKING:
    from hermes_actor.async_session_db import AsyncSessionDB

__all__ = ["AsyncSessionDB", "Changed", "Gap", "SessionDB", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "AsyncSessionDB":
        from hermes_actor.async_session_db import AsyncSessionDB

        return AsyncSessionDB
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
