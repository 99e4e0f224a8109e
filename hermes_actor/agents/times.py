"""Times of an agent store: text in UTC with milliseconds, whose order is that of time."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from hermes_actor.errors import BadValue

__all__ = ["after", "canonical", "is_canonical", "now", "parsed"]

_FORM = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", re.ASCII)
_LAST = "9999-12-31T23:59:59.999Z"


def now() -> str:
    """Return the present time."""
    return _text(datetime.now(UTC))


def canonical(value: str | datetime) -> str:
    """Return *value*, an ISO time with or without an offset, in the stored form.

    A time without an offset is UTC. Raises :class:`BadValue` for anything else.
    """
    return _text(parsed(value))


def is_canonical(value: str) -> bool:
    """Return True if *value* is a time in the stored form."""
    if _FORM.fullmatch(value) is None:
        return False
    try:
        datetime.fromisoformat(value)
    except ValueError:
        return False
    return True


def parsed(value: str | datetime) -> datetime:
    """Return *value* as a time in UTC. Raises :class:`BadValue`."""
    try:
        time = datetime.fromisoformat(value.strip()) if isinstance(value, str) else value
        return time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)
    except (ValueError, AttributeError):
        shown = repr(value)[:60]
        raise BadValue(f"not a time: {shown}; write 2026-01-31T09:00:00Z") from None
    except OverflowError:
        raise BadValue(f"not a time: {value}") from None


def after(value: str, seconds: float) -> str:
    """Return the time *seconds* after *value*, at most the last one that can be written.

    Raises :class:`BadValue` for seconds that are no number, or that lead before all time.
    """
    try:
        return _text(parsed(value) + timedelta(seconds=seconds))
    except OverflowError:
        if seconds > 0:
            return _LAST
        raise BadValue(f"there is no time {seconds} seconds after {value}") from None
    except (TypeError, ValueError):
        raise BadValue(f"not a number of seconds: {seconds!r}") from None


def _text(value: datetime) -> str:
    value = value.astimezone(UTC)
    return f"{value:%Y-%m-%dT%H:%M:%S}.{value.microsecond // 1000:03d}Z".rjust(24, "0")
