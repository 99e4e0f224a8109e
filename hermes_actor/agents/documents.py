"""JSON documents: encoding, dotted paths, and placeholders for secrets."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from hermes_actor.errors import BadValue

__all__ = [
    "check_depth", "dumps", "get_path", "json_or_text", "loads", "masked", "object_or_none",
    "resolve", "set_path", "whole_document",
]  # fmt: skip

_DEPTH = 30
"""Nesting of JSON that every provider takes: MariaDB refuses more than 32."""
_INDEX = re.compile(r"[0-9]{1,9}")
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
_PLACEHOLDER = re.compile(r"\$\{\{([A-Za-z0-9_]+)\}\}")


def dumps(value: Any) -> str:
    """Return *value* as compact JSON.

    Raises :class:`BadValue` for what JSON, or the JSON of some provider, cannot hold.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadValue(f"not a JSON value: {error}") from None
    if "u0000" in text and _NUL.search(text):
        raise BadValue("it holds the character U+0000, which cannot be stored")
    return text


def check_depth(value: Any) -> None:
    """Raise :class:`BadValue` for a value that is nested deeper than every provider takes."""
    if _too_deep(value, _DEPTH):
        raise BadValue(f"it is nested deeper than {_DEPTH} levels")


def _too_deep(value: Any, left: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return left <= 0 or any(_too_deep(one, left - 1) for one in inner)


def loads(text: str) -> Any:
    """Return the value of a JSON text. Raises :class:`BadValue`."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadValue(f"not JSON: {error}") from None


def whole_document(value: Any) -> str:
    """Return a config or security document as text. Raises :class:`BadValue`."""
    if not isinstance(value, dict):
        raise BadValue("the document is an object")
    check_depth(value)
    return dumps(value)


def json_or_text(text: str) -> Any:
    """Return the value of a JSON text; *text* itself if it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def object_or_none(text: str | None) -> dict[str, Any] | None:
    """Return the object that *text* holds; ``None`` for anything else."""
    try:
        value = json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def get_path(document: Any, path: str) -> tuple[bool, Any]:
    """Return whether there is a value at the dotted *path*, and the value."""
    value = document
    for piece in filter(None, path.split(".")):
        if isinstance(value, dict) and piece in value:
            value = value[piece]
        elif isinstance(value, list) and _INDEX.fullmatch(piece) and int(piece) < len(value):
            value = value[int(piece)]
        else:
            return False, None
    return True, value


def set_path(document: Any, path: str, value: Any) -> dict[str, Any]:
    """Set *value* at the dotted *path*; objects that are missing on the way are made.

    Returns the document. Raises :class:`BadValue` where the way leads through a list.
    """
    pieces = [piece for piece in path.split(".") if piece]
    if not pieces:
        if not isinstance(value, dict):
            raise BadValue("a whole document must be an object")
        return value
    whole: dict[str, Any] = document if isinstance(document, dict) else {}
    at = whole
    for piece in pieces[:-1]:
        step = at.get(piece)
        if isinstance(step, list):
            raise BadValue(f"{path}: {piece} is a list; set the list as a whole")
        if not isinstance(step, dict):
            step = at[piece] = {}
        at = step
    at[pieces[-1]] = value
    return whole


def resolve(document: Any, secrets: Mapping[str, str]) -> Any:
    """Return *document* with every ``${{NAME}}`` in its texts replaced, once.

    Unknown names, keys of objects, numbers and flags stay as they are. Raises :class:`BadValue` for
    a document that another program has nested too deeply.
    """
    try:
        return _resolved(document, secrets)
    except RecursionError:
        raise BadValue("the document is nested too deeply") from None


def _resolved(document: Any, secrets: Mapping[str, str]) -> Any:
    if isinstance(document, str):
        return _PLACEHOLDER.sub(lambda found: secrets.get(found[1], found[0]), document)
    if isinstance(document, dict):
        return {key: _resolved(value, secrets) for key, value in document.items()}
    if isinstance(document, list):
        return [_resolved(value, secrets) for value in document]
    return document


def masked(value: str) -> str:
    """Return what may be shown of a secret."""
    if len(value) <= 8:
        return "*" * len(value)
    return f"{value[:4]}{'*' * 8}{value[-4:]}"
