"""An agent store on a server: the same changes and questions, over SQLAlchemy connections."""

from __future__ import annotations

from hermes_actor.providers.agents.importer import import_database
from hermes_actor.providers.agents.port import open_server

__all__ = ["import_database", "open_server"]
