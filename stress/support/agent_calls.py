"""Random programs of calls of an agent store, and answers in a form that two stores share.

A call is a name of a method and its arguments; they come from small pools, so that calls meet the
same rows, and many are refused. Numbers and random ids of a store are replaced by the order in
which they appear, and times by those of a clock that every store has of its own.
"""

import random
import re
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any

from hermes_actor import AgentStore
from hermes_actor.agents.documents import loads
from hermes_actor.agents.tables import TABLES, Form
from hermes_actor.agents.times import after
from hermes_actor.errors import RequestError
from support.agent_stores import START, Clock

__all__ = ["CALLS", "Answers", "Call", "program", "run"]

Call = tuple[str, tuple[Any, ...], dict[str, Any]]

_TEXTS = (
    "Deploy the deployment twice: deployment notes", "running in the skies", "部署 deployment流程",
    "100% sure", "a_b \\ c", "", "École élan", "well-known user/usr-1/x", "the of", "news 3.14",
)  # fmt: skip
_QUERIES = ("deployment", "runs", "部署", "a_b", "%", "the of", "ÉCOLE", "usr-1", "  ", "x, y;z")
_KEYS = ("k", "K", "a/b", "a/B", "用户", "e\u0301", "é", " k", "b%", "👍")
_AT = tuple(after(START, seconds) for seconds in (-60, 0, 1.5, 60, 3600))


class _Draw:
    """Arguments, drawn from small pools."""

    def __init__(self, chance: random.Random) -> None:
        self.one = chance.choice
        self.chance = chance

    def key(self) -> str:
        return self.one(_KEYS)

    def text(self) -> str:
        return self.one(_TEXTS)

    def user(self) -> str:
        return self.one(("u1", "u2", "u3", "U1", "nobody"))

    def session(self) -> str:
        return self.one(("s1", "s2", "S1", "none"))

    def schedule(self) -> str:
        return self.one(("j1", "j2", "J1", "none"))

    def agent(self) -> str:
        return self.one(("*", "*", "other", "self"))

    def time(self) -> str:
        return self.one(_AT)

    def number(self) -> int:
        return self.one((0, 1, 2, 3, 50, -1))

    def flag(self) -> bool:
        return self.one((True, False))

    def who(self) -> Any:
        return self.one((None, (self.user(), "guest"), (None, None), ("u1", "owner")))

    def document(self) -> Any:
        return self.one((
            {}, {"a": {"b": 1}}, {"a": [1, {"x": None}]}, {"n": 0.5, "z": [True, "部署", 10**15]},
        ))  # fmt: skip

    def grants(self) -> Any:
        return self.one((
            [], [{"type": "any"}], [{"type": "role", "value": "guest"}],
            [{"type": "user", "value": self.user()}, {"type": "role", "value": "user"}],
        ))  # fmt: skip

    def entry(self) -> dict[str, Any]:
        role = self.one(("user", "assistant", "tool_call", "tool_result", "error", "system", "odd"))
        made = {"role": role, "content": self.text(), "ts": self.time()}
        more = self.one((
            {}, {"userId": self.user()}, {"type": "agent_end"}, {"type": "introspection_end"},
            {"type": "context_compaction"}, {"message": "boom"}, {"name": "tool", "isError": True},
            {"usage": {"input": 3, "output": 4, "cost": {"total": 0.25}}, "model": "m"},
        ))  # fmt: skip
        return {**made, **more}


def _entry_of_session(draw: _Draw) -> dict[str, Any]:
    source = {"kind": draw.one(("cli", "api")), "interactive": draw.flag()}
    made = {"session_id": draw.session(), "source": source, "last_activity_at": draw.time()}
    more = draw.one((
        {}, {"user_ids": ["u1", "u2"]}, {"metadata": {"z": 1, "a": True}}, {"status": "inactive"},
        {"type": "group"}, {"description": draw.text(), "description_source": "ai"},
        {"message_count": draw.number()}, {"status": "odd"}, {"custom_instruction": "x"},
    ))  # fmt: skip
    return {**made, **more}


def _schedule(draw: _Draw) -> tuple[tuple[Any, ...], dict[str, Any]]:
    fields = draw.one((
        {"cron_expression": "*/5 * * * *"}, {"cron_expression": "0 0 29 2 *"},
        {"cron_expression": "nonsense"}, {"run_at": draw.time()}, {"run_at": "soon"}, {},
    ))  # fmt: skip
    more = draw.one((
        {}, {"session_mode": "ephemeral"}, {"delivery": {"session": "s1"}}, {"created_by": "u1"},
        {"policy": {"timeout_seconds": 5}},
    ))  # fmt: skip
    kind = "cron" if "cron_expression" in fields else "once"
    return (kind, "do it"), {**fields, **more, "schedule_id": draw.schedule()}


