"""Sessions, events and working memory of agents, on every provider.

A number in a docstring is a row of the matrix of behaviour.
"""

import threading

import pytest
from support.agent_stores import START, open_agents, session

from hermes_actor.agents.times import after
from hermes_actor.errors import BadValue, Closed, NotFound


def say(role="user", content="hi", **more):
    return {"role": role, "content": content, **more}


def texts(messages):
    return [one["content"] for one in messages]


def test_store_has_its_parts_and_is_closed(kind, tmp_path):
    """1."""
    with open_agents(kind, tmp_path / "agents.db") as all_:
        one = all_.of("a")
        assert one.sessions.list() == one.events.entries("s1") == one.memories.list() == []
    with pytest.raises(Closed):
        one.sessions.list()


def test_session_is_listed_and_its_entry_is_in_the_history(store):
    """2, 3, 114, 116."""
    session(store)
    (found,) = store.sessions.list()
    assert found["session_id"] == "s1"
    assert found["source"] == {"kind": "cli", "interactive": True}
    assert not {"type", "metadata", "user_ids"} & set(found)
    store.events.append("s1", say(content="hello"))
    assert texts(store.events.history("s1")) == ["hello"]


def test_sessions_of_a_user(store):
    """75, 76, 77."""
    for name, people in (("a", ["A"]), ("b", ["B"]), ("ab", ["A", "B"])):
        session(store, name, user_ids=people)
    assert {one["session_id"] for one in store.sessions.list(user_id="A")} == {"a", "ab"}
    assert len(store.sessions.list()) == 3
    with pytest.raises(NotFound, match="Session not found: b"):
        store.sessions.visible("b", "A", "user")
    assert store.sessions.visible("b", "A", "owner")["session_id"] == "b"


def test_log_of_a_first_turn(store):
    """78, 81, 84."""
    session(store, user_ids=["u1"])
    store.events.session_started("s1", {"kind": "cli"}, provider="p", model="m", metadata={"x": 1})
    store.events.append("s1", say("user", "question", userId="u1"))
    store.events.append("s1", say("assistant", "answer"))
    kinds = [one["entry"].get("type") or one["entry"]["role"] for one in store.events.entries("s1")]
    assert kinds == ["session_started", "user", "assistant"]
    assert store.sessions.get("s1")["user_ids"] == ["u1"]


def test_recorded_messages_are_counted_once(store):
    """80, 86 to 90: a count, a preview, a participant; time moves forward only."""
    session(store, last_activity_at=START)
    later, earlier = after(START, 60), after(START, -60)
    first = store.events.record_message(
        "s1", say(ts=later), message_id="m1", preview="hi", user_id="u1"
    )
    assert first["appended"]
    assert (first["message_count"], first["last_activity_at"]) == (1, later)
    again = store.events.record_message("s1", say(ts=after(later, 9)), message_id="m1")
    assert again == {**first, "appended": False}
    old = store.events.record_message("s1", say("assistant", "re", ts=earlier), message_id="m2")
    assert (old["message_count"], old["last_activity_at"]) == (2, later)
    found = store.sessions.get("s1")
    assert (found["user_ids"], found["last_message_preview"]) == (["u1"], "hi")
    assert [one["entry"]["ts"] for one in store.events.entries("s1")] == [earlier, later]


def test_backfilled_entry_keeps_what_it_carries(store):
    """85."""
    session(store)
    entry = say("assistant", "x", metadata={"synthetic": True, "appendedBy": "u1"})
    store.events.append("s1", entry)
    (message,) = store.events.history("s1")
    assert message["metadata"] == {"synthetic": True, "appendedBy": "u1"}
    assert not {"provider", "model"} & set(message)


def test_source_type_and_creation_are_set_once(store):
    """110, 111, 112, 115."""
    session(store, description="title", description_source="ai", source={"type": "group"})
    store.sessions.set_working_memory("s1", "notes")
    created = store.sessions.get("s1")["created_at"]
    is_new = store.sessions.upsert({
        "session_id": "s1", "source": {"kind": "channel", "interactive": False, "platform": "x"},
        "created_at": after(START, 999), "type": "direct", "status": "running",
        "message_count": 7, "custom_instruction": "new",
    })  # fmt: skip
    assert not is_new
    found = store.sessions.get("s1")
    assert found["source"] == {"kind": "cli", "interactive": True, "type": "group"}
    assert (found["type"], found["created_at"]) == ("group", created)
    assert (found["status"], found["message_count"]) == ("running", 7)
    assert not {"description", "description_source", "custom_instruction"} & set(found)
    assert store.sessions.working_memory("s1") == "notes"


