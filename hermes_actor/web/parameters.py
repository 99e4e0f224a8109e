"""Parameters of views and actions: read from a query, a form or JSON, and described by OpenAPI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hermes_actor.errors import BadValue

__all__ = ["LONGEST_TEXT", "Parameter", "Values", "values_of"]

Values = dict[str, Any]

LONGEST_TEXT = 2000
"""Characters of one value: ids, titles and searches are shorter. Pages show as many of one."""


class Parameter(NamedTuple):
    """One named value. *default* ``None`` means that it may be left out."""

    name: str
    words: str
    """Description for people."""
    type: type[str] | type[int] | type[bool] = str
    default: Any = None
    needed: bool = False
    choices: Sequence[str] = ()
    least: int | None = None
    most: int | None = None

    def read(self, given: Any) -> Any:
        """Return the value that *given* stands for. Raises :class:`BadValue`."""
        if given is None or (given == "" and not self.needed):
            if self.needed:
                raise BadValue(f"{self.name} is missing: {self.words}")
            return self.default
        if self.type is bool:
            return self._flag(given)
        return self._number(given) if self.type is int else self._text(given)

    def _flag(self, given: Any) -> bool:
        if isinstance(given, bool):
            return given
        words = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}
        if str(given).lower() not in words:
            raise BadValue(f"{self.name} is true or false, not {str(given)[:40]!r}")
        return words[str(given).lower()]

    def _number(self, given: Any) -> int:
        try:
            number = int(given) if not isinstance(given, bool | float) else None
        except (TypeError, ValueError):
            number = None
        least = -(2**63) if self.least is None else self.least
        most = 2**63 - 1 if self.most is None else self.most
        if number is None or not least <= number <= most:
            raise BadValue(f"{self.name} is a number from {least} to {most}")
        return number

    def _text(self, given: Any) -> str:
        if not isinstance(given, str):
            raise BadValue(f"{self.name} is a text")
        if len(given) > LONGEST_TEXT:
            raise BadValue(f"{self.name} is longer than {LONGEST_TEXT:,} characters")
        if self.choices and given not in self.choices:
            raise BadValue(f"{self.name} is one of {', '.join(self.choices)}")
        return given

    def schema(self) -> dict[str, Any]:
        """Return the value as JSON Schema describes it."""
        made: dict[str, Any] = {
            "type": {str: "string", int: "integer", bool: "boolean"}[self.type],
            "description": self.words,
        }
        limits = {"default": self.default, "minimum": self.least, "maximum": self.most}
        made |= {name: value for name, value in limits.items() if value is not None}
        if self.choices:
            made["enum"] = list(self.choices)
        return made


def values_of(parameters: Sequence[Parameter], given: Mapping[str, Any]) -> Values:
    """Return the values of *parameters* that *given* holds. Raises :class:`BadValue`."""
    return {one.name: one.read(given.get(one.name)) for one in parameters}
