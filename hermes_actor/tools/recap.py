"""Recap: the end of a conversation in a few lines, for a user who comes back to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from hermes_actor.tools.sanitize import without_control, without_reasoning
from hermes_actor.tools.transcript import call_names

__all__ = ["Entry", "Limits", "recap_entries", "recap_lines"]

_NAMES = 4


class Limits(NamedTuple):
    """Limits of a recap; the keys ``display.resume_…`` of the settings."""

    exchanges: int = 10
    max_user_chars: int = 300
    max_assistant_chars: int = 200
    max_assistant_lines: int = 3
    skip_tool_only: bool = False


class Entry(NamedTuple):
    """One turn of a recap.

    *kind* is ``earlier`` (*text* is how many are left out), ``user``, ``assistant``, or ``final``,
    the last answer, which is shown whole.
    """

    kind: str
    text: str


def recap_entries(
    messages: Iterable[Mapping[str, Any]], limits: Limits | None = None
) -> list[Entry]:
    """Return the last exchanges of a conversation, shortened to *limits*; the last answer whole.

    An entry ``earlier`` comes first if some are left out.
    """
    limits = limits or Limits()
    entries: list[Entry] = []
    last_answer: tuple[int, str] | None = None
    for message in messages:
        role, content = message.get("role"), message.get("content")
        if role == "user":
            text = without_control(_text(content))
            entries.append(Entry("user", _cut(text, limits.max_user_chars)))
        elif role == "assistant":
            calls = message.get("tool_calls") or []
            text = without_control(without_reasoning(_text(content)))
            if not text and (not calls or limits.skip_tool_only):
                continue
            summary = _calls(calls)
            last_answer = len(entries), " ".join(filter(None, [text, summary]))
            short = " ".join(filter(None, [_shortened(text, limits), summary]))
            entries.append(Entry("assistant", short))
    if last_answer is not None:
        entries[last_answer[0]] = Entry("final", last_answer[1])
    left_out = max(0, len(entries) - 2 * limits.exchanges)
    entries = entries[left_out:]
    return [Entry("earlier", str(left_out)), *entries] if left_out else entries


def recap_lines(entries: list[Entry]) -> list[tuple[str, str, str]]:
    """Return (kind, label, text) for every line of the panel; continuation lines have no label."""
    lines: list[tuple[str, str, str]] = []
    for kind, text in entries:
        if kind == "earlier":
            lines += [(kind, "", f"  ... {text} earlier messages ..."), (kind, "", "")]
            continue
        label = "  ● You: " if kind == "user" else "  ◆ Hermes: "
        first, *rest = text.split("\n")
        lines.append((kind, label, first))
        lines += [(kind, "", " " * len(label) + line) for line in rest]
    return lines


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[:limit] + "..."


def _shortened(text: str, limits: Limits) -> str:
    lines = text.split("\n")
    if len(lines) > limits.max_assistant_lines:
        text = "\n".join(lines[: limits.max_assistant_lines]) + " ..."
    return _cut(text, limits.max_assistant_chars)


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return "" if content is None else str(content)
    parts = []
    for part in content:
        if isinstance(part, dict) and part.get("type") == "text":
            parts.append(str(part.get("text") or ""))
        elif isinstance(part, dict) and "image" in str(part.get("type")):
            parts.append("[image]")
        elif isinstance(part, str):
            parts.append(part)
    return " ".join(parts)


def _calls(calls: Any) -> str:
    if not isinstance(calls, list) or not calls:
        return ""
    names = list(dict.fromkeys(call_names(calls, "unknown")))
    shown = ", ".join(names[:_NAMES]) + (", ..." if len(names) > _NAMES else "")
    return f"[{len(calls)} tool call{'' if len(calls) == 1 else 's'}: {shown}]"
