"""Parameters of a statement in the form that travels, by the rules of ``sqlite3``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeAlias

from hermes_actor.sqlite import sqlite3
from hermes_protocol.operations import SqlStep
from hermes_protocol.values import Blob, Value

__all__ = ["Bound", "adapted", "bind", "many", "step"]

Bound: TypeAlias = list[Value] | dict[str, Value]
"""Parameters by position, or by name."""

_SMALLEST, _LARGEST = -(2**63), 2**63 - 1
_AS_THEY_ARE = frozenset({float, str, type(None)})
_NOT_ADAPTED = _AS_THEY_ARE | {int, bytearray}
_BASE_TYPES = frozenset((kind, sqlite3.PrepareProtocol) for kind in (int, float, str, bytearray))
_NAME = re.compile(r"[:@$](\w+)")


def bind(parameters: Any, sql: str) -> Bound:
    """Return what ``sqlite3`` would bind for *parameters* of *sql*.

    Raises what it raises: ``ProgrammingError`` for a type that cannot be stored or for something
    that is neither a sequence nor a mapping, ``OverflowError`` for an integer of more than 64 bits,
    and the errors of adapters.
    """
    has_base_adapters = not _BASE_TYPES.isdisjoint(sqlite3.adapters)
    if isinstance(parameters, list | tuple):
        return [
            adapted(value, position, has_base_adapters)
            for position, value in enumerate(parameters, 1)
        ]
    if isinstance(parameters, dict):
        return _named(parameters, sql, has_base_adapters)
    if _is_sequence(parameters):
        return [
            adapted(parameters[position], position + 1, has_base_adapters)
            for position in range(len(parameters))
        ]
    if hasattr(type(parameters), "__getitem__"):
        return _named(parameters, sql, has_base_adapters)
    raise sqlite3.ProgrammingError("parameters are of unsupported type")


def _is_sequence(parameters: Any) -> bool:
    kind = type(parameters)
    return (
        hasattr(kind, "__getitem__")
        and hasattr(kind, "__len__")
        and not isinstance(parameters, Mapping)
    )


def _named(parameters: Any, sql: str, has_base_adapters: bool) -> dict[str, Value]:
    """Only the names of the statement: others need not be storable, and a mapping that makes its
    values up has no others."""
    found = {}
    for position, name in enumerate(dict.fromkeys(_NAME.findall(sql)), 1):
        try:
            value = parameters[name]
        except KeyError:
            continue  # perhaps no parameter; SQLite says which ones are missing
        found[name] = adapted(value, position, has_base_adapters)
    return found


def adapted(value: Any, position: int, has_base_adapters: bool = False) -> Value:
    """Return *value* in the form that travels. *position* is that of the parameter, from 1."""
    kind = type(value)
    if kind in _NOT_ADAPTED and not has_base_adapters:
        return value if kind in _AS_THEY_ARE else _plain(value, position)
    return _plain(sqlite3.adapt(value, sqlite3.PrepareProtocol, value), position)


def _plain(value: Any, position: int) -> Value:
    """Return the value of SQLite's five types that *value* is, or is derived from."""
    if value is None:
        return None
    if isinstance(value, int):
        if not _SMALLEST <= value <= _LARGEST:
            raise OverflowError("Python int too large to convert to SQLite INTEGER")
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, str):
        return str.__str__(value)
    try:
        return Blob(bytes(memoryview(value)))
    except TypeError:
        raise sqlite3.ProgrammingError(
            f"Error binding parameter {position}: type '{type(value).__name__}' is not supported"
        ) from None


def step(sql: str, bound: Bound) -> SqlStep:
    """Return the step that runs *sql* once."""
    if isinstance(bound, dict):
        return SqlStep(sql=sql, named=bound)
    return SqlStep(sql=sql, parameters=bound)


def many(sql: str, rows: list[Bound]) -> SqlStep:
    """Return the step that runs *sql* once for each of *rows*, which are all of one form."""
    if rows and isinstance(rows[0], dict):
        return SqlStep(sql=sql, named_rows=[row for row in rows if isinstance(row, dict)])
    return SqlStep(sql=sql, rows=[row for row in rows if isinstance(row, list)])


def size_of(value: Any) -> int:
    """Return about how many bytes *value* takes on the wire."""
    if isinstance(value, Blob):
        return 9 + len(value.b)
    return 9 + len(value) if isinstance(value, str) else 9
