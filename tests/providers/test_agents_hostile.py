"""Bad input to every verb of every table, on every provider: a typed error that names the thing,
and nothing changed. The cases are made from the registry."""

import pytest
from support.agent_stores import START, everywhere, new_row, open_agents, session

from hermes_actor.agents.documents import dumps
from hermes_actor.agents.tables import LONGEST_VALUE, TABLES, Form
from hermes_actor.errors import BadValue, Conflict, NotFound, RequestError, ValueTooLarge
from hermes_protocol.agents import (
    AgentsCompare,
    AgentsCopy,
    AgentsDelete,
    AgentsPatch,
    AgentsPut,
    AgentsReplace,
    Comparison,
)

DEEP = "[" * 31 + "]" * 31
TIMES = ("2026-01-01", "2026-01-01T00:00:00Z", "2026-01-01T00:00:00.000+00:00",
         "2026-02-30T00:00:00.000Z", "２０２６-01-01T00:00:00.000Z", " ", "")  # fmt: skip
OF_FORM = {
    Form.TEXT: (7, 1.5, True),
    Form.JSON: ("{", "NaN", '"\\u0000"', '"\\ud800"', '{"a": "\\u0000"}', DEEP, 7),
    Form.FLAG: (2, "yes", 0.5, 1.0),
    Form.NUMBER: ("7", 1.5, 2**63, -(2**63) - 1, True),
    Form.SERIAL: ("7", 1.5, 2**63, True),
    Form.TIME: (*TIMES, 7),
}
TEXTS = ("nul \0", "half \ud800", b"bytes", ["list"], {"a": 1})


@pytest.fixture(scope="module")
def filled(kind, tmp_path_factory):
    """A store with a row of agent a in every table, and one of every global table."""
    with open_agents(kind, tmp_path_factory.mktemp("hostile") / "agents.db") as store:
        everywhere(store, "a")
        for table in TABLES.values():
            if not table.scoped:
                store.submit(AgentsPut(table=table.name, rows=[new_row(table, "x")], mode="ignore"))
        yield store


def hostile(column):
    """Values that *column* does not take."""
    yield from OF_FORM[column.form]
    yield from TEXTS
    if column.length:
        yield "x" * (column.length + 1)
    if column.values:
        yield "another"
    if not column.null and column.default is None and column.form is not Form.SERIAL:
        yield None


def key_of(table):
    return {name: 1 if name == table.serial else "shared" for name in table.key}


def operations(table, column, value):
    """Every verb with *value* in *column*, each of which must be refused."""
    of = {"table": table.name, "agent_id": "a" if table.scoped else None}
    good, key = new_row(table, "x"), key_of(table)
    row, name = {**good, column.name: value}, column.name
    if name == "agent_id" or column.form is Form.SERIAL:
        return
    for mode in ("insert", "upsert", "ignore"):
        if not (mode == "ignore" and name not in table.key and value is None):
            yield AgentsPut(rows=[row], mode=mode, **of)
    if name in table.key:
        yield AgentsPatch(key={**key, name: value}, set={}, **of)
        yield AgentsDelete(key={**key, name: value}, **of)
        yield AgentsReplace(key={**key, name: value}, rows=[good], **of)
    else:
        if value is not None or column.default is None:
            yield AgentsPatch(key=key, set={name: value}, **of)
        if value is not None:
            yield AgentsPatch(key=key, set={}, expect={name: value}, **of)
    if key:
        yield AgentsReplace(key=key, rows=[good, row], **of)
    if value is not None or column.default is None:
        whole = {**row, **({"agent_id": "a"} if table.scoped else {})}
        whole |= {table.serial: 2} if table.serial else {}
        yield AgentsCopy(table=table.name, rows=[whole])


def additions(table):
    """Everything that cannot be added to."""
    of = {"table": table.name, "agent_id": "a" if table.scoped else None, "key": key_of(table)}
    for column in table.columns:
        if column.form is not Form.NUMBER:
            yield column.name, AgentsPatch(set={}, add={column.name: 1}, **of)
        else:
            yield column.name, AgentsPatch(set={}, add={column.name: 2**63 - 1}, **of)
            yield column.name, AgentsPatch(set={column.name: 1}, add={column.name: 1}, **of)
    yield "nope", AgentsPatch(set={}, add={"nope": 1}, **of)
    yield "nope", AgentsPatch(set={}, expect={"nope": 1}, **of)
    yield "nope", AgentsPatch(set={"nope": 1}, **of)


