"""Rules that the settings of a home add to its writer, whatever program a change comes from."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["NO_RULES", "WriteRules"]


class WriteRules(NamedTuple):
    """Rules of one writer: what it refuses, or does in another way, because the settings say so."""

    turns_required: frozenset[str] = frozenset()
    """Sources whose conversations are written under a turn only."""
    merges_doubles: bool = False
    """A message that the gateway and the agent both store is one row."""


NO_RULES = WriteRules()
