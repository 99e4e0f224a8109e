"""The warning of Python 3.13 that some parameters are to be given by their position."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from typing import Any, TypeVar, cast

__all__ = ["deprecates_keywords"]

_WARNS: bool = sys.version_info[:2] >= (3, 13)

M = TypeVar("M", bound=Callable[..., Any])


def deprecates_keywords(*names: str) -> Callable[[M], M]:
    """Return a decorator for a method of ``Connection``: *names* are warned of, as the native
    method does it, in the line of the program. Before Python 3.13 it changes nothing."""

    def decorate(method: M) -> M:
        if not _WARNS:
            return method
        *first, last = (f"'{name}'" for name in names)
        listed = f"{', '.join(first)} and {last}" if first else last
        s = "s" if first else ""
        text = (
            f"Passing keyword argument{s} {listed} to _sqlite3.Connection.{method.__name__}() is"
            f" deprecated. Parameter{s} {listed} will become positional-only in Python 3.15."
        )

        @functools.wraps(method)
        def checked(self: Any, *args: Any, **named: Any) -> Any:
            if not named.keys().isdisjoint(names):
                warnings.warn(text, DeprecationWarning, stacklevel=2)
            return method(self, *args, **named)

        return cast("M", checked)

    return decorate
