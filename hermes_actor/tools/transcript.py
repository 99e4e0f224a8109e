"""A conversation as plain text, for a model or a person to read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["call_names", "text_of", "transcript"]

_TOOL_OUTPUT = 500
_KEPT = 250


def transcript(messages: Iterable[Mapping[str, Any]]) -> str:
    """Return messages as blocks of ``[ROLE]: text``; long tool output is cut in its middle."""
    blocks: list[str] = []
    for message in messages:
        role, text = str(message.get("role") or "unknown").upper(), text_of(message.get("content"))
        if role == "TOOL" and message.get("tool_name"):
            if len(text) > _TOOL_OUTPUT:
                text = f"{text[:_KEPT]}\n...[truncated]...\n{text[-_KEPT:]}"
            blocks.append(f"[TOOL:{message['tool_name']}]: {text}")
        elif role == "ASSISTANT" and message.get("tool_calls"):
            names = ", ".join(call_names(message["tool_calls"]))
            blocks.append(f"[ASSISTANT]: [Called: {names}]")
            if text:
                blocks.append(f"[ASSISTANT]: {text}")
        else:
            blocks.append(f"[{role}]: {text}")
    return "\n\n".join(blocks)


def text_of(content: Any) -> str:
    """Return the text of message content; of structured content its text parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = (p.get("text") for p in content if isinstance(p, dict) and p.get("type") == "text")
        return " ".join(str(text) for text in parts if text)
    return "" if content is None or isinstance(content, bytes) else str(content)


def call_names(calls: Any, otherwise: str = "?") -> list[str]:
    """Return the names of the functions that an assistant called, or *otherwise*."""
    names = []
    for call in calls if isinstance(calls, list) else []:
        function = call.get("function") if isinstance(call, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if name is None and isinstance(call, dict):
            name = call.get("name")
        names.append(str(name or otherwise))
    return names
