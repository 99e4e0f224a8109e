"""The file ``config.yaml`` of a home, which several programs of an agent share.

Only the top-level sections that a caller names are read, for two reasons. Most homes have a file
with hundreds of lines and nothing of ours in it: such a file is never parsed. And a slip in a
section of another program must not take the store away: when the file as a whole is not YAML, the
named sections are parsed by themselves.

What the values mean is described in :mod:`hermes_actor.settings`.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from hermes_actor.errors import BadConfig
from hermes_actor.settings import Setting

__all__ = ["Config", "Unset", "load", "mentions"]

T = TypeVar("T")

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")

_SETTLED_SECONDS = 0.1
"""A file that changed less than this ago may still be half written."""
_SETTLE_TRIES = 20


class Unset(NamedTuple):
    """A variable that a value names and the environment does not have."""

    key: str
    variable: str


class Config:
    """The settings of one home. Create it with :func:`load`."""

    def __init__(
        self,
        path: Path,
        values: Mapping[str, Any] | None = None,
        unset: Sequence[Unset] = (),
    ) -> None:
        self.path = path
        self.unset = tuple(unset)
        self.values: Mapping[str, Any] = values or {}

    def raw(self, key: str) -> Any:
        """The value of a dotted *key* as YAML has it; ``None`` if it is absent or empty."""
        found: Any = self.values
        for part in key.split("."):
            if not isinstance(found, Mapping) or part not in found:
                return None
            found = found[part]
        return found

    def read(self, setting: Setting[T]) -> T:
        """The value of *setting*: from the environment, else from the file, else its default.

        Raises :class:`BadConfig`, which names the place of the value and what is allowed.
        """
        where, value = f"{self.path}: {setting.key}", self.raw(setting.key)
        if setting.env is not None and (said := os.environ.get(setting.env, "").strip()):
            where, value = setting.env, said
        if value is None:
            return setting.default
        try:
            return setting.parse(value)
        except (TypeError, ValueError):
            raise BadConfig(f"{where} must be {setting.allowed}, not {value!r}") from None


def load(home: Path, *sections: str) -> Config:
    """Read *sections* of the settings of *home*, all of them if none is named.

    Raises :class:`BadConfig`, which names the file and the line, if they cannot be understood.
    """
    path = home / "config.yaml"
    try:
        data = _read(path)
    except FileNotFoundError:
        return Config(path)
    except OSError as error:
        raise BadConfig(f"{path} cannot be read: {error}") from error
    if sections and not any(name.encode() in data for name in sections):
        return Config(path)  # parsing YAML takes longer than most calls
    try:
        values = _parsed(path, data, sections)
        unset: dict[Unset, None] = {}
        return Config(path, _expand(values, "", unset, {}), list(unset))
    except RecursionError as error:
        raise BadConfig(f"{path} is nested too deeply") from error


def mentions(home: Path, *keys: str) -> bool:
    """Return True if the settings of *home* have one of *keys* anywhere, or cannot be read.

    A whole file is parsed for a section that most homes have; this asks for the key alone.
    """
    try:
        data = _read(home / "config.yaml")
    except FileNotFoundError:
        return False
    except OSError:
        return True
    names = "|".join(map(re.escape, keys))
    return re.search(rf"\b(?:{names})['\"]?\s*:".encode(), data) is not None


def _read(path: Path) -> bytes:
    """The content of *path*, after an edit in place has come to rest.

    An editor that truncates the file before it writes shows an empty one in between. A home whose
    sessions are on a server would then open a file of its own, and split its memory in two.
    """
    for _ in range(_SETTLE_TRIES):
        data, age = path.read_bytes(), time.time() - path.stat().st_mtime
        if not 0 <= age < _SETTLED_SECONDS:
            break
        time.sleep(_SETTLED_SECONDS - age)
    return data


_cache: dict[tuple[Path, tuple[str, ...]], tuple[bytes, Mapping[str, Any]]] = {}


def _parsed(path: Path, data: bytes, sections: tuple[str, ...]) -> Mapping[str, Any]:
    """The values of *data*. Each content is parsed once: that takes 50 times as long as the rest
    of opening a store."""
    known = _cache.get((path, sections))
    if known is not None and known[0] == data:
        return known[1]
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadConfig(f"{path} cannot be read: {error}") from error
    try:
        values = _parse(text, path)
    except BadConfig:
        alone = _only(text, sections) if sections else None
        if alone is None:
            raise
        values = _parse(alone, path)
    _cache[path, sections] = data, values
    return values


def _only(text: str, sections: Sequence[str]) -> str | None:
    """*text* with every line blanked that is not in one of *sections*; line numbers stay.

    ``None`` if a section may stand at a place that lines do not show, for example in braces.
    """
    names = "|".join(map(re.escape, sections))
    begins = re.compile(rf"(['\"]?)({names})\1\s*:(\s|$)")
    hidden = re.compile(rf"[^#]*\b({names})['\"]?\s*:")
    kept: list[str] = []
    inside = False
    for line in text.splitlines():
        if line[:1] not in ("", " ", "\t", "#") and not re.match(r"-(\s|$)", line):
            inside = begins.match(line) is not None
        if not inside and hidden.match(line):
            return None
        kept.append(line if inside else "")
    return "\n".join(kept)


def _parse(text: str, path: Path) -> Mapping[str, Any]:
    import yaml  # ten times the cost of this module, and most homes need no parse

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
    """A variable of the environment; an unset one stays as written, and is remembered: a literal
    ``${VAR}`` in a password is otherwise hard to find."""
    found = os.environ.get(match[1])
    if found is None:
        unset[Unset(key, match[1])] = None
        return match[0]
    return found
