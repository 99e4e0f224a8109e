"""Random programs for a store and for the model of it, and how the two are compared."""

import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import product
from typing import Any, NamedTuple
from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st

from support.model import Model, OneOf, Ranked, Tied

LONG = settings().max_examples > 100

Strategy = st.SearchStrategy[Any]
Draw = Callable[[Strategy], Any]
Arguments = dict[str, Any]
Call = tuple[str, Arguments]
"""A method of the store and its arguments."""
Step = tuple[float, Call]
"""Seconds that pass, and the change that is made then."""

# --- what a program may do ---------------------------------------------------------------------

IDS = ["a", "A", "ab", "b_", "bx", "c%", "d"]


class Old(NamedTuple):
    """One of the sessions that are there when the step is taken."""

    place: int


class New(NamedTuple):
    """An id that no session has then."""

    place: int


SOURCES = ["cli", "tui", "telegram"]
USERS = ["7", "u"]
TITLES = ["t", "T", "t #2", "t #7", "t #x", "T #9", "t #2 #3", "a%b", "a_b", "a_b #4", "axb #5"]
DIRTY_TITLES = [None, "", " \t", "t\u200b ", " t\n#2 ", "\ufeffü", "x" * 100, "x" * 101]
SET_TITLES = TITLES[:7] * 3 + TITLES + DIRTY_TITLES
ROLES = ["user", "user", "assistant", "assistant", "tool", "system"]
KEYS = ["k", "last_auto_prune", "goal:a"]
ALPHABET = "ab 北京烤鸭µ\0😀\n%_É9"
TEXTS = [
    "", "walrus", "Walrus, giraffe!", "giraffe 北京", "上海烤鸭店", "x北京烤鸭y", "µ京", "A北 b京",
    "tail 北京", "北京\0walrus", "walrus\0京", "l\r\nines\n", "long " * 13, "x" * 59 + "é北京",
    "x" * 60 + "   y",
    " <memory-context>m</memory-context> walrus ", "open <memory-context> end",
    "\0json:[1, 2]", '\0json:{"type": "walrus"}', "\0json:[broken",
]  # fmt: skip
STRUCTURED = [
    [{"type": "text", "text": "giraffe 北京"}, {"type": "image_url", "url": "walrus"}],
    [{"type": "image_url", "url": "x"}], [{"type": "text", "text": ""}], {"walrus": ["北京"]}, [],
    5, 1.5, True, b"raw bytes",
]  # fmt: skip


def weighted(weights: list[tuple[Strategy, int]]) -> Strategy:
    """One of several strategies, by weight; ``one_of`` would count equal ones once."""
    repeated = [strategy for strategy, weight in weights for _ in range(weight)]
    return st.sampled_from(repeated).flatmap(lambda strategy: strategy)


any_id = st.sampled_from([*IDS, "absent"])
old = st.builds(Old, st.integers(0, 6))
new = st.builds(New, st.integers(0, 6))
ids = weighted([(old, 9), (any_id, 1)])
free = weighted([(new, 5), (any_id, 1)])
texts = st.one_of(st.sampled_from(TEXTS), st.text(ALPHABET, max_size=8))
contents = weighted([(st.none(), 1), (texts, 6), (st.sampled_from(STRUCTURED), 2)])
tool_calls = st.sampled_from(
    [None, None, [], {}, "", [{"id": "walrus"}], [{"x": "北京"}, 2], {"one": 1}, "call"]
)
names = st.sampled_from([None, "", "walrus", "北京", "tool北", "北\0x", "scan_port"])
small = st.integers(-3, 9)
money = st.sampled_from([None, 0.0, 0.25, 1.5])
days = st.sampled_from([90, 90, 90, 30, 7, 1, 0.5, 0, -1])