def misnamed(table):
    """Unknown columns, foreign scopes, and agents where none is known."""
    of = {"table": table.name, "agent_id": "a" if table.scoped else None}
    good, key = new_row(table, "x"), key_of(table)
    for name in ("nope", 'a"; DROP TABLE agents --', "", *(("agent_id",) if table.scoped else ())):
        row = {**good, name: "b"}
        for mode in ("insert", "upsert", "ignore"):
            yield name, AgentsPut(rows=[row], mode=mode, **of)
        yield name, AgentsPatch(key=key, set={name: "b"}, **of)
        yield name, AgentsPatch(key=key, set={}, expect={name: "b"}, **of)
        yield "", AgentsPatch(key={**key, name: "b"}, set={}, **of)
        yield name, AgentsDelete(key={**key, name: "b"}, **of)
        yield name, AgentsReplace(key={**key, name: "b"}, rows=[good], **of)
        if name != "agent_id":
            yield name, AgentsCopy(table=table.name, rows=[row])
    scopes = {"agent": (None, "", "*", "a" * 192, "nul\0", "half \ud800"), "global": ("a", "*"),
              "wildcard": (None, "", "a" * 192, "nul\0", "half \ud800")}[table.scope]  # fmt: skip
    for scope in scopes:
        other = {"table": table.name, "agent_id": scope}
        yield "", AgentsPut(rows=[good], mode="upsert", **other)
        yield "", AgentsPatch(key=key, set={}, **other)
        yield "", AgentsDelete(key=key, **other)
        yield "", AgentsReplace(key=key, rows=[], **other)
        if table.scoped:
            yield "", AgentsCopy(table=table.name, rows=[{**good, "agent_id": scope, "id": 5}])
    if table.serial:
        for number in (None, 0, -1):
            whole = {**good, table.serial: number, **({"agent_id": "a"} if table.scoped else {})}
            yield table.serial, AgentsCopy(table=table.name, rows=[whole])
    for column in table.columns:
        if not column.secret and table.scoped:
            item = Comparison(table=table.name, agent_id="a", key=key, column=column.name,
                              old="x", new="y")  # fmt: skip
            yield column.name, AgentsCompare(items=[item])


def refused(store, table, name, operation):
    with pytest.raises((BadValue, ValueTooLarge)) as caught:
        store.submit(operation)
    text = str(caught.value)
    assert name in text, (operation, text)
    assert table.name in text or "agent_id" in text, (operation, text)
    assert len(text) < 400


@pytest.mark.parametrize("table", TABLES.values(), ids=lambda table: table.name)
def test_bad_values_are_refused_by_every_verb(filled, table):
    before = {name: filled.rows(name) for name in TABLES}
    for column in table.columns:
        for value in hostile(column):
            for operation in operations(table, column, value):
                refused(filled, table, column.name, operation)
    for name, operation in [*additions(table), *misnamed(table)]:
        refused(filled, table, name, operation)
    assert {name: filled.rows(name) for name in TABLES} == before


def test_huge_values_are_refused(filled):
    before = filled.of("a").memories.list()
    long = "x" * (LONGEST_VALUE + 1)
    for call in (
        lambda: filled.of("a").memories.put(long, key="k"),
        lambda: filled.of("a").instructions.set("k", long),
        lambda: filled.of("a").secrets.set("K", long),
        lambda: filled.of("a").config.set({"a": long}),
        lambda: filled.of("a").events.append("shared", {"role": "user", "content": long}),
    ):
        with pytest.raises(ValueTooLarge):
            call()
    assert filled.of("a").memories.list() == before
    assert filled.of("a").instructions.get("k") is None
    assert filled.of("a").secrets.get("K") is None


