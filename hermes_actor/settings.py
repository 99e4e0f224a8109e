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
    "ATTACH_CHATS", "ATTACH_REQUIRED", "ATTACH_TIER",
    "BACKUP_KEEP", "GATEWAY_MERGE_DOUBLED_ROWS", "GATEWAY_RESUME_SCOPE",
    "GATEWAY_WRITE_SESSIONS_JSON", "MEMORY_MIN_MESSAGES", "OWN_SECTIONS",
    "RESUME_DISPLAY", "RESUME_EXCHANGES", "RESUME_MAX_ASSISTANT_CHARS",
    "RESUME_MAX_ASSISTANT_LINES", "RESUME_MAX_USER_CHARS", "RESUME_SKIP_TOOL_ONLY",
    "SEARCH_MAX_CONCURRENCY", "SEARCH_TIMEOUT", "SESSIONS_WRITE_JSONL",
    "STORE_CONNECT_TIMEOUT", "STORE_DSN",
    "STORE_POOL_SIZE", "STORE_PROVIDER", "STORE_SIMILARITY", "STORE_STATEMENT_TIMEOUT",
    "STORE_SYNCHRONOUS_COMMIT", "TITLES_ENABLED", "TURNS_REQUIRED", "Setting", "unknown_keys",
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
    meaning: str = ""
    """Its row in the table of settings, which `docs/generate.py` writes."""

    @property
    def section(self) -> str:
        """The top-level key of ``config.yaml`` that it stands under."""
        return self.key.partition(".")[0]


def _flag(key: str, default: bool, env: str | None = None, *, meaning: str) -> Setting[bool]:
    def parse(value: Any) -> bool:
        word = str(value).strip().lower()
        if word not in _TRUE and word not in _FALSE:
            raise ValueError
        return word in _TRUE

    return Setting(key, default, parse, "true or false", env, meaning)


def _whole(key: str, default: int, minimum: int | None = None, *, meaning: str) -> Setting[int]:
    def parse(value: Any) -> int:
        # True is an int of Python, and never what a count means.
        number = value if type(value) is int else int(str(value).strip())
        if minimum is not None and number < minimum:
            raise ValueError
        return number

    least = "" if minimum is None else f", {minimum} or more"
    return Setting(key, default, parse, f"a whole number{least}", None, meaning)


def _number(
    key: str, default: float, minimum: float, env: str | None = None, *, meaning: str
) -> Setting[float]:
    def parse(value: Any) -> float:
        number = math.nan if isinstance(value, bool) else float(value)
        if not (math.isfinite(number) and number >= minimum):
            raise ValueError
        return number

    return Setting(key, default, parse, f"a number, {minimum:g} or more", env, meaning)


