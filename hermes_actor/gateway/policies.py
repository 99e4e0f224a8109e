"""Reset policies: when a conversation ends by itself. Pure functions of policy and local time."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Self

__all__ = ["SessionResetPolicy", "Thresholds"]

_log = logging.getLogger("hermes_actor.gateway")

MODES = ("idle", "daily", "both", "none")


class Thresholds(NamedTuple):
    """Times of last use before which a conversation has expired; ``None``: never."""

    idle_before: float | None
    daily_before: float | None

    @property
    def latest(self) -> float | None:
        """The time before which a conversation has expired for whatever reason."""
        return max((one for one in self if one is not None), default=None)


@dataclass(frozen=True)
class SessionResetPolicy:
    """Rule for resets: ``idle``, ``daily``, ``both`` or ``none``, which is the default.

    ``bg_process_max_age_hours`` is the age from which a background process does not keep a
    conversation from being reset; 0: there is no such age.
    """

    mode: str = "none"
    at_hour: int = 4
    idle_minutes: int = 1440
    notify: bool = True
    notify_exclude_platforms: tuple[str, ...] = ("api_server", "webhook")
    bg_process_max_age_hours: float = 0

    @classmethod
    def from_dict(cls, values: Mapping[str, Any] | None) -> Self:
        """Read a policy; a value that is missing or null is the default, and a wrong one, too.

        Wrong values are named in the log.
        """
        given = {key: value for key, value in (values or {}).items() if value is not None}
        policy = cls()
        mode = str(given.get("mode", policy.mode)).lower()
        if mode not in MODES:
            _log.warning("session_reset.mode %r is not one of %s", mode, ", ".join(MODES))
            mode = policy.mode
        excluded = given.get("notify_exclude_platforms", policy.notify_exclude_platforms)
        if isinstance(excluded, str):
            excluded = [excluded]
        return cls(
            mode=mode,
            at_hour=_whole(given, "at_hour", policy.at_hour, 0, 23),
            idle_minutes=_whole(given, "idle_minutes", policy.idle_minutes, 1, None),
            notify=bool(given.get("notify", policy.notify)),
            notify_exclude_platforms=tuple(map(str, excluded)),
            bg_process_max_age_hours=_whole(given, "bg_process_max_age_hours", 0, None, None),
        )

    def boundary(self, now: datetime) -> datetime:
        """Return the latest daily reset time that is not after *now*."""
        # Where an hour comes twice its first time counts, or the day would have two resets.
        today = now.replace(hour=self.at_hour, minute=0, second=0, microsecond=0, fold=0)
        return today - timedelta(days=1) if now.hour < self.at_hour else today

    def thresholds(self, now: datetime) -> Thresholds:
        """Return the times before which a conversation has expired at *now*, local and naive."""
        idle = daily = None
        if self.mode in ("idle", "both"):
            # Of the wall clock, as people count: across a change of summer time, too.
            before = now - timedelta(minutes=self.idle_minutes)
            # An hour that is skipped would be read as one that is still to come.
            idle = min(before.replace(fold=fold).timestamp() for fold in (0, 1))
        if self.mode in ("daily", "both"):
            daily = self.boundary(now).timestamp()
        return Thresholds(idle, daily)


def _whole(
    given: Mapping[str, Any], name: str, default: int, least: int | None, most: int | None
) -> int:
    if name not in given:
        return default
    try:
        number = int(given[name])
    except (TypeError, ValueError):
        number = None
    too_small = number is not None and least is not None and number < least
    too_large = number is not None and most is not None and number > most
    if number is None or too_small or too_large:
        _log.warning("session_reset.%s %r is not allowed; %d is used", name, given[name], default)
        return default
    return number