def test_huge_values_are_refused_before_any_work(filled, monkeypatch):
    """Refused by length, not after a minute of looking for words in 64 MiB."""
    monkeypatch.setattr("hermes_actor.agents.words.columns", lambda *_: pytest.fail("too late"))
    with pytest.raises(ValueTooLarge, match=r"memories\.content has 67108864 characters"):
        filled.of("a").memories.put("x" * 2**26, key="k")
    with pytest.raises(BadValue, match="invalid cron expression"):
        filled.of("a").schedules.create("cron", "p", cron_expression="1," * 2**20 + "1 * * * *")


def test_rows_that_are_not_there(filled):
    """A missing row is missing for every verb, and a parent is looked for before its child."""
    of = {"table": "schedule_runs", "agent_id": "a"}
    with pytest.raises(NotFound, match="Run not found: 99"):
        filled.submit(AgentsPatch(key={"id": 99}, set={"error": "x"}, **of))
    assert filled.submit(AgentsPatch(key={"id": 99}, set={}, missing="nothing", **of)) is None
    assert filled.submit(AgentsDelete(key={"id": 99}, **of)) == {}
    orphan = {**new_row(TABLES["schedule_runs"], "x"), "schedule_id": "nope"}
    with pytest.raises(NotFound, match="Schedule not found: nope"):
        filled.submit(AgentsPut(rows=[orphan], **of))
    whole = {**orphan, "id": 9, "agent_id": "a"}
    with pytest.raises(NotFound, match="Schedule not found: nope"):
        filled.submit(AgentsCopy(table="schedule_runs", rows=[whole]))


def test_expectation_that_fails_changes_nothing(filled):
    of = {"table": "agent_channels", "key": {"id": "shared"}, "agent_id": "a"}
    for expect in (
        {"enabled": False},
        {"label": None},
        {"config": "{}"},
        {"total_failure_count": 0},
    ):
        with pytest.raises(Conflict, match=f"{next(iter(expect))} is not"):
            filled.submit(AgentsPatch(set={"label": "new"}, expect=expect, **of))
    same = {"enabled": True, "label": "only-a", "config": '{ "of":"only-a" }'}
    assert filled.submit(AgentsPatch(set={"label": "only-a"}, expect=same, **of)) is not None


@pytest.mark.parametrize("text", ["nul \0", "half \ud800"])
def test_questions_about_what_no_row_can_hold(filled, text):
    a = filled.of("a")
    for ask in (
        lambda: a.memories.search(text), lambda: a.memories.list(text),
        lambda: a.memories.get(text), lambda: a.sessions.get(text),
        lambda: a.sessions.list(user_id=text), lambda: a.events.history(text),
        lambda: a.events.find_by_message_id("shared", text), lambda: a.users.resolve(text, "x"),
        lambda: a.users.identities(text), lambda: a.schedules.list_all(text),
        lambda: a.skills.list_assignments(text), lambda: a.agents.fleet_stats([text]),
        lambda: a.credentials.list("x", text), lambda: a.sandboxes.find_agent_by_type(text),
    ):  # fmt: skip
        with pytest.raises(BadValue):
            ask()
    for change in (
        lambda: a.users.ensure_for_identity("c", text), lambda: a.users.merge(text, "shared"),
        lambda: a.users.link_identity("shared", text, "x"), lambda: a.schedules.claim(text),
        lambda: a.events.append_once("shared", text, {"role": "user", "content": "x"}),
        lambda: a.instructions.change("set", "k", text), lambda: a.config.set_path("a", text),
        lambda: a.events.append("shared", {"role": "user", "content": text}),
    ):  # fmt: skip
        with pytest.raises(BadValue):
            change()


def test_one_huge_number_does_not_stop_the_others(filled):
    """An approval that never ends; and a lease that has no end."""
    a = filled.of("a")
    a.approvals.create("shared", "u", "tool", "x", ttl_minutes=2**62)
    assert a.approvals.expire_old() >= 0
    asked = a.approvals.create("shared", "u", "tool", "rm", ttl_minutes=2**62)
    a.approvals.resolve(asked["id"], "approved", "u")
    assert a.approvals.find_approved("u", "tool", "rm")["id"] == asked["id"]
    for lease in (float("nan"), "long"):
        with pytest.raises(BadValue):
            a.schedules.claim("w", lease_seconds=lease)
    with pytest.raises(RequestError):
        a.schedules.claim("w", lease_seconds=float("-inf"))


