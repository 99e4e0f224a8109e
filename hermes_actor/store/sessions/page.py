"""The selection of a list of sessions, and its order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

__all__ = ["Order", "Page", "Position"]

Order = Literal["started", "active", "messages"]
"""Order of a list: latest start, latest activity, or most messages first."""


class Position(NamedTuple):
    """The place of a session in lists of each order: the key at which the next page begins."""

    activity: float
    started_at: float
    id: str
    place: int
    """Rank among all sessions by the time of their creation."""
    messages: int


class Page(NamedTuple):
    """Selection and page of a list of sessions."""

    source: str | None
    exclude_sources: Sequence[str] | None
    limit: int
    offset: int
    include_children: bool
    archived: bool = False
    """Archived sessions, and no others."""
    workspace: str | None = None
    """Only sessions whose repository or working directory contains it, ignoring case."""
    after: Position | None = None
    """Only what comes after this position; *offset* counts from there."""