def test_inactive_sessions_are_hidden(store):
    """113; set_status and set_description."""
    session(store, "a")
    session(store, "b")
    assert store.sessions.set_status("a", "inactive")
    assert not store.sessions.set_status("missing", "idle")
    assert [one["session_id"] for one in store.sessions.list()] == ["b"]
    assert len(store.sessions.list(include_inactive=True)) == 2
    assert store.sessions.set_description("b", "A title", "fallback")
    assert store.sessions.get("b")["description"] == "A title"
    with pytest.raises(BadValue, match=r"sessions\.status is one of idle"):
        store.sessions.set_status("b", "sleeping")


def test_deleted_session_takes_its_events_along(store):
    """117."""
    for name in ("a", "b"):
        session(store, name)
        store.events.append_many(name, [say(), say("assistant")])
    assert store.sessions.delete("a") == 2
    assert store.sessions.delete("a") == 0
    assert store.events.entries("a") == []
    assert len(store.events.entries("b")) == 2


def test_stale_sessions_become_inactive(store):
    """118: strictly before; inactive ones are not counted."""
    for name, age in (("old", 200), ("edge", 100), ("new", 0)):
        session(store, name, last_activity_at=after(START, -age))
    assert store.sessions.mark_stale_inactive(after(START, -100)) == 1
    assert store.sessions.mark_stale_inactive(after(START, -100)) == 0
    assert [one["session_id"] for one in store.sessions.list()] == ["new", "edge"]


def test_columns_follow_from_the_entry(store):
    """119, 120, 121."""
    session(store)
    store.events.append("s1", {"role": "error", "message": "m"})
    store.events.append("s1", {"role": "system", "type": "T", "content": "c"})
    store.events.append("s1", say("assistant", ""))
    history = store.events.history("s1")
    assert [(one["role"], one["content"]) for one in history] == [("error", "m"), ("assistant", "")]
    assert store.events.entries("s1")[1]["entry"]["content"] == "c"
    rows = [one for one in store.rows("session_events") if one["agent_id"] == store.agent_id]
    assert [(one["event_type"], one["content"]) for one in rows] == [
        ("error", "m"), ("T", None), ("assistant", ""),
    ]  # fmt: skip


def test_history_is_in_the_order_of_time_and_messages_in_that_of_the_log(store):
    """122, 87."""
    session(store)
    store.events.append("s1", say(content="second", ts=after(START, 2)))
    cursor = store.events.append("s1", say(content="third", ts=after(START, 3)))
    store.events.append("s1", say(content="first", ts=after(START, 1)))
    assert texts(store.events.history("s1")) == ["first", "second", "third"]
    assert texts(store.events.messages_since("s1", 0)) == ["second", "third", "first"]
    (last,) = store.events.messages_since("s1", cursor)
    assert last["content"] == "first"
    assert last["event_id"] > cursor


def test_recent_messages_skip_the_newest(store):
    """123."""
    session(store)
    store.events.append_many("s1", [say(content=str(n)) for n in range(1, 6)])
    assert texts(store.events.recent_messages("s1", 2, 1)) == ["3", "4"]


def test_cursors_of_introspection(store):
    """124, 125."""
    session(store)
    assert store.events.cursors("s1") == {
        "latest_id": 0, "last_introspection_id": 0, "turns_since": 0, "user_messages_since": 0
    }  # fmt: skip
    store.events.append("s1", {"role": "system", "type": "agent_end"})
    last = store.events.append("s1", {"role": "system", "type": "introspection_end"})
    newest = store.events.append_many(
        "s1",
        [{"role": "system", "type": "agent_end"}, {"role": "system", "type": "agent_end"}, say()],
    )
    assert store.events.cursors("s1") == {
        "latest_id": newest[-1], "last_introspection_id": last, "turns_since": 2,
        "user_messages_since": 1,
    }  # fmt: skip


