"""Settings of a gateway: ``config.yaml``, then the older ``gateway.json``, then the environment.

These sections belong to the agent, so a wrong value is named in the log, and its default is used.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hermes_actor.config import load
from hermes_actor.gateway.policies import SessionResetPolicy
from hermes_actor.settings import (
    GATEWAY_RESUME_SCOPE,
    GATEWAY_WRITE_SESSIONS_JSON,
    MEMORY_MIN_MESSAGES,
    SESSIONS_WRITE_JSONL,
)

__all__ = ["GatewayConfig", "load_gateway_config"]

_log = logging.getLogger("hermes_actor.gateway")

_FRESH_SECONDS = 3600
_AGE_DAYS = 90
_SECTIONS = (
    "session_reset", "gateway", "group_sessions_per_user", "thread_sessions_per_user",
    "reset_triggers", "session_store_max_age_days", "sessions", "agent", "reset_by_type",
    "reset_by_platform",
)  # fmt: skip


@dataclass(frozen=True)
class GatewayConfig:
    """The settings of a :class:`SessionStore`."""

    default_reset_policy: SessionResetPolicy = field(default_factory=SessionResetPolicy)
    reset_by_type: Mapping[str, SessionResetPolicy] = field(default_factory=dict)
    reset_by_platform: Mapping[str, SessionResetPolicy] = field(default_factory=dict)
    reset_triggers: tuple[str, ...] = ("/new", "/reset")
    group_sessions_per_user: bool = True
    thread_sessions_per_user: bool = False
    multiplex_profiles: bool = False
    session_store_max_age_days: int = _AGE_DAYS
    auto_continue_freshness: float = _FRESH_SECONDS
    """Seconds in which an interrupted conversation goes on by itself; 0 or less: for ever."""
    write_sessions_json: bool = True
    write_jsonl: bool = True
    memory_min_messages: int = 4
    """Messages that a conversation needs for the memory hook to be called."""
    resume_scope: str = "peer"
    """Sessions that ``/resume`` and ``/sessions`` see: of the ``peer``, the ``source``, ``all``."""

    def get_reset_policy(self, platform: str | None, chat_type: str | None) -> SessionResetPolicy:
        """Return the policy for a chat: by platform, else by type, else the default."""
        for table, key in ((self.reset_by_platform, platform), (self.reset_by_type, chat_type)):
            if isinstance(key, str) and key in table:
                return table[key]
        return self.default_reset_policy


def load_gateway_config(home: Path) -> GatewayConfig:
    """Read the settings of *home*. A file that cannot be read is named in the log and left out.

    Raises:
        BadConfig: ``config.yaml`` cannot be understood.
    """
    file = load(home, *_SECTIONS)
    old = _gateway_json(home / "gateway.json")

    def value(name: str, default: Any) -> Any:
        for found in (file.raw(name), file.raw(f"gateway.{name}"), old.get(name)):
            if found is not None:
                return found
        return default

    default = SessionResetPolicy.from_dict(
        _mapping(old.get("session_reset") or old.get("default_reset_policy"))
        | _mapping(file.raw("gateway.session_reset"))
        | _mapping(file.raw("session_reset"))
    )
    triggers = value("reset_triggers", None)
    return GatewayConfig(
        default_reset_policy=_from_environment(default),
        reset_by_type=_policies(value("reset_by_type", {})),
        reset_by_platform=_policies(value("reset_by_platform", {})),
        reset_triggers=tuple(map(str, triggers)) if triggers else ("/new", "/reset"),
        group_sessions_per_user=bool(value("group_sessions_per_user", True)),
        thread_sessions_per_user=bool(value("thread_sessions_per_user", False)),
        multiplex_profiles=bool(value("multiplex_profiles", False)),
        session_store_max_age_days=_age(value("session_store_max_age_days", _AGE_DAYS)),
        auto_continue_freshness=_fresh(file.raw("agent.gateway_auto_continue_freshness")),
        write_sessions_json=file.read(GATEWAY_WRITE_SESSIONS_JSON),
        write_jsonl=file.read(SESSIONS_WRITE_JSONL),
        memory_min_messages=file.read(MEMORY_MIN_MESSAGES),
        resume_scope=file.read(GATEWAY_RESUME_SCOPE),
    )


def _gateway_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        _log.warning("%s is left out: %s", path, error)
        return {}
    return _mapping(values)


def _mapping(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}


def _policies(value: Any) -> dict[str, SessionResetPolicy]:
    found = _mapping(value).items()
    return {str(name): SessionResetPolicy.from_dict(_mapping(one)) for name, one in found}


def _age(value: Any) -> int:
    try:
        return max(0, int(value))
    except (TypeError, ValueError):
        _log.warning("session_store_max_age_days %r is not a number; %d is used", value, _AGE_DAYS)
        return _AGE_DAYS


def _fresh(value: Any) -> float:
    said = os.environ.get("HERMES_AUTO_CONTINUE_FRESHNESS", "").strip() or value
    if said is None:
        return _FRESH_SECONDS
    try:
        return float(said)
    except (TypeError, ValueError):
        _log.warning("the freshness %r is not a number; %d s is used", said, _FRESH_SECONDS)
        return _FRESH_SECONDS


def _from_environment(policy: SessionResetPolicy) -> SessionResetPolicy:
    """Return *policy* with the two values that the environment may set; nonsense is ignored."""
    for variable, name, least, most in (
        ("SESSION_IDLE_MINUTES", "idle_minutes", 1, None),
        ("SESSION_RESET_HOUR", "at_hour", 0, 23),
    ):
        try:
            number = int(os.environ[variable])
        except (KeyError, ValueError):
            continue
        if number >= least and (most is None or number <= most):
            policy = replace(policy, **{name: number})  # type: ignore[arg-type]
    return policy
