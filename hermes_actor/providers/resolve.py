"""Choice of the provider: by a URL, or by ``sessiondb`` in the settings of the home.

One is chosen before anything is opened, and never exchanged for another afterwards: an agent that
silently writes somewhere else loses its memory. Passwords do not leave this module except inside
the URL that the provider gets.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

from hermes_actor import settings as known_settings
from hermes_actor.config import load
from hermes_actor.errors import BadConfig, MissingDriver, UnknownProvider

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

    from hermes_actor.api.provider import SessionDBProvider

__all__ = [
    "ENTRY_POINT_GROUP", "StoreSpec", "choose_by_settings", "choose_by_url", "is_url", "masked",
]  # fmt: skip

ENTRY_POINT_GROUP = "hermes_actor.sessiondb_providers"

_BUILT_IN = {
    "sqlite": "hermes_actor.providers.sqlite:SQLiteSessionDBProvider",
    "postgresql": "hermes_actor.providers.postgresql:PostgreSQLSessionDBProvider",
    "mysql": "hermes_actor.providers.mysql:MySQLSessionDBProvider",
}
_ALIASES = {"postgres": "postgresql", "mariadb": "mysql"}
_EXTRA_MODULES = {"sqlalchemy", "psycopg", "pymysql"}

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_SECRET_IN_QUERY = re.compile(r"(?i)([?&](?:\w*password|\w*passwd|\w*secret|\w*token)=)[^&#\s]*")
_SECRET_IN_WORDS = re.compile(r"(?i)(\b(?:\w*password|passwd)\s*=\s*)('(?:[^'\\]|\\.)*'|\S+)")
_SECRET_IN_NETLOC = re.compile(r"(://[^:/?#@\s]*:)\S*(?=@)")


class StoreSpec(NamedTuple):
    """A provider by name, the URL of its store, and its other settings."""

    name: str
    url: str
    settings: Mapping[str, Any]

    def open(self, timeout: float = 30.0) -> SessionDBProvider:
        """Open the store. Raises what the provider raises, and :class:`MissingDriver`."""
        return provider_class(self.name).from_url(self.url, settings=self.settings, timeout=timeout)

    @property
    def file(self) -> Path | None:
        """Path of the database file; ``None`` unless the provider is ``sqlite``."""
        if self.name != "sqlite":
            return None
        return Path(unquote(urlsplit(self.url).path[1:]) if is_url(self.url) else self.url)

    @property
    def address(self) -> str:
        """Address of the store for people, without a password."""
        return str(self.file or masked(self.url))

    def __repr__(self) -> str:
        return f"StoreSpec(name={self.name!r}, url={masked(self.url)!r})"


def is_url(text: str) -> bool:
    """Return True if *text* begins with a scheme and ``://``."""
    return _SCHEME.match(text) is not None


def masked(text: str) -> str:
    """Return *text* with the passwords of URLs and connection strings replaced by ``***``."""
    text = _SECRET_IN_NETLOC.sub(r"\1***", text)
    text = _SECRET_IN_QUERY.sub(r"\1***", text)
    return _SECRET_IN_WORDS.sub(r"\1***", text)


def choose_by_url(url: str) -> StoreSpec:
    """Return the store that *url* names, with the provider of its scheme.

    A driver after ``+`` is left to the provider. Raises :class:`UnknownProvider`.
    """
    name = _known(urlsplit(url).scheme.partition("+")[0])
    return StoreSpec(name, url, {})


def choose_by_settings(home: Path) -> StoreSpec | None:
    """Return the store that ``sessiondb`` in *home*'s ``config.yaml`` names, ``None`` for the file.

    Raises :class:`BadConfig` and :class:`UnknownProvider`.
    """
    config = load(home, "sessiondb")
    settings = config.raw("sessiondb")
    if settings is None:
        return None
    if not isinstance(settings, Mapping):
        raise BadConfig(f"{config.path}: sessiondb must hold keys with values")
    dsn = config.read(known_settings.STORE_DSN)
    by_dsn = choose_by_url(dsn).name if is_url(dsn) else ""
    name = _known(config.read(known_settings.STORE_PROVIDER) or by_dsn or "sqlite")
    if name == "sqlite" and not dsn:
        return None
    for key, variable in config.unset:
        if key.startswith("sessiondb."):
            raise BadConfig(f"{config.path}: {key} names ${{{variable}}}, which is not set")
    if not dsn:
        raise BadConfig(
            f"{config.path}: sessiondb.provider is {name}, but sessiondb.dsn is missing"
        )
    if by_dsn and by_dsn != name:
        raise BadConfig(
            f"{config.path}: sessiondb.provider is {name}, but sessiondb.dsn is one of {by_dsn}"
        )
    return StoreSpec(name, dsn, settings)


def provider_class(name: str) -> type[SessionDBProvider]:
    """Return the class of the provider *name*.

    Raises :class:`MissingDriver` if a package that it needs is not installed.
    """
    path = _BUILT_IN.get(name)
    if path is None:
        (found,) = _entry_points().select(name=name)
        loaded: type[SessionDBProvider] = found.load()
        return loaded
    module, _, attribute = path.partition(":")
    try:
        built_in: type[SessionDBProvider] = getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA_MODULES:
            raise
        raise MissingDriver(
            f"the provider {name} needs the Python package {error.name}, which is not installed;"
            f" install it with: pip install 'hermes-actor[{name}]'"
        ) from error
    return built_in


def _entry_points() -> EntryPoints:
    from importlib.metadata import entry_points  # as slow as all else here together

    return entry_points(group=ENTRY_POINT_GROUP)


def _known(name: str) -> str:
    name = name.strip().lower()
    name = _ALIASES.get(name, name)
    if name in _BUILT_IN:
        return name
    others = [found.name for found in _entry_points()]
    if others.count(name) == 1:
        return name
    if name in others:
        raise UnknownProvider(f"several packages offer a provider of sessions named {name!r}")
    known = ", ".join([*_BUILT_IN, *sorted(set(others))])
    raise UnknownProvider(f"there is no provider of sessions named {name!r}; there are: {known}")