def extras(draw: Draw) -> Arguments:
    """Some of the other fields of a message."""
    fields = {
        "tool_name": names,
        "tool_calls": tool_calls,
        "tool_call_id": st.sampled_from([None, "", "c1"]),
        "token_count": st.sampled_from([None, 0, 5]),
        "finish_reason": st.sampled_from([None, "", "stop"]),
        "reasoning": st.sampled_from([None, "", "why"]),
        "reasoning_content": st.sampled_from([None, "", "deep"]),
        "reasoning_details": st.sampled_from([None, [], [{"x": 1}]]),
        "codex_reasoning_items": st.sampled_from([None, {}, {"x": "北"}]),
        "codex_message_items": st.sampled_from([None, [1, 2]]),
    }
    chosen = draw(st.sets(st.sampled_from(sorted(fields)), max_size=4))
    return {name: draw(fields[name]) for name in sorted(chosen)}


@st.composite
def messages(draw: Draw) -> Arguments:
    message: Arguments = {
        "role": draw(st.sampled_from(ROLES)),
        "content": draw(contents),
        **extras(draw),
    }
    if draw(st.integers(0, 9)) == 0:
        del message["role"]
    message |= draw(st.sampled_from([{}, {}, {}, {"timestamp": 5.0, "id": 1}]))
    return message


@st.composite
def appended(draw: Draw) -> Arguments:
    role = draw(st.sampled_from([*ROLES, *ROLES, None]))
    return {"role": role, "content": draw(contents), **extras(draw)}


def call(method: str, **arguments: Strategy) -> Strategy:
    return st.tuples(st.just(method), st.fixed_dictionaries(arguments))


def some(method: str, required: dict[str, Strategy], **optional: Strategy) -> Strategy:
    return st.tuples(st.just(method), st.fixed_dictionaries(required, optional=optional))


CREATE = some(
    "create_session",
    {"session_id": free, "source": st.sampled_from(SOURCES)},
    parent_session_id=ids,
    user_id=st.sampled_from(USERS),
    model=st.sampled_from(["m1", "m2"]),
    model_config=st.sampled_from([{}, {"x": "北"}]),
    system_prompt=texts,
)
CONTINUE = call("continue_session", old=ids, new=free)
END = call(
    "end_session",
    session_id=ids,
    end_reason=st.sampled_from(["compression", "branched", "cli_close", None]),
)
TOKENS = some(
    "update_token_counts",
    {"session_id": ids},
    input_tokens=small,
    output_tokens=small,
    cache_read_tokens=small,
    cache_write_tokens=small,
    reasoning_tokens=small,
    api_call_count=st.integers(0, 2),
    estimated_cost_usd=money,
    actual_cost_usd=money,
    cost_status=st.sampled_from([None, "ok", "late"]),
    cost_source=st.sampled_from([None, "x"]),
    pricing_version=st.sampled_from([None, "1"]),
    billing_provider=st.sampled_from([None, "p", "q"]),
    billing_base_url=st.sampled_from([None, "u"]),
    billing_mode=st.sampled_from([None, "b"]),
    model=st.sampled_from([None, "m4"]),
    absolute=st.booleans(),
)
TITLE = call(
    "set_session_title",
    session_id=ids,
    title=st.sampled_from(SET_TITLES),
)
APPEND = st.builds(lambda s, m: ("append_message", {"session_id": s, **m}), ids, appended())
REPLACE = call("replace_messages", session_id=ids, messages=st.lists(messages(), max_size=4))
BIND = call(
    "bind_telegram_topic",
    chat_id=st.sampled_from([1, "2"]),
    thread_id=st.sampled_from([1, 2]),
    user_id=st.sampled_from(USERS),
    session_key=st.sampled_from(["x", "y"]),
    session_id=ids,
)
DELETE = call("delete_session", session_id=ids)
REMOVE = st.one_of(
    DELETE,
    call("clear_messages", session_id=ids),
    some("prune_sessions", {"older_than_days": days}, source=st.sampled_from(["", "cli"])),
    call("prune_empty_ghost_sessions"),
    some("maybe_auto_prune_and_vacuum", {}, retention_days=days, vacuum=st.booleans()),
)
HANDOFF = st.one_of(
    call("request_handoff", session_id=ids, platform=st.sampled_from(["telegram", "x"])),
    call("claim_handoff", session_id=ids),
    call("complete_handoff", session_id=ids),
    call("fail_handoff", session_id=ids, error=st.sampled_from(["", "no", "e" * 501])),
)
OTHERS = st.one_of(
    some("ensure_session", {"session_id": ids}, model=st.just("m3")),
    call("reopen_session", session_id=ids),
    call("update_system_prompt", session_id=ids, system_prompt=texts),
    call("finalize_orphaned_compression_sessions"),
    call(
        "set_meta",
        key=st.just("k"),
        value=st.one_of(texts, st.sampled_from([None, 5, True, "1000.0"])),
    ),
    call("vacuum"),
    call("apply_telegram_topic_migration"),
    call(
        "enable_telegram_topic_mode",
        chat_id=st.sampled_from([1, "1", "2"]),
        user_id=st.sampled_from(USERS),
    ),
    some(
        "disable_telegram_topic_mode",
        {"chat_id": st.sampled_from([1, "2"])},
        clear_bindings=st.booleans(),
    ),
)
CHANGES = weighted(
    [
        (CREATE, 3), (APPEND, 9), (REPLACE, 2), (CONTINUE, 3), (END, 3), (TITLE, 3), (TOKENS, 2),
        (BIND, 2), (DELETE, 2), (REMOVE, 2), (HANDOFF, 3), (OTHERS, 3),
    ]
)  # fmt: skip
PAUSES = st.sampled_from([0.0] * 12 + [1.0] * 12 + [60.0, -5.0, 2 * 86_400.0, 8 * 86_400.0])
STEPS = st.tuples(PAUSES, CHANGES)


