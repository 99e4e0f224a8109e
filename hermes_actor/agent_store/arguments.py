"""The signature of a method as the check of its arguments: a wrong type is refused by its name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from hermes_actor.agents.values import shown
from hermes_actor.errors import BadValue

__all__ = ["checked"]

F = TypeVar("F", bound=Callable[..., Any])

_NAMES = {
    str: "a text",
    int: "a number",
    float: "a number",
    bool: "yes or no",
    type(None): "nothing",
}


def checked(method: F) -> F:
    """Return *method* with a check of its arguments by their annotations.

    Numbers are taken as such, whole or not; what their values may be is for the method to say.
    """
    names = list(inspect.signature(method).parameters)[1:]

    @functools.cache
    def hints() -> dict[str, Any]:
        # At the first call: a module may not have everything yet while its classes are made.
        return get_type_hints(method)

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        known = hints()
        for name, value in (*zip(names, args, strict=False), *kwargs.items()):
            hint = known.get(name, Any)
            if not _fits(hint, value):
                raise BadValue(f"{name} is {_named(hint)}, not {shown(value)}")
        return method(self, *args, **kwargs)

    return call  # type: ignore[return-value]


def _fits(hint: Any, value: Any) -> bool:
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin in (Union, UnionType):
        return any(_fits(one, value) for one in inner)
    if origin is Literal:
        return isinstance(value, str)
    if origin is tuple:
        return (
            isinstance(value, tuple)
            and len(value) == len(inner)
            and all(_fits(one, part) for one, part in zip(inner, value, strict=True))
        )
    if origin in (list, Sequence):
        is_list = isinstance(value, Sequence) and not isinstance(value, str | bytes)
        return is_list and all(_fits(inner[0], one) for one in value)
    if origin in (dict, Mapping):
        return isinstance(value, Mapping) and all(
            isinstance(key, str) and _fits(inner[1], one) for key, one in value.items()
        )
    if hint in (int, float):
        return isinstance(value, int | float)
    if hint is bool:
        return isinstance(value, int)
    return isinstance(value, hint) if isinstance(hint, type) else True


def _named(hint: Any) -> str:
    """Return what *hint* takes, in words."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(map(_named, inner)))
    if origin in (list, tuple, Sequence):
        return "a list"
    if origin in (dict, Mapping):
        return "an object"
    return _NAMES.get(hint, f"a {getattr(hint, '__name__', 'value')}")
