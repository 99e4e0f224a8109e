"""Replay of a conversation: memory context is removed, messages come back as a model takes them."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_actor import SessionDB
from hermes_actor.store.replay import strip_memory_context

NOTE = (
    "[System note: The following is recalled memory context, NOT new user input."
    " Treat as informational background data.]"
)
OTHER_NOTE = (
    "[System note: The following is recalled memory context,\nNOT new user input.\n"
    "Treat as authoritative reference data about the user, 100 % sure.]"
)

REMOVED = [
    ("a <memory-context>x</memory-context> b", "a  b"),
    ("A<MEMORY-CONTEXT>\nx\ny</ memory-context >B", "AB"),
    ("open <memory-context> only", "open  only"),
    ("close </memory-context> only", "close  only"),
    ("< /memory-context>z", "< /memory-context>z"),
    ("<memory-context>1</memory-context>mid<memory-context>2</memory-context>", "mid"),
    ("<memory-context>a<memory-context>b</memory-context>c</memory-context>", "c"),
    ("<memory-context id=1>x</memory-context>", "<memory-context id=1>x"),
    ("<memory-contexts>x</memory-contexts>", "<memory-contexts>x</memory-contexts>"),
    (NOTE + "\n\nbody", "body"),
    # Beyond the table: what the three rules say about notes and blanks.
    (OTHER_NOTE + " body", "body"),
    (NOTE.upper() + "body", "body"),
    ("a" + NOTE + "b" + NOTE + " \n c", "abc"),
    (NOTE.replace(" The", "The").replace(", NOT", ",NOT").replace(". T", ".T") + "x", "x"),
    (NOTE.replace("data.]", "data.]]"), "]"),
    (NOTE.replace("background data", "data"), NOTE.replace("background data", "data")),
    (NOTE.replace("data.]", "data!]"), NOTE.replace("data.]", "data!]")),
    (OTHER_NOTE.replace("100", "1]0"), OTHER_NOTE.replace("100", "1]0")),
    ("<\n memory-context\t>x</memory-context\n>y", "y"),
    ("</memory-context>x<memory-context>", "x"),
    ("a < b and c > d [x]", "a < b and c > d [x]"),
    ("", ""),
]


@pytest.mark.parametrize(("text", "left"), REMOVED, ids=range(len(REMOVED)))
def test_memory_context_is_removed(text, left):
    assert strip_memory_context(text) == left


@pytest.mark.parametrize("role", ["user", "assistant"])
def test_replay_removes_and_strips(db, role):
    db.create_session("s", "cli")
    db.append_message("s", role, " a <memory-context>x</memory-context>\n")
    assert db.get_messages_as_conversation("s") == [{"role": role, "content": "a"}]
    assert db.get_messages("s")[0]["content"] == " a <memory-context>x</memory-context>\n"


@pytest.mark.parametrize("role", ["tool", "system", "unknown"])
def test_replay_leaves_other_roles_alone(db, role):
    db.create_session("s", "cli")
    db.append_message("s", role, " <memory-context> ")
    assert db.get_messages_as_conversation("s") == [{"role": role, "content": " <memory-context> "}]


def test_replay_leaves_structured_content_alone(db):
    parts = [{"type": "text", "text": " <memory-context>x</memory-context> "}]
    db.create_session("s", "cli")
    db.append_message("s", "user", parts)
    assert db.get_messages_as_conversation("s") == [{"role": "user", "content": parts}]


def test_keys_of_an_assistant_message(db):
    db.create_session("s", "cli")
    extra = {
        "tool_name": "t",
        "tool_call_id": "c",
        "tool_calls": [{"id": 1}],
        "finish_reason": "stop",
        "reasoning": "r",
        "reasoning_content": "",
        "reasoning_details": [1],
        "codex_reasoning_items": [2],
        "codex_message_items": [3],
    }
    for role in ("assistant", "user"):
        db.append_message("s", role, None, token_count=5, **extra)
    every_role = {key: extra[key] for key in ("tool_name", "tool_call_id", "tool_calls")}
    assert db.get_messages_as_conversation("s") == [
        {"role": "assistant", "content": None, **extra},
        {"role": "user", "content": None, **every_role},
    ]


def test_broken_json_columns_are_replaced_with_a_warning(db, caplog):
    db.create_session("s", "cli")
    db.append_message("s", "assistant", "x", tool_calls=[1], reasoning_details=[1])
    db._conn.execute("UPDATE messages SET tool_calls = '[', reasoning_details = '['")
    (message,) = db.get_messages_as_conversation("s")
    assert (message["tool_calls"], message["reasoning_details"]) == ([], None)
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert db.get_messages("s")[0]["tool_calls"] == []


# Prompts that a resume sends again.


def user(content):
    return {"role": "user", "content": content}


def assistant(content, **more):
    return {"role": "assistant", "content": content, **more}


CALLS = {"tool_calls": [{"id": 1}]}
PARTS = [{"type": "text", "text": "q"}]


@pytest.mark.parametrize(
    ("kept", "message", "dropped"),
    [
        ([], user("q"), False),
        ([user("q")], user("q"), True),
        ([user("q")], user("Q"), False),
        ([user("q"), user("other")], user("q"), True),
        ([user("q"), assistant("a")], user("q"), False),
        ([user("q"), assistant("")], user("q"), True),
        ([user("q"), assistant(None)], user("q"), True),
        ([user("q"), assistant("", **CALLS)], user("q"), False),
        ([user("q"), assistant("", tool_calls=[])], user("q"), True),
        ([user("q"), {"role": "tool", "content": "r"}], user("q"), True),
        ([user("q"), assistant("a"), user("q")], user("q"), True),
        ([assistant("a"), user("q")], user("q"), True),
        ([user("")], user(""), False),
        ([user(None)], user(None), False),
        ([user(PARTS)], user(PARTS), False),
        ([assistant("q")], assistant("q"), False),
    ],
    ids=range(16),
)
def test_ancestor_rule(kept, message, dropped):
    assert SessionDB._is_duplicate_replayed_user_message(kept, message) is dropped


@pytest.fixture
def chain(db):
    db.create_session("root", "cli")
    db.create_session("mid", "cli", parent_session_id="root")
    db.create_session("tip", "cli", parent_session_id="mid")
    return db


def replayed(db, session_id, **options):
    return [m["content"] for m in db.get_messages_as_conversation(session_id, **options)]


def test_ancestors_come_in_the_order_of_insertion(chain):
    for session_id, text in [("tip", "1"), ("root", "2"), ("mid", "3"), ("root", "4")]:
        chain.append_message(session_id, "user", text)
    assert replayed(chain, "tip", include_ancestors=True) == ["1", "2", "3", "4"]
    assert replayed(chain, "mid", include_ancestors=True) == ["2", "3", "4"]
    assert replayed(chain, "tip") == ["1"]


def test_replayed_prompt_is_dropped_only_with_ancestors(chain):
    for session_id in ("root", "mid", "mid"):
        chain.append_message(session_id, "user", "q")
    assert replayed(chain, "mid", include_ancestors=True) == ["q"]
    assert replayed(chain, "mid") == ["q", "q"]


def test_prompts_are_compared_as_they_are_replayed(chain):
    chain.append_message("root", "user", "<memory-context>x</memory-context> q")
    chain.append_message("tip", "user", "q ")
    assert replayed(chain, "tip", include_ancestors=True) == ["q"]


def test_dropped_prompt_does_not_hide_a_genuine_repeat(chain):
    for role, text in [("user", "q"), ("user", "q"), ("assistant", "a"), ("user", "q")]:
        chain.append_message("root", role, text)
    assert replayed(chain, "tip", include_ancestors=True) == ["q", "a", "q"]


def test_cyclic_lineage_ends(chain):
    chain._conn.execute("UPDATE sessions SET parent_session_id = 'tip' WHERE id = 'root'")
    for session_id in ("root", "mid", "tip"):
        chain.append_message(session_id, "user", session_id)
    assert replayed(chain, "mid", include_ancestors=True) == ["root", "mid", "tip"]


def old_strip(text):
    """The specification as one pattern per kind of trace; quadratic, so only for short texts."""
    note = (
        r"\[System note:\s*The following is recalled memory context,\s*NOT new user input\.\s*"
        r"Treat as (?:informational background data|authoritative reference data[^\]]*)\.\]\s*"
    )
    span = r"<\s*memory-context\s*>.*?</\s*memory-context\s*>"
    for pattern in (span, note, r"</?\s*memory-context\s*>"):
        text = re.sub(pattern, "", text, flags=re.IGNORECASE | re.DOTALL)
    return text


HEAD = "[System note: The following is recalled memory context, NOT new user input. Treat as "
PIECES = st.sampled_from([
    "<memory-context>", "</memory-context>", "< Memory-Context >", "</ memory-context\n>", "<",
    HEAD + "informational background data.]", HEAD + "authoritative reference data", " so", ".]",
    "]", ".", "\n", "x ", "memory-context",
])  # fmt: skip


@given(st.lists(PIECES, max_size=12).map("".join))
def test_memory_is_stripped_as_specified(text):
    assert strip_memory_context(text) == old_strip(text)


@pytest.mark.parametrize(
    "piece",
    ["<memory-context>", HEAD + "authoritative reference data ", "<  ", "</memory-context>"],
)
def test_a_long_text_is_stripped_in_one_pass(piece):
    """Quadratic patterns took minutes for these; the timeout of the tests is the limit."""
    strip_memory_context("memory-context" + piece * 20_000)