@st.composite
def programs(draw: Draw) -> list[Step]:
    """Several short lists of steps: long on average, and each list shrinks by itself."""
    program: list[Step] = draw(st.lists(st.tuples(PAUSES, CREATE), min_size=2, max_size=7))
    for _ in range(16 if LONG else 7):
        program += draw(st.lists(STEPS, max_size=12))
    return program


# --- what is compared ----------------------------------------------------------------------------

SOME_IDS = [*IDS, "", "absent", "B_", "c"]
SOME_TITLES = [*TITLES, "", "x", "ü", "t #3", "A_B", "x" * 100]
WORDS = [
    "walrus", "giraffe", "Walrus giraffe", "json", "type", "raw", "北京烤鸭", "京烤鸭", "烤鸭店",
]  # fmt: skip
SHORT = [
    "北", "京", "北京", "鸭", "A北", "b京", "µ京", "京É", "%北", "_京", "北 walrus", "北 NOT 京",
    "烤鸭 北",
]  # fmt: skip


def about(session_id: str) -> Iterator[Call]:
    for method in (
        "get_session", "get_session_title", "resolve_session_id", "get_compression_tip",
        "resolve_resume_session_id", "_session_lineage_root_to_tip", "get_messages",
        "get_messages_as_conversation", "message_count", "export_session",
        "get_handoff_state", "_get_session_rich_row",
    ):  # fmt: skip
        yield method, {"session_id": session_id}
    yield "get_messages_as_conversation", {"session_id": session_id, "include_ancestors": True}
    yield "is_telegram_session_linked_to_topic", {"session_id": session_id}


