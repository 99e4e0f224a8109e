"""Lone surrogates: text that no encoding can hold.

They come from broken decoders. In the text of an appended message they are an error that callers
know; everywhere else they are replaced, so that they cannot cost a whole change.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from msgspec import Struct, structs

from hermes_protocol.operations import MessageAppend

__all__ = ["json_bytes", "storable", "without_surrogates"]

T = TypeVar("T")


def storable(operation: T, error: UnicodeEncodeError) -> T:
    """Return *operation*, whose encoding raised *error*, with lone surrogates replaced.

    Raises *error* if the content of a message to append holds one: callers know that error.
    """
    clean: T = without_surrogates(operation)
    if isinstance(operation, MessageAppend):
        content = operation.message.content
        if isinstance(content, str) and without_surrogates(content) is not content:
            raise error
    if clean is operation:
        raise error
    return clean


def without_surrogates(value: Any) -> Any:
    """Return *value* with lone surrogates replaced in texts, structs, lists and dicts of these."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return value
    if isinstance(value, Struct):
        changes = {
            name: cleaned
            for name in value.__struct_fields__
            if (cleaned := without_surrogates(old := getattr(value, name))) is not old
        }
        return structs.replace(value, **changes) if changes else value
    if isinstance(value, list):
        cleaned_list = [without_surrogates(item) for item in value]
        unchanged = all(new is old for new, old in zip(cleaned_list, value, strict=True))
        return value if unchanged else cleaned_list
    if isinstance(value, dict):
        keys, items = without_surrogates(list(value)), without_surrogates(list(value.values()))
        cleaned_dict = dict(zip(keys, items, strict=True))
        return value if cleaned_dict == value else cleaned_dict
    return value


def json_bytes(value: Any) -> bytes:
    """Return JSON as UTF-8; lone surrogates, which structured content may hold, are escaped."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        import json

        simple = msgspec.to_builtins(value, builtin_types=(str,), enc_hook=str)
        text = json.dumps(simple, separators=(",", ":"), ensure_ascii=False)
        return text.encode("utf-8", "backslashreplace")  # its form is that of a JSON escape