USAGES = (
    {"input": "abc"}, {"input": "NaN"}, {"input": "Infinity"}, {"input": "1e999"}, {"input": "7"},
    {"input": 1e308}, {"input": -1e308}, {"input": 10**400}, {"input": 1e-320}, {"input": True},
    {"input": [7]}, {"input": {"a": 7}}, {"input": None}, {"cost": 7}, {"cost": {"total": "7"}},
    "abc", [7],
)  # fmt: skip
"""What a broken program may log as its usage, twice each: sums must not run over either."""


def test_usage_that_is_no_number_counts_as_none(agents):
    """One agent cannot end the sums over all of them."""
    broken, fine = agents.new(), agents.new()
    good = {"input": 5, "cost": {"total": 0.5}}
    for store in (broken, fine):
        session(store)
        store.events.append("s1", {"role": "assistant", "content": "x", "usage": good})
    for usage in (*USAGES, *USAGES):
        broken.events.append("s1", {"role": "assistant", "content": "x", "usage": usage})
    ids = [broken.agent_id, fine.agent_id]
    found = agents.all.agents.fleet_usage(ids, all_time=True)
    assert [found[one]["all_time"]["input_tokens"] for one in ids] == [5, 5]
    assert [found[one]["window_24h"]["cost_usd"] for one in ids] == [0.5, 0.5]
    assert broken.agents.usage_detail()["totals"]["input_tokens"] == 5


def test_ids_that_no_agent_can_have(filled):
    long = "x" * 192
    assert filled.agents.fleet_stats([long], since=START).keys() == {long}
    assert filled.agents.fleet_usage([long, "", "*"]) == {}


def nested(levels):
    document = {}
    for _ in range(levels):
        document = {"a": document}
    return document


def test_deep_documents_are_refused(agents):
    """What one process stores another must be able to read, however deep its own calls are."""
    store = agents.new()
    store.agents.create("/w")
    store.config.set({"keep": 1, "list": [1, 2]})
    for call in (
        lambda: store.config.set(nested(900)),
        lambda: store.config.set_path("b", nested(30)),
        lambda: store.security.set_path(".".join("a" * 31), 1),
        lambda: store.config.set_path("a." * 100_000, 1),
        lambda: agents.new().agents.provision("/w", config=nested(900)),
        lambda: agents.new().agents.provision("/w", security=nested(900)),
    ):
        with pytest.raises(BadValue, match="nested deeper than 30 levels"):
            call()
    assert store.config.get() == {"keep": 1, "list": [1, 2]}
    assert store.security.get() is None
    for path in ("list." + "9" * 5000, "list.-1", "list.٣", "list.²", "list.2", "keep.0"):
        assert store.config.get_path(path) is None, path
    # Another program may write deeper ones.
    deep = {"config_json": dumps(nested(900))}
    store.submit(AgentsPatch(table="agents", agent_id=store.agent_id, key={}, set=deep))
    with pytest.raises(BadValue, match="nested too deeply"):
        store.config.resolved()


def test_long_queries_are_answered(agents):
    """A whole message may be the query: as many words as it likes, up to a limit with a name."""
    store = agents.new()
    text = " ".join(f"word{number}" for number in range(1_900))
    store.memories.put(text, key="whole")
    store.memories.put(text.replace("word1899", "another"), key="nearly")
    store.memories.put("word1500 alone", key="part")
    found = store.memories.search(text, limit=5)
    assert [one["id"] for one in found] == ["whole", "nearly", "part"]
    with pytest.raises(BadValue, match=r"the query has 3000 words; the most is 2000"):
        store.memories.search("word " * 3_000)


