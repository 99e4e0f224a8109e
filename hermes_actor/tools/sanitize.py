"""Text of a model without what is not meant for people: reasoning, raw calls, escape sequences."""

from __future__ import annotations

import re
from functools import cache

__all__ = ["without_control", "without_reasoning"]

_REASONING = "REASONING_SCRATCHPAD|thinking|think|reasoning|thought"
_BLOCKS = "tool_calls|tool_call|tool_result|function_calls|function_call"

_FLAGS = re.IGNORECASE | re.DOTALL


@cache
def _patterns() -> tuple[re.Pattern[str], ...]:
    shapes = (
        # Closed pairs, then an opening that is never closed, then closings that nothing opened.
        rf"<({_REASONING})\b[^>]*>.*?</\1\s*>\s*",
        rf"<({_BLOCKS})\b[^>]*>.*?</\1\s*>\s*",
        rf"<({_REASONING})\b[^>]*>.*\Z",
        rf"</({_REASONING}|{_BLOCKS})\s*>",
        r"(?:^|(?<=[.!?]\s)|(?<=\n))[ \t]*<function\b[^>]*name=[^>]*>.*?</function\s*>\s*",
        r"</function\s*>",
    )
    return tuple(re.compile(shape, _FLAGS) for shape in shapes)


def without_reasoning(text: str) -> str:
    """Return *text* without reasoning and raw tool calls, stripped."""
    if "<" in text:
        for pattern in _patterns():
            text = pattern.sub("", text)
    return text.strip()


@cache
def _escapes() -> tuple[re.Pattern[str], re.Pattern[str]]:
    # CSI, then OSC and its kin up to their end, then two-character sequences.
    sequences = (
        r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_].*?(?:\x1b\\|\x07|\Z)|\x1b[ -/]*[0-~]"
        r"|\x9b[0-?]*[ -/]*[@-~]"
    )
    return re.compile(sequences, re.DOTALL), re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def without_control(text: str) -> str:
    """Return *text* without escape sequences and control characters; line ends and tabs stay."""
    if text.isprintable():
        return text
    sequences, controls = _escapes()
    text = sequences.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return controls.sub("", text)