def _plain(*names: str) -> Callable[[_Draw], tuple[tuple[Any, ...], dict[str, Any]]]:
    """Arguments by the names of what is drawn."""
    return lambda draw: (tuple(getattr(draw, name)() for name in names), {})


def _given(
    *names: str, **pools: tuple[Any, ...]
) -> Callable[[_Draw], tuple[tuple[Any, ...], dict[str, Any]]]:
    """Arguments by what is drawn, and one of the options."""

    def make(draw: _Draw) -> tuple[tuple[Any, ...], dict[str, Any]]:
        name = draw.one(sorted(pools))
        return tuple(getattr(draw, one)() for one in names), {name: draw.one(pools[name])}

    return make


_EXPECTED = _plain()
_LIMIT = (0, 1, 2, 50)
CALLS: dict[str, Callable[[_Draw], tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "agents.create": _given("key", name=(None, "Max"), status=("active", "disabled", "odd")),
    "agents.provision": lambda draw: (("/w",), {"owner": draw.user(), "config": draw.document()}),
    "agents.update": _given(name=(None, "Eva"), workspace_dir=("/x",)),
    "agents.set_status": lambda draw: ((draw.one(("active", "disabled", "odd")),), {}),
    "agents.get": _EXPECTED, "agents.remove": _EXPECTED,
    "agents.set_backend_state": _plain("document"), "agents.backend_state": _EXPECTED,
    "agents.assign_owner": _plain("user"), "agents.usage_detail": _EXPECTED,
    "agents.fleet_stats": lambda draw: ((["self", "other"],), {"since": draw.time()}),
    "agents.fleet_usage": lambda draw: ((["self", "other"],), {"all_time": draw.flag()}),
    "agents.check": _EXPECTED,
    "config.set": _plain("document"), "config.get": _EXPECTED,
    "config.set_path": lambda draw: ((draw.one(("a", "a.b", "a.0", "", "x..y")),
                                      draw.one((1, None, {"q": 2}, "text"))), {}),
    "config.get_path": lambda draw: ((draw.one(("a", "a.b", "a.1.x", "", "no")),), {}),
    "sessions.upsert": lambda draw: ((_entry_of_session(draw),), {}),
    "sessions.get": _plain("session"),
    "sessions.list": _given(user_id=("u1", "u3"), include_inactive=(True,), limit=_LIMIT,
                            before=_AT),
    "sessions.set_status": lambda draw: ((draw.session(), draw.one(("idle", "running", "x"))), {}),
    "sessions.set_description": lambda draw: ((draw.session(), draw.text(), "fallback"), {}),
    "sessions.delete": _plain("session"), "sessions.mark_stale_inactive": _plain("time"),
    "sessions.set_working_memory": _plain("session", "text"),
    "sessions.working_memory": _plain("session"),
    "events.append": _plain("session", "entry"),
    "events.append_once": _plain("session", "key", "entry"),
    "events.append_many": lambda draw: ((draw.session(), [draw.entry(), draw.entry()]), {}),
    "events.record_message": lambda draw: ((draw.session(), draw.entry()), {
        "message_id": draw.one((None, "m1", "m2")), "user_id": draw.one((None, "u1")),
        "preview": draw.one((None, "p"))}),
    "events.history": _given("session", limit=_LIMIT), "events.entries": _plain("session"),
    "events.messages_since": lambda draw: ((draw.session(), 0), {}),
    "events.recent_messages": lambda draw: ((draw.session(), draw.number()), {}),
    "events.find_by_message_id": _plain("session", "key"),
    "events.entries_since_compaction": _plain("session"), "events.cursors": _plain("session"),
    "events.set_compaction_summary": _plain("session", "text"),
    "events.compaction_summary": _plain("session"),
    "memories.put": lambda draw: ((draw.text(),), {
        "key": draw.key(), "metadata": draw.document(), "grants": draw.grants()}),
    "memories.update": _given("key", content=_TEXTS, metadata=({"a": 1}, {}), grants=([],)),
    "memories.get": _plain("key"), "memories.delete": _plain("key"),
    "memories.list": lambda draw: ((draw.one(("", "a/", "k", "K", "b%")),),
                                   {"limit": draw.number(), "principal": draw.who()}),
    "memories.search": lambda draw: ((draw.one(_QUERIES),),
                                     {"limit": draw.number(), "principal": draw.who()}),
    "memories.context_block": _EXPECTED,
    "instructions.set": _plain("key", "text"), "instructions.get": _plain("key"),
    "instructions.change": lambda draw: ((draw.one(("set", "append", "remove", "odd")),
                                          draw.key(), draw.text()), {}),
    "instructions.fan_out": lambda draw: ((draw.one(("set", "append", "remove")), "all", "x"), {}),
    "instructions.seed": lambda draw: (({draw.key(): "x", "k": "y"},), {}),
    "instructions.list": _EXPECTED, "instructions.delete": _plain("key"),
    "users.upsert": lambda draw: (({"user_id": draw.user(),
                                    **draw.one(({}, {"name": "Eva"}))},), {}),
    "users.get": _plain("user"), "users.described": _plain("user"), "users.list": _EXPECTED,
    "users.delete": _plain("user"), "users.merge": _plain("user", "user"),
    "users.link_identity": lambda draw: ((draw.user(), "telegram", draw.key()), {}),
    "users.unlink_identity": lambda draw: (("telegram", draw.key()), {}),
    "users.resolve": lambda draw: (("telegram", draw.key()), {}),
    "users.ensure_for_identity": lambda draw: (("slack", draw.key()), {"style": "handle"}),
    "users.identities": _plain("user"), "users.roles_of": _plain("user"),
    "users.assign_role": lambda draw: ((draw.user(), draw.one(("owner", "user", "odd"))), {}),
    "users.promote_owner": _plain("user"), "users.remove_role": _plain("user"),
    "users.members": _EXPECTED, "users.role": _plain("user"),
    "skills.upsert": lambda draw: (({"id": draw.key(), "name": draw.key(), "path": "/p",
                                     **draw.one(({}, {"slug": "s"}, {"metadata": {"a": 1}}))},),
                                   {}),
    "skills.enable": lambda draw: ((draw.key(),), {"agent": draw.agent()}),
    "skills.disable": lambda draw: ((draw.key(),), {"agent": draw.agent()}),
    "skills.list_enabled": _EXPECTED, "skills.list": _EXPECTED, "skills.delete": _plain("key"),
    "skills.list_assignments": _EXPECTED,
    "mcp.upsert": lambda draw: (({"id": draw.key(), "name": draw.key(), "url": "http://x",
                                  "headers": {"A": "${{K}}"}},), {}),
    "mcp.enable": lambda draw: ((draw.key(),), {"agent": draw.agent()}),
    "mcp.disable": lambda draw: ((draw.key(),), {"agent": draw.agent()}),
    "mcp.list_enabled": _EXPECTED, "mcp.headers": _plain("key"), "mcp.delete": _plain("key"),
    "secrets.set": lambda draw: ((draw.one(("K", "k", "no name")), draw.text()),
                                 {"pass_through": draw.one((None, True))}),
    "secrets.entries": _EXPECTED, "secrets.masked": _EXPECTED, "secrets.names": _EXPECTED,
    "secrets.delete": lambda draw: ((draw.one(("K", "k")),), {}),
    "secrets.replace_all": lambda draw: ((draw.one(({}, {"A": "1", "K": "2"}, {"x y": "3"})),), {}),
    "credentials.set": lambda draw: (("w", draw.one(("d", "D")), draw.key(), draw.text()), {}),
    "credentials.list": lambda draw: (("w", draw.one(("d", "D"))), {}),
    "credentials.replace": lambda draw: (("w", "d", draw.one(({}, {"q": "1"}))), {}),
    "channels.create_builtin": lambda draw: ((draw.one(("telegram", "Telegram")),),
                                             {"config": draw.document()}),
    "channels.create_external": _plain("key"),
    "channels.list": _EXPECTED, "channels.find_builtin": lambda draw: (("telegram",), {}),
    "schedules.create": _schedule, "schedules.get": _plain("schedule"),
    "schedules.list": _given(status=("active", "paused", None)),
    "schedules.update": _given("schedule", status=("paused", "active", "odd"), run_at=_AT,
                               cron_expression=("* * * * *", "bad")),
    "schedules.trigger": _plain("schedule"), "schedules.delete": _plain("schedule"),
    "schedules.mark_run": lambda draw: ((draw.schedule(), draw.time()),
                                        {"error": draw.one((None, "", "boom"))}),
    "schedules.start_run": lambda draw: ((draw.schedule(), "s1", "p"), {}),
    "schedules.claim": lambda draw: ((draw.one(("w1", "w2")),), {"now": draw.time()}),
    "schedules.due": _plain("time"), "schedules.runs": _plain("schedule"),
    "sandboxes.create": lambda draw: ((draw.key(), draw.one(("docker", "host", "odd"))),
                                      {"id_": None}),
    "sandboxes.list": _EXPECTED, "sandboxes.get_by_alias": _plain("key"),
    "sandboxes.find_agent_by_type": lambda draw: (("host",), {}),
    "policies.upsert": lambda draw: (("tool", draw.one(("rm", "r*", "*"))), {
        "effect": draw.one(("allow", "deny", "require_approval")), "grants": draw.grants()}),
    "policies.evaluate": lambda draw: (("tool", draw.one(("rm", "rmdir")),
                                        draw.who() or ("u1", "user")), {}),
    "policies.delete": lambda draw: (("tool", "rm"), {}), "policies.list": _EXPECTED,
    "approvals.create": lambda draw: (("s1", draw.user(), "tool", "rm"), {}),
    "approvals.list": _given(status=(None, "pending")),
    "approvals.find_approved": lambda draw: ((draw.user(), "tool", "rm"), {}),
    "attachments.create": lambda draw: ((draw.session(),), {
        "original_name": "a", "safe_name": "a", "mime_type": "x", "size_bytes": 1, "sha256": "0",
        "storage_provider": "local", "storage_key": "k"}),
    "attachments.list": _plain("session"),
    "meta.set": lambda draw: ((draw.key(), draw.text()), {}), "meta.get": _plain("key"),
    "tokens.try_consume": lambda draw: ((draw.key(), 5), {}),
}  # fmt: skip
"""Methods, and how their arguments are drawn."""


def program(seed: int, length: int) -> list[Call]:
    """Return the calls of one program."""
    chance = random.Random(seed)
    draw = _Draw(chance)
    names = sorted(CALLS)
    # Without these nearly every other call would be refused.
    calls = ["sessions.upsert", "users.upsert", "skills.upsert", "schedules.create"]
    calls += [chance.choice(names) for _ in range(length - len(calls))]
    return [(name, *CALLS[name](draw)) for name in calls]


_RANDOM = re.compile(
    r"\b(?:mem-[0-9a-f]{8}|chr-[0-9a-f]{16}|oh_ch_[0-9a-f]{6,48}|usr-[0-9a-z-]{6,40}|u_[0-9a-f]{16}"
    r"|(?:att_)?[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12})"
)
_NUMBERED = {"id", "ids", "event_id", "latest_id", "last_introspection_id", "short_id"}


class Answers:
    """The answers of one store: numbers and random ids become the order in which they appear."""

    def __init__(self) -> None:
        self._seen: dict[Any, str] = {}

    def _nth(self, value: Any) -> str:
        return self._seen.setdefault(value, f"#{len(self._seen)}")

    def of(self, value: Any, name: str = "") -> Any:
        """Return *value* in the form that is the same for every store."""
        if isinstance(value, dict):
            return {key: self.of(value[key], key) for key in sorted(value)}
        if isinstance(value, list | tuple):
            # Rows that differ by a random id alone have no order but that of their numbers.
            return [
                one
                for _, alike in groupby(value, _without_chance)
                for one in sorted((self.of(one, name) for one in alike), key=repr)
            ]
        if isinstance(value, str):
            return _RANDOM.sub(lambda found: self._nth(found[0]), value)
        numbered = name in _NUMBERED and isinstance(value, int) and value
        return self._nth(value) if numbered else value


def run(
    store: AgentStore, names: dict[str, str], calls: list[Call], seen: Answers
) -> Iterator[Any]:
    """Give the answer to each call, made as the agent ``self`` of *names*, and all rows at last."""
    agent = store.of(names["self"])
    agent.now = Clock()
    for one in vars(agent).values():
        if hasattr(one, "_store"):
            one._store = agent
    for name, positional, named in calls:
        subject, method = name.split(".")
        try:
            found = getattr(getattr(agent, subject), method)(
                *_named(positional, names), **_named(named, names)
            )
        except RequestError as error:
            found = f"{type(error).__name__}: {error}"
        yield name, seen.of(found, "ids" if isinstance(found, int) and _numbers(name) else "")
    for table in TABLES.values():
        rows = [_stored(table, row) for row in store.rows(table.name)]
        # Some tables are in the order of random ids.
        yield table.name, sorted(seen.of(sorted(rows, key=_without_chance)), key=repr)


def _without_chance(value: Any) -> str:
    return _RANDOM.sub("?", repr(value))


def _numbers(name: str) -> bool:
    return name in ("events.append", "events.set_compaction_summary", "events.find_by_message_id")


def _named(value: Any, names: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _named(one, names) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_named(one, names) for one in value)
    return names.get(value, value) if isinstance(value, str) else value


def _stored(table: Any, row: dict[str, Any]) -> dict[str, Any]:
    """Return a row without what chance and spelling make of it."""
    made = {}
    for column in table.columns:
        value = row[column.name]
        if column.form is Form.JSON and value is not None:
            value = loads(value)
        elif column.form is Form.FLAG:
            value = bool(value)
        elif column.secret:
            value = "sealed"
        made[column.name] = value
    return made
