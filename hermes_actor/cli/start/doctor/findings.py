"""Findings: the results of the checks of ``hermes-actor doctor``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

from hermes_actor.paths import StorePaths

__all__ = ["Check", "Finding", "Findings"]

Level = Literal["ok", "note", "warning", "broken"]


class Finding(NamedTuple):
    """Result of one check and, unless it is ok, what to do."""

    level: Level
    area: str
    text: str
    advice: str = ""


Findings = Iterator[Finding]
Check = Callable[[StorePaths], Findings]