def questions() -> Iterator[Call]:
    for session_id in SOME_IDS:
        yield from about(session_id)
    for title in SOME_TITLES:
        yield "get_session_by_title", {"title": title}
        yield "resolve_session_by_title", {"title": title}
        yield "get_next_title_in_lineage", {"base_title": title}
    for source, excluded, children, projected, active in product(
        [None, "telegram"], [None, ["tui", "cli"]], *[[False, True]] * 3
    ):
        options = {
            "source": source,
            "exclude_sources": excluded,
            "include_children": children,
            "project_compression_tips": projected,
            "order_by_last_active": active,
        }
        yield "list_sessions_rich", options | {"limit": -1}
        yield "list_sessions_rich", options | {"limit": 2, "offset": 1}
    for some in ({}, {"limit": 0}, {"limit": 3, "offset": 2}, {"source": "cli"}, {"source": ""}):
        yield "search_sessions", some
        yield "list_sessions_rich", some
    for source in (None, "", "cli", "nowhere"):
        yield "session_count", {"source": source}
        yield "export_all", {"source": source}
    yield "message_count", {}
    for key in [*KEYS, "telegram_dm_topic_schema_version"]:
        yield "get_meta", {"key": key}
    yield "list_pending_handoffs", {}
    for chat, user in product([1, "2"], USERS):
        yield "is_telegram_topic_mode_enabled", {"chat_id": chat, "user_id": user}
        yield "get_telegram_topic_binding", {"chat_id": chat, "thread_id": user}
        yield "get_telegram_topic_binding", {"chat_id": chat, "thread_id": 1}
    for limit in (1, 10, "2"):
        yield "list_unlinked_telegram_sessions_for_user", {
            "chat_id": 1, "user_id": 7, "limit": limit,
        }  # fmt: skip
    for query in (*WORDS, *SHORT):
        yield "search_messages", {"query": query, "limit": -1}
    for more in (
        {"limit": 2}, {"limit": 2, "offset": 1}, {"limit": 0},
        {"limit": -1, "source_filter": []}, {"limit": -1, "exclude_sources": []},
        {"limit": -1, "source_filter": ["cli", "tui"], "exclude_sources": ["tui"]},
        {"limit": -1, "role_filter": []}, {"limit": -1, "role_filter": ["user", "tool"]},
    ):  # fmt: skip
        yield "search_messages", {"query": "北京", **more}
        yield "search_messages", {"query": "walrus", **more}


POSITIONAL = {"session_id", "session_id_or_prefix", "title", "base_title", "key"}


def ask(store: Any, method: str, arguments: Arguments) -> Any:
    """Names of first parameters differ between methods; their place does not."""
    if method.startswith(("is_", "get_telegram", "list_unlinked")):
        return getattr(store, method)(**arguments)
    first = [value for name, value in arguments.items() if name in POSITIONAL]
    rest = {name: value for name, value in arguments.items() if name not in POSITIONAL}
    return getattr(store, method)(*first, **rest)


def agree(got: Any, expected: Any, arguments: Arguments) -> bool:
    if isinstance(expected, OneOf):
        return any(agree(got, allowed, arguments) for allowed in expected.allowed)
    if isinstance(expected, Tied):
        limit = int(expected.limit)
        wanted = expected.rows if limit < 0 else expected.rows[:limit]
        return [expected.key(row) for row in got] == [expected.key(row) for row in wanted] and all(
            row in expected.rows for row in got
        )
    if isinstance(expected, Ranked):
        return agree_by_rank(got, expected.rows, arguments)
    if isinstance(expected, list) and isinstance(got, list):
        pairs = zip(got, expected, strict=False)
        return len(got) == len(expected) and all(agree(g, e, arguments) for g, e in pairs)
    if isinstance(expected, dict) and isinstance(got, dict) and set(got) == set(expected):
        # Rows of tables have their columns in the order of the table.
        columns = [key for key in expected if key not in ("last_active", "preview", "messages")]
        if "timestamp" in expected or "started_at" in expected:
            assert [key for key in got if key in columns] == columns or "snippet" in got
        return all(same(got[key], expected[key]) for key in expected)
    return same(got, expected)


def same(got: object, expected: object) -> bool:
    return type(got) is type(expected) and got == expected


