"""SessionContext: what an agent may know about the place of a conversation."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from hermes_actor.gateway.config import GatewayConfig
from hermes_actor.gateway.entries import SessionEntry
from hermes_actor.gateway.keys import is_shared_multi_user_session
from hermes_actor.gateway.sources import SessionSource

__all__ = ["SessionContext", "build_session_context"]


@dataclass
class SessionContext:
    """The source of a message, the platforms of the gateway, and the session of the chat."""

    source: SessionSource
    connected_platforms: list[str] = field(default_factory=list)
    home_channels: dict[str, Any] = field(default_factory=dict)
    shared_multi_user_session: bool = False
    session_key: str = ""
    session_id: str = ""
    created_at: datetime | None = None
    updated_at: datetime | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the form for JSON: times as ISO texts or null."""
        times = {"created_at": self.created_at, "updated_at": self.updated_at}
        return {
            "source": self.source.to_dict(),
            "connected_platforms": list(self.connected_platforms),
            "home_channels": dict(self.home_channels),
            "shared_multi_user_session": self.shared_multi_user_session,
            "session_key": self.session_key,
            "session_id": self.session_id,
            **{name: None if one is None else one.isoformat() for name, one in times.items()},
        }


def build_session_context(
    source: SessionSource,
    config: GatewayConfig,
    entry: SessionEntry | None = None,
    connected_platforms: list[str] | None = None,
    home_channels: dict[str, Any] | None = None,
) -> SessionContext:
    """Return the context of a message from *source*, with the session of its *entry*."""
    context = SessionContext(
        source=source,
        connected_platforms=connected_platforms or [],
        home_channels=home_channels or {},
        shared_multi_user_session=is_shared_multi_user_session(
            source, config.group_sessions_per_user, config.thread_sessions_per_user
        ),
    )
    if entry is not None:
        context.session_key, context.session_id = entry.session_key, entry.session_id
        context.created_at, context.updated_at = entry.created_at, entry.updated_at
    return context
