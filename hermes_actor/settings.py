"""Every setting: its key in ``config.yaml``, its variable, its default, and what is allowed.

A value is looked for in this order: the option of a command, the environment, the file, the
default. :meth:`hermes_actor.config.Config.read` does it; ``doctor`` reads all of them the same way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from hermes_actor import limits

__all__ = [
    "ACTOR_DRAIN_SECONDS", "ACTOR_IDLE_EXIT", "ACTOR_PRIVATE_SQL", "ACTOR_RESCUE",
    "ACTOR_RESUME_COMMAND", "ACTOR_SECRETS_KEY_FILE", "ACTOR_UPGRADE", "AGENTS_DSN", "ALL",
    "ATTACH_REQUIRED", "ATTACH_TIER",
    "BACKUP_KEEP", "GATEWAY_RESUME_SCOPE",
    "GATEWAY_WRITE_SESSIONS_JSON", "MEMORY_MIN_MESSAGES", "OWN_SECTIONS",
    "RESUME_DISPLAY", "RESUME_EXCHANGES", "RESUME_MAX_ASSISTANT_CHARS",
    "RESUME_MAX_ASSISTANT_LINES", "RESUME_MAX_USER_CHARS", "RESUME_SKIP_TOOL_ONLY",
    "SEARCH_MAX_CONCURRENCY", "SEARCH_TIMEOUT", "SESSIONS_WRITE_JSONL",
    "STORE_CONNECT_TIMEOUT", "STORE_DSN",
    "STORE_POOL_SIZE", "STORE_PROVIDER", "STORE_SIMILARITY", "STORE_STATEMENT_TIMEOUT",
    "STORE_SYNCHRONOUS_COMMIT", "TITLES_ENABLED", "Setting", "unknown_keys",
]  # fmt: skip

T = TypeVar("T")

_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0"})


class Setting(NamedTuple, Generic[T]):
    """One setting. ``parse`` raises ``TypeError`` or ``ValueError`` for what is not allowed."""

    key: str
    default: T
    parse: Callable[[Any], T]
    allowed: str
    env: str | None = None

    @property
    def section(self) -> str:
        """The top-level key of ``config.yaml`` that it stands under."""
        return self.key.partition(".")[0]


def _flag(key: str, default: bool, env: str | None = None) -> Setting[bool]:
    def parse(value: Any) -> bool:
        word = str(value).strip().lower()
        if word not in _TRUE and word not in _FALSE:
            raise ValueError
        return word in _TRUE

    return Setting(key, default, parse, "true or false", env)


def _whole(key: str, default: int, minimum: int | None = None) -> Setting[int]:
    def parse(value: Any) -> int:
        # True is an int of Python, and never what a count means.
        number = value if type(value) is int else int(str(value).strip())
        if minimum is not None and number < minimum:
            raise ValueError
        return number

    least = "" if minimum is None else f", {minimum} or more"
    return Setting(key, default, parse, f"a whole number{least}")


def _number(key: str, default: float, minimum: float, env: str | None = None) -> Setting[float]:
    def parse(value: Any) -> float:
        number = math.nan if isinstance(value, bool) else float(value)
        if not (math.isfinite(number) and number >= minimum):
            raise ValueError
        return number

    return Setting(key, default, parse, f"a number, {minimum:g} or more", env)


def _word(key: str, words: tuple[str, ...], default: str, env: str | None = None) -> Setting[str]:
    def parse(value: Any) -> str:
        # YAML reads a bare `off` as a boolean; a setting that allows the word means the word.
        word = {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
        word = word.strip().lower()
        if word not in words:
            raise ValueError
        return word

    return Setting(key, default, parse, " or ".join(words), env)


def _text(key: str, default: str = "") -> Setting[str]:
    def parse(value: Any) -> str:
        if isinstance(value, Mapping | list):
            raise TypeError
        return str(value).lower() if isinstance(value, bool) else str(value)

    return Setting(key, default, parse, "a text")


# fmt: off
ACTOR_IDLE_EXIT = _number("actor.idle_exit", limits.IDLE_EXIT_SECONDS, 0, "HERMES_ACTOR_IDLE_EXIT")
ACTOR_DRAIN_SECONDS = _number(
    "actor.drain_seconds", limits.DRAIN_SECONDS, 0, "HERMES_ACTOR_DRAIN_SECONDS"
)
ACTOR_UPGRADE = _word("actor.upgrade", ("auto", "ask", "never"), "auto", "HERMES_ACTOR_UPGRADE")
ACTOR_PRIVATE_SQL = _flag("actor.private_sql", True, "HERMES_ACTOR_PRIVATE_SQL")
ACTOR_RESCUE = _flag("actor.rescue", True, "HERMES_ACTOR_RESCUE")
ACTOR_RESUME_COMMAND = _text("actor.resume_command", "hermes --resume {id}")

ACTOR_SECRETS_KEY_FILE = _text("actor.secrets_key_file")

AGENTS_DSN = _text("agents.dsn")

ATTACH_TIER = _word("attach.tier", ("auto", "sqlite", "direct"), "auto")
ATTACH_REQUIRED = _flag("attach.required", False)

STORE_PROVIDER = _text("sessiondb.provider")
STORE_DSN = _text("sessiondb.dsn")
STORE_POOL_SIZE = _whole("sessiondb.pool_size", 8, 1)
STORE_STATEMENT_TIMEOUT = _number("sessiondb.statement_timeout", 30.0, 0.001)
STORE_CONNECT_TIMEOUT = _number("sessiondb.connect_timeout", 10.0, 0.001)
STORE_SYNCHRONOUS_COMMIT = _word(
    "sessiondb.synchronous_commit", ("on", "off", "local", "remote_write", "remote_apply"), "on"
)
STORE_SIMILARITY = _flag("sessiondb.similarity", False)

RESUME_DISPLAY = _word("display.resume_display", ("full", "minimal"), "full")
RESUME_EXCHANGES = _whole("display.resume_exchanges", 10, 1)
RESUME_MAX_USER_CHARS = _whole("display.resume_max_user_chars", 300, 1)
RESUME_MAX_ASSISTANT_CHARS = _whole("display.resume_max_assistant_chars", 200, 1)
RESUME_MAX_ASSISTANT_LINES = _whole("display.resume_max_assistant_lines", 3, 1)
RESUME_SKIP_TOOL_ONLY = _flag("display.resume_skip_tool_only", False)

TITLES_ENABLED = _flag("auxiliary.title_generation.enabled", True)
SEARCH_TIMEOUT = _number("auxiliary.session_search.timeout", 30.0, 0.1)
SEARCH_MAX_CONCURRENCY = _whole("auxiliary.session_search.max_concurrency", 3)

GATEWAY_WRITE_SESSIONS_JSON = _flag("gateway.write_sessions_json", True)
GATEWAY_RESUME_SCOPE = _word("gateway.resume_scope", ("peer", "source", "all"), "peer")
MEMORY_MIN_MESSAGES = _whole("gateway.memory_min_messages", 4, 0)
SESSIONS_WRITE_JSONL = _flag("sessions.write_jsonl", True)

BACKUP_KEEP = _whole("updates.backup_keep", 5, 1)
# fmt: on

ALL: tuple[Setting[Any], ...] = tuple(
    value for value in list(globals().values()) if isinstance(value, Setting)
)

OWN_SECTIONS = ("actor", "attach", "sessiondb")
"""Sections that are ours alone; the others belong to the agent, which has keys of its own there."""


def unknown_keys(values: Mapping[str, Any]) -> list[str]:
    """The keys in sections of ours that no setting has, and misspelt names of these sections."""
    from difflib import get_close_matches  # for people; stores are opened without it

    known = {setting.key for setting in ALL}
    misspelt = [
        str(name)
        for name in values
        if name not in OWN_SECTIONS and get_close_matches(str(name), OWN_SECTIONS, 1, 0.8)
    ]
    return misspelt + [
        key
        for section in OWN_SECTIONS
        if isinstance(values.get(section), Mapping)
        for key in (f"{section}.{name}" for name in values[section])
        if key not in known
    ]
