"""Registry of the changes of an agent store.

A function takes rows inside an open transaction and an operation; no clock, no randomness, no
file, no transaction control. The same function serves files and servers.
"""

from __future__ import annotations

from hermes_actor.agents.rows import Rows
from hermes_actor.store.registry import Registry

__all__ = ["APPLY", "applies"]

_agents: Registry[Rows] = Registry()
APPLY, applies = _agents.apply, _agents.applies
