"""Vacuum on a server."""

from __future__ import annotations

from hermes_actor.providers.sql.connection import ServerConnection
from hermes_actor.providers.sql.registry import applies
from hermes_protocol.operations import Vacuum

__all__: list[str] = []


@applies(Vacuum)
def vacuum(_conn: ServerConnection, _op: Vacuum) -> None:
    """Do nothing: a server reuses the space of removed rows by itself."""