def agree_by_rank(got: list[Arguments], rows: list[Arguments], arguments: Arguments) -> bool:
    limit, offset = arguments.get("limit", 20), arguments.get("offset", 0)
    count = len(rows[offset:]) if limit < 0 else len(rows[offset : offset + limit])
    by_id = {row["id"]: row for row in rows}
    hits = [{key: value for key, value in hit.items() if key != "snippet"} for hit in got]
    return (
        len({hit["id"] for hit in hits}) == len(hits) == count
        and all(by_id.get(hit["id"]) == hit for hit in hits)
        and all(">>>" in hit["snippet"] and "<<<" in hit["snippet"] for hit in got)
    )


QUESTIONS = list(questions())
SLICE = 6


class Both:
    """A store and its model, fed with the same program under one clock."""

    def __init__(self, db: Any, unasked: Collection[str] = ()) -> None:
        self.model = Model()
        self.db = db
        self.unasked = unasked
        self.history: list[str] = []

    def step(self, pause: float, change: Call) -> None:
        self.model.now += pause
        method, symbols = change
        arguments = {name: self.resolve(value) for name, value in symbols.items()}
        if arguments.get("parent_session_id", "") == arguments.get("session_id"):
            return  # a session cannot be there before itself
        self.history.append(f"at {self.model.now}: {method}({arguments})")
        expected = outcome(self.model, method, arguments)
        got = outcome(self.db, method, arguments)
        if isinstance(expected, Exception):
            assert isinstance(got, type(expected)), self.story(method, arguments, got, expected)
        else:
            assert same(got, expected), self.story(method, arguments, got, expected)
        named = (arguments.get(name) for name in ("session_id", "old", "new"))
        touched = {session_id for session_id in named if session_id is not None}
        self.compare(question for session_id in touched for question in about(session_id))
        # Of all other questions a few in turn; the end of the program asks every one.
        place = len(self.history) * SLICE % len(QUESTIONS)
        self.compare(QUESTIONS[place : place + SLICE])

    def resolve(self, value: Any) -> Any:
        if isinstance(value, Old):
            there = list(self.model.sessions) or IDS
            return there[value.place % len(there)]
        if isinstance(value, New):
            free = [name for name in IDS if name not in self.model.sessions] or IDS
            return free[value.place % len(free)]
        return value

    def compare(self, questions: Iterable[Call]) -> None:
        for method, arguments in questions:
            if arguments.get("query") in self.unasked:
                continue
            got = ask(self.db, method, arguments)
            expected = ask(self.model, method, arguments)
            assert agree(got, expected, arguments), self.story(method, arguments, got, expected)

    def story(self, method: str, arguments: Arguments, got: Any, expected: Any) -> str:
        history = "\n".join(self.history)
        return f"{method}({arguments})\n     got: {got!r}\nexpected: {expected!r}\n{history}"


def outcome(store: Any, method: str, arguments: Arguments) -> Any:
    try:
        return getattr(store, method)(**arguments)
    except (sqlite3.Error, ValueError, LookupError, TypeError) as error:
        return error


def create(session_id: str, source: str = "cli", **more: Any) -> Call:
    return "create_session", {"session_id": session_id, "source": source, **more}


def end(session_id: str, reason: str) -> Call:
    return "end_session", {"session_id": session_id, "end_reason": reason}


# Found in long runs; too rare for short ones.
GHOST_OF_A_GHOST: list[Step] = [
    (0.0, create("a", "tui")),
    (0.0, end("a", "tui_close")),
    (1.0, create("A", "tui", parent_session_id="a")),
    (0.0, end("A", "tui_close")),
    (2 * 86_400.0, ("prune_empty_ghost_sessions", {})),
]


def run_on(db: Any, program: Iterable[Step], unasked: Collection[str] = ()) -> None:
    """Run *program* on *db*, an empty store, and on its model; every read method must agree.

    Searches for *unasked* are left out.
    """
    both = Both(db, unasked)
    with patch.object(time, "time", lambda: both.model.now):
        for pause, change in program:
            both.step(pause, change)
        both.compare(QUESTIONS)
