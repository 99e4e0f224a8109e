"""Times of a store as local time, whatever another program has written there."""

from __future__ import annotations

import time
from typing import Any

__all__ = ["in_words", "seconds_between"]


def _local_time(moment: Any) -> time.struct_time | None:
    """Return local time; ``None`` for a value that is no time of the years 1 to 9999."""
    try:
        found = time.localtime(moment) if moment else None
    except (TypeError, ValueError, OverflowError, OSError):
        return None
    return found if found is not None and 1 <= found.tm_year <= 9999 else None


def seconds_between(start: Any, end: Any) -> float:
    """Return the seconds between two times; 0 if one is missing or no number."""
    try:
        return max(0.0, float(end - start))
    except TypeError:
        return 0.0


def in_words(moment: Any, shape: str, otherwise: str = "?") -> str:
    """Format a time as local time by a ``strftime`` pattern; *otherwise* if it is no time."""
    found = _local_time(moment)
    return otherwise if found is None else time.strftime(shape, found)
