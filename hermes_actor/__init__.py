"""hermes-actor: one writer that serves every process of an agent.

``SessionDB`` is all that most programs need. Importing it costs little: the actor, the command
line and everything they use are imported by themselves when they are needed.
"""

from hermes_actor._version import __version__
from hermes_actor.session_db import SessionDB

__all__ = ["SessionDB", "__version__"]