WRONG = {
    "memories.put key": lambda a: a.memories.put("x", key=7),
    "memories.put grants": lambda a: a.memories.put("x", grants=5),
    "memories.put metadata": lambda a: a.memories.put("x", metadata=5),
    "memories.search": lambda a: a.memories.search(5),
    "memories.search limit": lambda a: a.memories.search("x", limit="a"),
    "memories.search nan": lambda a: a.memories.search("x", limit=float("nan")),
    "memories.list inf": lambda a: a.memories.list(limit=float("inf")),
    "sessions.upsert": lambda a: a.sessions.upsert([]),
    "sessions.upsert id": lambda a: a.sessions.upsert({"session_id": 1, "source": {"kind": "x"}}),
    "sessions.upsert source": lambda a: a.sessions.upsert({"session_id": "x", "source": {}}),
    "sessions.list": lambda a: a.sessions.list(limit="a"),
    "sessions.sweep": lambda a: a.sessions.mark_stale_inactive("nope"),
    "events.append": lambda a: a.events.append(7, {"role": "user"}),
    "events.entry": lambda a: a.events.append("shared", ["role"]),
    "events.history": lambda a: a.events.history("shared", limit="a"),
    "events.messages_since": lambda a: a.events.messages_since("shared", 2**70),
    "events.recent": lambda a: a.events.recent_messages("shared", None),
    "config": lambda a: a.config.set([]),
    "config path": lambda a: a.config.set_path(5, 1),
    "secrets name": lambda a: a.secrets.set(5, "x"),
    "secrets value": lambda a: a.secrets.set("K", None),
    "secrets list": lambda a: a.secrets.replace_all(["x"]),
    "secrets names": lambda a: a.secrets.replace_all({"1 2": "x"}),
    "schedules prompt": lambda a: a.schedules.create("once", 5, run_at="2026-01-01"),
    "schedules cron": lambda a: a.schedules.create("cron", "p", cron_expression=5),
    "schedules limit": lambda a: a.schedules.claim("w", limit="x"),
    "schedules worker": lambda a: a.schedules.claim(5),
    "schedules run": lambda a: a.schedules.complete("a", "x", "w", "completed"),
    "channels": lambda a: a.channels.create_external(5),
    "channels config": lambda a: a.channels.create_external("y", config=[1]),
    "credentials": lambda a: a.credentials.set("c", "p", "k", 5),
    "users": lambda a: a.users.upsert([]),
    "users id": lambda a: a.users.upsert({"user_id": 5}),
    "users style": lambda a: a.users.ensure_for_identity("c", "x", style="nope"),
    "users role": lambda a: a.users.assign_role(5, "user"),
    "skills": lambda a: a.skills.upsert({}),
    "skills column": lambda a: a.skills.upsert({"id": "x", "name": "n", "path": "p", "no": 5}),
    "mcp": lambda a: a.mcp.upsert({"id": "x", "name": "n", "url": 5}),
    "instructions": lambda a: a.instructions.change(5, "k", "x"),
    "meta": lambda a: a.meta.set_json("k", object()),
    "agents channels": lambda a: a.of("new").agents.provision("/w", channels=[{"nope": 1}]),
    "agents channel": lambda a: a.of("new").agents.provision("/w", channels=[5]),
    "agents sandbox": lambda a: a.of("new").agents.provision("/w", sandbox={"type": "nope"}),
    "agents ids": lambda a: a.agents.fleet_stats([5]),
    "agents since": lambda a: a.agents.fleet_stats(["x"], since="nope"),
    "policies": lambda a: a.policies.upsert("t", "k", effect="nope"),
    "approvals": lambda a: a.approvals.create(1, 2, 3, 4),
    "attachments": lambda a: a.attachments.create("shared", nope=1),
    "sandboxes": lambda a: a.sandboxes.create("x", "nope"),
    "tokens": lambda a: a.tokens.try_consume("x", "y"),
    "scope": lambda a: a.of(5),
}


def test_calls_with_wrong_values_are_refused(filled):
    before = {name: filled.rows(name) for name in TABLES}
    for name, call in WRONG.items():
        try:
            call(filled.of("a"))
        except BadValue as error:
            assert len(str(error)) > 15, name
        else:
            pytest.fail(f"{name} was taken")
    assert {name: filled.rows(name) for name in TABLES} == before
