"""The place of a value that cannot travel, for the message of its refusal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from hermes_actor.agents.values import check_text, shown
from hermes_actor.errors import BadValue, HermesActorError, Unsupported
from hermes_protocol.operations import Operation

__all__ = ["check_texts", "refusal"]


def refusal(operation: Operation[Any], error: Exception) -> HermesActorError:
    """Return the error that names the value for which *operation* was not sent, or not read."""
    table = getattr(operation, "table", None)
    for field in operation.__struct_fields__:
        for where, value in _values(field, getattr(operation, field)):
            reason = _reason(value)
            if reason is not None:
                column = where.removeprefix(f"{field}.")
                place = where if not isinstance(table, str) else f"{table}.{column}"
                return BadValue(f"{place} {reason}")
    if isinstance(error, Unsupported) and "`$." not in str(error):
        return error
    return BadValue(f"a value cannot be stored: {error}")


def check_texts(values: Any) -> None:
    """Raise :class:`BadValue` for a text in the arguments of a question that no row can hold."""
    for _, value in _values("", values):
        if isinstance(value, str):
            check_text("what is asked for", value)


def _values(where: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Give every value inside *value* with its place; the values of a row as they are."""
    if isinstance(value, dict):
        for name, one in value.items():
            yield where, name
            yield f"{where}.{name if isinstance(name, str) else shown(name)}", one
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _values(where, one)
    else:
        yield where, value


def _reason(value: Any) -> str | None:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return "holds half of a surrogate pair, which is no character"
    elif isinstance(value, int) and not -(2**63) <= value < 2**64:
        return f"does not fit into 64 bits: {shown(value)}"
    elif value is not None and not isinstance(value, bool | int | float | Struct):
        return f"cannot be {shown(value)}"
    return None