def _word(
    key: str, words: tuple[str, ...], default: str, env: str | None = None, *, meaning: str
) -> Setting[str]:
    def parse(value: Any) -> str:
        # YAML reads a bare `off` as a boolean; a setting that allows the word means the word.
        word = {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
        word = word.strip().lower()
        if word not in words:
            raise ValueError
        return word

    return Setting(key, default, parse, " or ".join(words), env, meaning)


def _text(key: str, default: str = "", *, meaning: str) -> Setting[str]:
    def parse(value: Any) -> str:
        if isinstance(value, Mapping | list):
            raise TypeError
        return str(value).lower() if isinstance(value, bool) else str(value)

    return Setting(key, default, parse, "a text", None, meaning)


def _sources(key: str, *, meaning: str) -> Setting[frozenset[str]]:
    def parse(value: Any) -> frozenset[str]:
        if isinstance(value, list):
            if not all(isinstance(one, str) and one.strip() for one in value):
                raise ValueError
            return frozenset(one.strip() for one in value)
        word = str(value).strip().lower()
        if word in _TRUE:
            return frozenset({"*"})
        if word in _FALSE:
            return frozenset()
        if isinstance(value, str) and word:
            return frozenset({value.strip()})
        raise ValueError

    allowed = "true, false, or a list of sources"
    return Setting(key, frozenset(), parse, allowed, None, meaning)


ACTOR_IDLE_EXIT = _number(
    "actor.idle_exit",
    limits.IDLE_EXIT_SECONDS,
    0,
    "HERMES_ACTOR_IDLE_EXIT",
    meaning="Seconds without use after which an actor that was started on demand exits; 0: "
    "never. Read by the process that starts it.",
)
ACTOR_DRAIN_SECONDS = _number(
    "actor.drain_seconds",
    limits.DRAIN_SECONDS,
    0,
    "HERMES_ACTOR_DRAIN_SECONDS",
    meaning="Seconds that a drain waits for clients to read their replies. Read at the start "
    "of an actor.",
)
ACTOR_UPGRADE = _word(
    "actor.upgrade",
    ("auto", "ask", "never"),
    "auto",
    "HERMES_ACTOR_UPGRADE",
    meaning="`auto`: a client that is newer requests a [hand-off](how-to/update.md); `ask` "
    "and `never`: it does not.",
)
ACTOR_PRIVATE_SQL = _flag(
    "actor.private_sql",
    True,
    "HERMES_ACTOR_PRIVATE_SQL",
    meaning="`false` refuses SQL of clients: writing through `_conn`, and `_execute_write`, "
    "raise `Unsupported`. Read at the start of an actor.",
)
ACTOR_RESCUE = _flag(
    "actor.rescue",
    True,
    "HERMES_ACTOR_RESCUE",
    meaning="`false`: no last copy when the home is deleted. Read at the start of an actor.",
)
ACTOR_RESUME_COMMAND = _text(
    "actor.resume_command",
    "hermes --resume {id}",
    meaning="The command of `sessions browse` and `resume --hint` that continues a session; "
    "`{id}` is its id.",
)
ACTOR_SECRETS_KEY_FILE = _text(
    "actor.secrets_key_file",
    meaning="The file with the key of an agent store, if it is not `agents.key` of the home; "
    "its mode must be 0600.",
)
AGENTS_DSN = _text(
    "agents.dsn",
    meaning="The URL of the [agent store](reference/agent-store.md), if it is not `agents.db`"
    " of the home.",
)
ATTACH_TIER = _word(
    "attach.tier",
    ("auto", "sqlite", "direct"),
    "auto",
    meaning="How an attached hermes-agent reaches its stores: `sqlite` for connections below "
    "any release, `direct` to leave it alone.",
)
ATTACH_REQUIRED = _flag(
    "attach.required",
    False,
    meaning="`true`: programs of an attached hermes-agent open no store if they are not "
    "attached, after an update for example; else they warn.",
)
ATTACH_CHATS = _word(
    "attach.chats",
    ("host", "routes"),
    "host",
    meaning="`routes`: the gateway of an attached hermes-agent keeps its chats in the store, where "
    "a reset is one change, see [what has changed](how-to/adopt.md#what-has-changed); `host`: in "
    "its own index.",
)
STORE_PROVIDER = _text(
    "sessiondb.provider",
    meaning="Where the sessions are, see [providers](reference/providers.md).",
)
STORE_DSN = _text(
    "sessiondb.dsn",
    meaning="The URL of the store; it may name the provider as well.",
)
STORE_POOL_SIZE = _whole(
    "sessiondb.pool_size",
    8,
    1,
    meaning="Connections of one process to a server.",
)
STORE_STATEMENT_TIMEOUT = _number(
    "sessiondb.statement_timeout",
    30.0,
    0.001,
    meaning="Seconds that a statement may take on a server.",
)
STORE_CONNECT_TIMEOUT = _number(
    "sessiondb.connect_timeout",
    10.0,
    0.001,
    meaning="Seconds that a connection to a server may take.",
)
STORE_SYNCHRONOUS_COMMIT = _word(
    "sessiondb.synchronous_commit",
    ("on", "off", "local", "remote_write", "remote_apply"),
    "on",
    meaning="`off` gives up durability for speed, on PostgreSQL.",
)
STORE_SIMILARITY = _flag(
    "sessiondb.similarity",
    False,
    meaning="`true` offers `search_similar`, on PostgreSQL.",
)
RESUME_DISPLAY = _word(
    "display.resume_display",
    ("full", "minimal"),
    "full",
    meaning="`minimal`: no [recap](how-to/resume.md) when a session is resumed.",
)
RESUME_EXCHANGES = _whole(
    "display.resume_exchanges",
    10,
    1,
    meaning="Questions and answers of a recap, at most.",
)
RESUME_MAX_USER_CHARS = _whole(
    "display.resume_max_user_chars",
    300,
    1,
    meaning="Characters of a question in a recap.",
)
RESUME_MAX_ASSISTANT_CHARS = _whole(
    "display.resume_max_assistant_chars",
    200,
    1,
    meaning="Characters of an answer in a recap.",
)
RESUME_MAX_ASSISTANT_LINES = _whole(
    "display.resume_max_assistant_lines",
    3,
    1,
    meaning="Lines of an answer in a recap.",
)
RESUME_SKIP_TOOL_ONLY = _flag(
    "display.resume_skip_tool_only",
    False,
    meaning="`true`: answers that only call tools are left out of a recap.",
)
TITLES_ENABLED = _flag(
    "auxiliary.title_generation.enabled",
    True,
    meaning="`false`: sessions get no automatic title; `title --auto` still gives one.",
)
SEARCH_TIMEOUT = _number(
    "auxiliary.session_search.timeout",
    30.0,
    0.1,
    meaning="Seconds for the summary of one conversation in `tool session-search`, then its "
    "beginning is shown; all together have 60.",
)
SEARCH_MAX_CONCURRENCY = _whole(
    "auxiliary.session_search.max_concurrency",
    3,
    meaning="Summaries of `tool session-search` at the same time, 1 to 5.",
)
GATEWAY_WRITE_SESSIONS_JSON = _flag(
    "gateway.write_sessions_json",
    True,
    meaning="Whether `sessions.json` is kept as a copy of the routes of a gateway.",
)
GATEWAY_RESUME_SCOPE = _word(
    "gateway.resume_scope",
    ("peer", "source", "all"),
    "peer",
    meaning="Sessions that `/resume` and `/sessions` of a chat see: of the peer, of its "
    "platform (`source`), or all.",
)
MEMORY_MIN_MESSAGES = _whole(
    "gateway.memory_min_messages",
    4,
    0,
    meaning="Messages that a conversation needs for the hook `before_reset`.",
)
SESSIONS_WRITE_JSONL = _flag(
    "sessions.write_jsonl",
    True,
    meaning="Whether transcript files are kept beside the store of a gateway.",
)
GATEWAY_MERGE_DOUBLED_ROWS = _flag(
    "gateway.merge_doubled_rows",
    False,
    meaning="`true`: a user message that a gateway stores with the id of its platform, and the "
    "agent without one, is one row. True without this key where hermes-agent is attached. Read "
    "when a store is opened for writing.",
)
TURNS_REQUIRED = _sources(
    "turns.required",
    meaning="Sources, such as `[telegram, discord]`, whose conversations are written under a "
    "[turn](how-to/gateway.md#turns) only; `true`: all. Read when a store is opened for writing.",
)
BACKUP_KEEP = _whole(
    "updates.backup_keep",
    5,
    1,
    meaning="Copies that `backup` and `update` keep.",
)

ALL: tuple[Setting[Any], ...] = tuple(
    value for value in list(globals().values()) if isinstance(value, Setting)
)

OWN_SECTIONS = ("actor", "attach", "sessiondb", "turns")
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
