"""Settings of a home: ``config.yaml`` beside the store, shared with the other programs of an agent.

A value is looked for in this order: the option of a command, the environment, the file, the
default. ``${VAR}`` inside a text is replaced from the environment; an unset one stays as written
and is remembered in :attr:`Config.unset`, because a literal ``${VAR}`` in a password is otherwise
hard to find.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hermes_actor.errors import BadConfig

__all__ = ["Config", "Unset", "load"]

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")

_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0"})


class Unset(NamedTuple):
    """A variable that a value names and the environment does not have."""

    key: str
    variable: str


class Config:
    """The settings of one home. Create it with :func:`load`."""

    def __init__(
        self, path: Path, values: Mapping[str, Any] | None = None, unset: Sequence[Unset] = ()
    ) -> None:
        self.path = path
        self.unset = tuple(unset)
        self._values: Mapping[str, Any] = values or {}

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a dotted *key*, ``default`` if it is absent or empty (YAML's null)."""
        found: Any = self._values
        for part in key.split("."):
            if not isinstance(found, Mapping) or part not in found:
                return default
            found = found[part]
        return default if found is None else found

    def text(self, key: str, default: str = "", *, env: str | None = None) -> str:
        """A text; numbers and booleans of YAML are taken as they are written."""
        where, value = self._find(key, env)
        if value is None:
            return default
        if isinstance(value, Mapping | list):
            raise self._wrong(where, value, "a text")
        return str(value).lower() if isinstance(value, bool) else str(value)

    def boolean(self, key: str, default: bool, *, env: str | None = None) -> bool:
        """A yes or no. Raises :class:`BadConfig`."""
        where, value = self._find(key, env)
        if value is None:
            return default
        word = str(value).strip().lower()
        if word in _TRUE or word in _FALSE:
            return word in _TRUE
        raise self._wrong(where, value, "true or false")

    def integer(
        self, key: str, default: int, *, minimum: int | None = None, env: str | None = None
    ) -> int:
        """A whole number. Raises :class:`BadConfig`."""
        where, value = self._find(key, env)
        if value is None:
            return default
        try:
            number = value if type(value) is int else int(str(value).strip())
        except ValueError:
            number = None
        if number is None or (minimum is not None and number < minimum):
            raise self._wrong(where, value, _at_least("a whole number", minimum))
        return number

    def number(
        self, key: str, default: float, *, minimum: float | None = None, env: str | None = None
    ) -> float:
        """A finite number. Raises :class:`BadConfig`."""
        where, value = self._find(key, env)
        if value is None:
            return default
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number) or (minimum is not None and number < minimum):
            raise self._wrong(where, value, _at_least("a number", minimum))
        return number

    def choice(
        self, key: str, allowed: Sequence[str], default: str, *, env: str | None = None
    ) -> str:
        """One of *allowed*, in any letter case. Raises :class:`BadConfig`."""
        where, value = self._find(key, env)
        if value is None:
            return default
        # YAML reads a bare `off` as a boolean; who allows that word means the word.
        word = {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
        word = word.strip().lower()
        if word not in allowed:
            raise self._wrong(where, value, " or ".join(allowed))
        return word

    def _find(self, key: str, env: str | None) -> tuple[str, Any]:
        """Where the value comes from, for people, and the value; a blank variable is not set."""
        said = os.environ.get(env, "").strip() if env is not None else ""
        return (f"{env}", said) if said else (f"{self.path}: {key}", self.get(key))

    @staticmethod
    def _wrong(where: str, value: object, allowed: str) -> BadConfig:
        return BadConfig(f"{where} must be {allowed}, not {value!r}")


def _at_least(kind: str, minimum: float | None) -> str:
    return kind if minimum is None else f"{kind}, {minimum:g} or more"


def load(home: Path) -> Config:
    """The settings of *home*; without a file, those of an empty one.

    Raises :class:`BadConfig`, which names the file and the line, if it cannot be read.
    """
    path = home / "config.yaml"
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return Config(path)
    except (OSError, UnicodeDecodeError) as error:
        raise BadConfig(f"{path} cannot be read: {error}") from error
    try:
        values = _parse(text, path)
        unset: dict[Unset, None] = {}
        return Config(path, _expand(values, "", unset, {}), list(unset))
    except RecursionError as error:
        raise BadConfig(f"{path} is nested too deeply") from error


def _parse(text: str, path: Path) -> Mapping[str, Any]:
    import yaml  # ten times the cost of this module, and most homes have no such file

    try:
        values = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark is not None else ""
        raise BadConfig(f"{path}{line}: {error.problem or error.context}") from error
    except (yaml.YAMLError, ValueError) as error:
        # ValueError: a date such as 2026-02-30.
        first = str(error).splitlines()[0]
        raise BadConfig(f"{path}: {first}") from error
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise BadConfig(f"{path}, line 1: expected keys with values, not {type(values).__name__}")
    return values


def _expand(value: Any, key: str, unset: dict[Unset, None], done: dict[int, Any]) -> Any:
    """*value* with its variables replaced. An alias is expanded once, however often it is used."""
    if isinstance(value, str):
        return _VARIABLE.sub(lambda match: _variable(match, key, unset), value)
    if not isinstance(value, Mapping | list):
        return value
    if id(value) not in done:
        if isinstance(value, Mapping):
            done[id(value)] = {
                name: _expand(inner, f"{key}.{name}" if key else str(name), unset, done)
                for name, inner in value.items()
            }
        else:
            done[id(value)] = [_expand(inner, key, unset, done) for inner in value]
    return done[id(value)]


def _variable(match: re.Match[str], key: str, unset: dict[Unset, None]) -> str:
    found = os.environ.get(match[1])
    if found is None:
        unset[Unset(key, match[1])] = None
        return match[0]
    return found
