"""Redaction of secrets in text that leaves the store."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

__all__ = ["redact", "redact_all", "register_redactor"]

MASK = "[REDACTED]"

Redactor = Callable[[str], str]

_chosen: Redactor | None = None


def register_redactor(redactor: Redactor | None) -> None:
    """Use *redactor* for every text from now on; ``None`` restores the default."""
    global _chosen
    _chosen = redactor


def redact(text: str) -> str:
    """Return *text* with everything that looks like a secret masked."""
    return (_chosen or _default)(text)


def redact_all(value: Any) -> Any:
    """Return a JSON value with every string in it redacted; keys stay."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, list):
        return [redact_all(item) for item in value]
    if isinstance(value, dict):
        return {key: redact_all(item) for key, item in value.items()}
    return value


@cache
def _patterns() -> tuple[re.Pattern[str], ...]:
    shapes = (
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----",
        r"\bsk-[A-Za-z0-9_-]{16,}",
        r"\b(?:ghp|gho|ghu|ghs|ghr|github_pat)_[A-Za-z0-9_]{16,}",
        r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}",
        r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",
        r"\bAIza[A-Za-z0-9_-]{30,}",
        r"\bhf_[A-Za-z0-9]{20,}",
        r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*",
        r"(?<=\bBearer )[A-Za-z0-9._~+/-]{12,}=*",
        r"(?<=://)[^\s/:@]+:[^\s/@]+(?=@)",
    )
    return tuple(re.compile(shape, re.DOTALL) for shape in shapes)


@cache
def _named() -> re.Pattern[str]:
    # What follows a name such as API_KEY, in code, in the environment and in JSON.
    return re.compile(
        r"""((?:api[_-]?key|access[_-]?key|secret|token|passw(?:or)?d)["']?\s*[:=]\s*["']?)"""
        r"""([^\s"',;]{6,})""",
        re.IGNORECASE,
    )


def _default(text: str) -> str:
    for pattern in _patterns():
        text = pattern.sub(MASK, text)
    return _named().sub(lambda found: found.group(1) + MASK, text)