def test_newest_summary_and_what_came_after_it(store):
    """126."""
    session(store)
    assert store.events.compaction_summary("s1") is None
    store.events.set_compaction_summary("s1", "one")
    store.events.append("s1", say(content="between"))
    store.events.set_compaction_summary("s1", "two")
    store.events.append("s1", say(content="after"))
    found = store.events.entries_since_compaction("s1")
    assert found["compaction_summary"] == store.events.compaction_summary("s1") == "two"
    assert [one["content"] for one in found["entries"]] == ["after"]


def test_names_are_filled_in(store):
    """127."""
    session(store)
    user = f"u-{store.agent_id}"
    store.events.append("s1", say(userId=user))
    store.events.append("s1", say("assistant", "yes"))
    assert all("name" not in one for one in store.events.history("s1"))
    store.agents.create("/w", name="Max")
    store.users.upsert({"user_id": user, "name": "Eva"})
    assert [one["name"] for one in store.events.history("s1")] == ["Eva", "Max"]


def test_tools_introspection_and_unknown_types_in_the_history(store):
    """128, 129."""
    session(store)
    call = {"role": "tool_call", "name": "grep", "args": {"q": 1}, "toolCallId": "c1"}
    store.events.append("s1", {**call, "introspection": True})
    store.events.append("s1", {"role": "tool_result", "name": "grep", "isError": True,
                               "content": "out", "toolCallId": "c1"})  # fmt: skip
    store.events.append("s1", {"role": "system", "type": "introspection_start"})
    store.events.append("s1", {"role": "system", "type": "introspection_end", "summary": "sum"})
    store.events.append("s1", say(type="new_type", content="odd"))
    call, result, start, end, odd = store.events.history("s1")
    assert (call["role"], call["tool"], call["tool_phase"]) == ("tool", "grep", "call")
    assert (call["introspection"], call["tool_args"], call["tool_is_error"]) == (
        True,
        {"q": 1},
        False,
    )
    assert (result["content"], result["tool_is_error"], result["tool_phase"]) == (
        "out",
        True,
        "result",
    )
    assert (start["role"], start["introspection_phase"]) == ("introspection", "start")
    assert end["introspection_summary"] == "sum"
    assert (odd["role"], odd["content"]) == ("error", "odd")


def test_event_of_a_missing_session_is_refused(store):
    """130."""
    with pytest.raises(NotFound, match="Session not found: s1"):
        store.events.append("s1", say())
    with pytest.raises(NotFound):
        store.sessions.set_working_memory("s1", "x")


def test_one_message_id_is_appended_once_by_many_threads(store):
    """131."""
    session(store)
    results = []

    def append():
        results.append(store.events.append_once("s1", "m1", say()))

    threads = [threading.Thread(target=append) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one["appended"] for one in results) == [False] * 5 + [True]
    assert len({one["id"] for one in results}) == 1
    assert len(store.events.entries("s1")) == 1
    assert store.events.find_by_message_id("s1", "m1") == results[0]["id"]
    assert store.events.find_by_message_id("s1", "m2") is None


@pytest.mark.parametrize(
    "entry",
    [
        {"content": "no role"},
        {"role": "user", "content": "x", "ts": "yesterday"},
        {"role": "user", "content": "x", "type": 7},
        {"role": "user", "content": "nul \0"},
        {"role": "user", "content": "half \ud800"},
        {"role": "user", "number": float("nan")},
    ],
    ids=lambda entry: str(list(entry)),
)
def test_bad_entries_change_nothing(store, entry):
    session(store)
    with pytest.raises(BadValue):
        store.events.append_many("s1", [say(), entry])
    assert store.events.entries("s1") == []


def test_times_are_stored_in_utc(store):
    session(store, last_activity_at="2026-01-01T02:30:00+02:00")
    assert store.sessions.get("s1")["last_activity_at"] == "2026-01-01T00:30:00.000Z"
    store.events.append("s1", say(ts="2026-01-01T00:00:00"))
    assert store.events.entries("s1")[0]["entry"]["ts"] == START
