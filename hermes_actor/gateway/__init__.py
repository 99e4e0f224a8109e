"""Gateway session tracking: every chat has exactly one session, through resets and crashes.

This is what a gateway to chat platforms needs of a store, without any platform: session keys, reset
policies, a :class:`SessionStore` with its awaitable twin, turns, derived files, an expiry watcher
and the commands of a chat. The names are looked up when they are used first.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hermes_actor.gateway.async_store import AsyncSessionStore
    from hermes_actor.gateway.commands import Reply, handle
    from hermes_actor.gateway.config import GatewayConfig, load_gateway_config
    from hermes_actor.gateway.contexts import SessionContext, build_session_context
    from hermes_actor.gateway.entries import SessionEntry
    from hermes_actor.gateway.hooks import Hooks
    from hermes_actor.gateway.keys import build_session_key, is_shared_multi_user_session
    from hermes_actor.gateway.policies import SessionResetPolicy
    from hermes_actor.gateway.sources import SessionSource
    from hermes_actor.gateway.store import SessionStore
    from hermes_actor.gateway.turns import ChatTurn
    from hermes_actor.gateway.watcher import Watcher

__all__ = [
    "AsyncSessionStore", "ChatTurn", "GatewayConfig", "Hooks", "Reply", "SessionContext",
    "SessionEntry", "SessionResetPolicy", "SessionSource", "SessionStore", "Watcher",
    "build_session_context", "build_session_key", "handle", "is_shared_multi_user_session",
    "load_gateway_config",
]  # fmt: skip

_HOMES = {
    "AsyncSessionStore": "async_store",
    "ChatTurn": "turns",
    "GatewayConfig": "config",
    "Hooks": "hooks",
    "Reply": "commands",
    "SessionContext": "contexts",
    "SessionEntry": "entries",
    "SessionResetPolicy": "policies",
    "SessionSource": "sources",
    "SessionStore": "store",
    "Watcher": "watcher",
    "build_session_context": "contexts",
    "build_session_key": "keys",
    "handle": "commands",
    "is_shared_multi_user_session": "keys",
    "load_gateway_config": "config",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    home = importlib.import_module(f"{__name__}.{_HOMES[name]}")
    found = globals()[name] = getattr(home, name)
    return found
