"""Chats, turns and derived files, on every kind of store."""

import json
import threading
import time
from datetime import datetime, timedelta

import msgspec
import pytest

import hermes_protocol.operations as ops
from hermes_actor.errors import (
    ActorBroken,
    ConstraintFailed,
    TurnBusy,
    TurnLost,
    TurnRequired,
    UnknownSession,
)
from hermes_actor.gateway import (
    GatewayConfig,
    Hooks,
    SessionResetPolicy,
    SessionSource,
    SessionStore,
    Watcher,
    handle,
)
from hermes_actor.store import queries
from hermes_actor.store.gateway.entries import DEFAULTS

DM = SessionSource(platform="telegram", chat_id="100", user_id="u1", chat_name="Al")
IDLE = GatewayConfig(
    default_reset_policy=SessionResetPolicy(mode="idle", idle_minutes=60), write_jsonl=False
)


class Clock:
    """The local time of a store; it can be moved, and starts before the time of turns."""

    def __init__(self):
        self.now = datetime.now().replace(microsecond=0) - timedelta(days=30)

    def __call__(self):
        self.now += timedelta(microseconds=1)
        return self.now

    def passes(self, **time):
        self.now += timedelta(**time)


@pytest.fixture
def local_time():
    return Clock()


@pytest.fixture
def open_chats(db, tmp_path, local_time):
    opened = []

    def open_(config=IDLE, **options):
        options.setdefault("hooks", Hooks(entry_points=False))
        store = SessionStore(tmp_path / "sessions", config, db=db, clock=local_time, **options)
        opened.append(store)
        return store

    yield open_
    for store in opened:
        store.close()


@pytest.fixture
def chats(open_chats):
    return open_chats()


def index_of(chats):
    chats.flush()
    return json.loads((chats.sessions_dir / "sessions.json").read_text("utf-8"))


def say(chats, session_id, text="x", role="user"):
    chats.append_to_transcript(session_id, {"role": role, "content": text})


# --- chats and their sessions ----------------------------------------------------------------


def test_first_message_makes_an_entry_a_session_and_an_index(chats, db):
    entry = chats.get_or_create_session(DM)
    assert (entry.outcome, entry.is_new) == ("created", True)
    row = db.get_session(entry.session_id)
    assert (row["source"], row["user_id"], row["ended_at"]) == ("telegram", "u1", None)
    assert row["parent_session_id"] is None
    index = index_of(chats)
    assert list(index) == ["agent:main:telegram:dm:100"]
    assert list(index[entry.session_key]) == [*DEFAULTS, "origin"]
    assert index[entry.session_key] == entry.to_dict()


def test_second_message_is_not_new_and_soon_costs_no_write(chats, local_time):
    first = chats.get_or_create_session(DM)
    local_time.passes(seconds=5)
    second = chats.get_or_create_session(DM)
    assert (second.session_id, second.is_new) == (first.session_id, False)
    written = chats.state(first.session_key).route.updated_at
    local_time.passes(seconds=5)
    third = chats.get_or_create_session(DM)
    assert third.updated_at > second.updated_at
    assert chats.state(first.session_key).route.updated_at == written
    local_time.passes(seconds=70)
    chats.get_or_create_session(DM)
    assert chats.state(first.session_key).route.updated_at > written


def test_parallel_first_messages_get_one_session(chats, db):
    found, barrier = [], threading.Barrier(20)

    def run():
        barrier.wait()
        found.append(chats.get_or_create_session(DM).session_id)

    threads = [threading.Thread(target=run) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 20
    assert len(set(found)) == 1
    assert db.session_count() == 1


def test_idle_session_is_reset_and_the_chat_says_so(chats, db, local_time):
    old = chats.get_or_create_session(DM)
    chats.update_session(old.session_key, 900)
    local_time.passes(minutes=61)
    entry = chats.get_or_create_session(DM)
    assert (entry.outcome, entry.was_auto_reset) == ("reset", True)
    assert (entry.auto_reset_reason, entry.reset_had_activity) == ("idle", True)
    row = db.get_session(old.session_id)
    assert (row["end_reason"], row["ended_at"] is None) == ("idle", False)
    new = db.get_session(entry.session_id)
    assert (new["ended_at"], new["parent_session_id"]) == (None, None)


def test_a_message_counts_as_use(chats, local_time):
    entry = chats.get_or_create_session(DM)
    local_time.passes(minutes=50)
    say(chats, entry.session_id)
    local_time.passes(minutes=50)
    assert chats.get_or_create_session(DM).session_id == entry.session_id


def test_a_chat_with_a_background_process_is_kept_everywhere(open_chats, local_time):
    chats = open_chats(has_active_processes_fn=lambda key: True)
    entry = chats.get_or_create_session(DM)
    local_time.passes(days=100)
    assert chats.get_or_create_session(DM).session_id == entry.session_id
    local_time.passes(days=100)
    assert Watcher(chats).round() == []
    assert chats.prune_old_entries(1) == 0


@pytest.mark.parametrize(
    ("found", "limit", "kept"),
    [(True, 24, True), (3600.0, 24, True), (90_000.0, 24, False), (90_000.0, 0, True),
     (0.0, 24, True), (0, 0, True), (None, 24, False), (False, 24, False)],
)  # fmt: skip
def test_a_forgotten_process_stops_counting_at_its_age(open_chats, local_time, found, limit, kept):
    policy = SessionResetPolicy(mode="idle", idle_minutes=60, bg_process_max_age_hours=limit)
    config = GatewayConfig(default_reset_policy=policy, write_jsonl=False)
    chats = open_chats(config, has_active_processes_fn=lambda key: found)
    entry = chats.get_or_create_session(DM)
    local_time.passes(hours=2)
    assert len(Watcher(chats).round()) == (not kept)
    assert (chats.get_or_create_session(DM).session_id == entry.session_id) is kept
    local_time.passes(days=3)
    assert chats.prune_old_entries(1) == (not kept)


def test_a_callback_that_fails_counts_as_a_process(open_chats, local_time):
    chats = open_chats(has_active_processes_fn=lambda key: 1 / 0)
    entry = chats.get_or_create_session(DM)
    local_time.passes(days=2)
    assert chats.get_or_create_session(DM).session_id == entry.session_id


def test_suspended_wins_over_resume_pending(chats):
    entry = chats.get_or_create_session(DM)
    assert chats.mark_resume_pending(entry.session_key)
    assert chats.suspend_session(entry.session_key)
    assert not chats.mark_resume_pending(entry.session_key)
    assert chats.get_or_create_session(DM).auto_reset_reason == "suspended"


@pytest.mark.parametrize(("mode", "kept"), [("idle", False), ("none", True)])
def test_an_interrupted_chat_goes_on_while_it_is_fresh(open_chats, local_time, mode, kept):
    policy = SessionResetPolicy(mode=mode, idle_minutes=1440)
    chats = open_chats(GatewayConfig(default_reset_policy=policy, write_jsonl=False))
    entry = chats.get_or_create_session(DM)
    chats.mark_resume_pending(entry.session_key)
    local_time.passes(minutes=30)
    assert chats.get_or_create_session(DM).session_id == entry.session_id
    local_time.passes(hours=2)
    again = chats.get_or_create_session(DM)
    assert (again.session_id == entry.session_id) is kept
    assert again.auto_reset_reason == (None if kept else "resume_pending_expired")
    assert not kept or chats.clear_resume_pending(entry.session_key)
    assert not chats.clear_resume_pending(entry.session_key)


def test_reset_and_switch(chats, db, local_time):
    first = chats.get_or_create_session(DM)
    local_time.passes(seconds=2)
    second = chats.reset_session(first.session_key)
    assert second.is_fresh_reset
    assert second.origin == first.origin
    assert db.get_session(first.session_id)["end_reason"] == "session_reset"
    local_time.passes(seconds=2)
    back = chats.switch_session(first.session_key, first.session_id)
    assert back.session_id == first.session_id
    assert db.get_session(second.session_id)["end_reason"] == "session_switch"
    assert db.get_session(first.session_id)["ended_at"] is None
    assert chats.switch_session(first.session_key, first.session_id) == back
    with pytest.raises(UnknownSession):
        chats.switch_session(first.session_key, "nowhere")
    assert chats.peek_session_id(first.session_key) == first.session_id


def test_unknown_chats_change_nothing(chats):
    assert chats.reset_session("k") is None
    assert chats.switch_session("k", "s") is None
    assert not chats.suspend_session("k")
    assert not chats.mark_resume_pending("k")
    assert not chats.clear_resume_pending("k")
    chats.update_session("k", 5)
    assert chats.list_sessions() == []


def test_resume_leads_to_the_session_that_was_asked_for(chats, db, local_time):
    """A reset sets no parent: an older session must not be taken for what continues in a newer."""
    ids = [chats.get_or_create_session(DM).session_id]
    for _ in range(3):
        say(chats, ids[-1])
        local_time.passes(seconds=2)
        ids.append(chats.reset_session("agent:main:telegram:dm:100").session_id)
    assert [db.get_session(one)["parent_session_id"] for one in ids] == [None] * 4
    for one in ids[:3]:
        local_time.passes(seconds=2)
        assert handle(chats, DM, f"/resume {one}").changed
        assert chats.get_or_create_session(DM).session_id == one
        assert db.resolve_resume_session_id(one) == one


def test_a_continuation_keeps_its_chat_and_its_user(chats, db, local_time):
    entry = chats.get_or_create_session(DM)
    say(chats, entry.session_id)
    child = db.continue_session(entry.session_id)
    row = db.get_session(child)
    assert (row["source"], row["user_id"]) == ("telegram", "u1")
    assert child in handle(chats, DM, "/sessions").text
    local_time.passes(seconds=2)
    chats.reset_session(entry.session_key)
    assert handle(chats, DM, f"/resume {child}").changed
    assert chats.get_or_create_session(DM).session_id == child


def test_a_message_that_cannot_be_stored_is_an_error(chats, db):
    """It is neither kept in a queue of this process, nor dropped with a line in the log."""
    with pytest.raises(ConstraintFailed, match="nowhere"):
        say(chats, "nowhere")
    with pytest.raises(ConstraintFailed):
        chats.rewrite_transcript("nowhere", [{"role": "user", "content": "x"}])


def test_force_new_starts_one_session_for_each_state_that_was_seen(chats, db):
    first = chats.get_or_create_session(DM)
    second = chats.get_or_create_session(DM, force_new=True)
    assert second.session_id != first.session_id
    assert not second.was_auto_reset
    assert db.get_session(first.session_id)["end_reason"] == "session_reset"


def test_an_end_by_accident_goes_on_and_a_decision_does_not(chats, db, local_time):
    entry = chats.get_or_create_session(DM)
    say(chats, entry.session_id)
    db.end_session(entry.session_id, "agent_close")
    assert chats.get_or_create_session(DM).session_id == entry.session_id
    assert db.get_session(entry.session_id)["ended_at"] is None
    db.end_session(entry.session_id, "new_session")
    other = chats.get_or_create_session(DM)
    assert (other.outcome, other.was_auto_reset) == ("created", False)
    assert other.session_id != entry.session_id


def test_a_route_to_a_missing_session_gets_its_row(chats, db):
    """Left by other programs that die between their two writes."""
    entry = chats.get_or_create_session(DM)
    db.delete_session(entry.session_id)
    again = chats.get_or_create_session(DM)
    assert again.session_id == entry.session_id
    say(chats, again.session_id)
    assert db.message_count(again.session_id) == 1


def test_compression_moves_the_chat(chats, db):
    entry = chats.get_or_create_session(DM)
    child = db.continue_session(entry.session_id)
    assert chats.peek_session_id(entry.session_key) == child
    assert chats.get_or_create_session(DM).session_id == child
    assert chats.lookup_by_session_id(child).session_key == entry.session_key
    assert child in handle(chats, DM, f"/resume {child}").text


def test_a_session_without_a_route_is_found_again_by_its_last_message(chats, db, local_time):
    entry = chats.get_or_create_session(DM)
    say(chats, entry.session_id)
    for hours, outcome in ((0.5, "recovered"), (2, "created")):
        drop = ops.RoutesWrite(scope=chats.scope, now=1.0, drop=[entry.session_key])
        assert db._submit(drop) == []
        local_time.passes(hours=hours)
        again = chats.get_or_create_session(DM)
        assert again.outcome == outcome
        assert (again.session_id == entry.session_id) is (outcome == "recovered")
    assert db.get_session(entry.session_id)["end_reason"] == "idle"


def test_a_chat_with_a_route_never_goes_back_to_an_older_session(chats, db):
    """An open session of the same chat, which another program left, does not undo a reset."""
    first = chats.get_or_create_session(DM)
    say(chats, first.session_id)
    second = chats.reset_session(first.session_key)
    db.reopen_session(first.session_id)
    db.end_session(second.session_id, "user_exit")
    third = chats.get_or_create_session(DM)
    assert third.session_id not in (first.session_id, second.session_id)
    assert not third.was_auto_reset


def test_a_lost_turn_leaves_the_chat_as_it_is(chats, db):
    turn = chats.begin_turn(DM, "x")
    chats.mark_resume_pending(turn.entry.session_key)
    db.steal_turn(turn.session_id)
    with pytest.raises(TurnLost):
        turn.finish(last_prompt_tokens=7)
    turn.fail("never seen")
    (entry,) = chats.list_sessions()
    assert (entry.resume_pending, entry.resume_reason) == (True, "restart_timeout")
    assert entry.last_prompt_tokens == 0


def test_a_clock_that_was_wrong_for_a_while_keeps_no_session_for_ever(chats, db, local_time):
    first = chats.get_or_create_session(DM)
    local_time.passes(days=400)
    with chats.begin_turn(DM, "in the future") as turn:
        assert turn.session_id != first.session_id
    local_time.passes(days=-400, minutes=1)
    with chats.begin_turn(DM, "in the present") as again:
        assert again.session_id == turn.session_id
    now = local_time().timestamp()
    assert abs(chats.state(first.session_key).route.updated_at - now) < 60
    local_time.passes(hours=2)
    assert Watcher(chats).round() == [turn.session_id]
    assert chats.get_or_create_session(DM).auto_reset_reason == "idle"


def test_recently_used_chats_are_marked_once(chats, local_time):
    old = SessionSource(platform="telegram", chat_id="1")
    chats.get_or_create_session(old)
    local_time.passes(seconds=540)
    entry = chats.get_or_create_session(DM)
    local_time.passes(seconds=60)
    assert chats.suspend_recently_active() == 1
    assert chats.suspend_recently_active() == 0
    assert chats.lookup_by_session_id(entry.session_id).resume_reason == "restart_interrupted"


def test_old_chats_are_forgotten_but_their_sessions_stay(chats, db, local_time):
    kept = chats.get_or_create_session(SessionSource(platform="telegram", chat_id="1"))
    chats.suspend_session(kept.session_key)
    chats.get_or_create_session(DM)
    local_time.passes(days=3)
    new = chats.get_or_create_session(SessionSource(platform="telegram", chat_id="2"))
    assert chats.prune_old_entries(0) == 0
    assert chats.prune_old_entries(2) == 1
    assert {one.session_id for one in chats.list_sessions()} == {kept.session_id, new.session_id}
    assert [one.session_id for one in chats.list_sessions(5)] == [new.session_id]
    assert db.session_count() == 3


def test_has_any_sessions_and_overrides(chats):
    entry = chats.get_or_create_session(DM)
    assert not chats.has_any_sessions()
    chats.get_or_create_session(SessionSource(platform="x", chat_id="1"))
    assert chats.has_any_sessions()
    chats.set_model_override(entry.session_key, {"model": "m", "api_key": "secret"})
    assert chats.get_model_override(entry.session_key) == {"model": "m"}


HOSTILE = [
    "../../etc/passwd", "..", "a/b", "a\\b", "C:\\x", "\x1b]0;title\x07", "half \ud800", "%_", "*",
    "' OR 1=1 --", "x" * 200, "Case", "case", "é", "e", "pad", "pad ",
    "a:b:c", "\u202egnp", " ", "\n", "agent:main:telegram:dm:100", "{}",
]  # fmt: skip


def test_ids_of_chats_are_no_paths_patterns_or_escapes(chats, db):
    """Whatever a platform calls its chats: each has its session, and finds it again."""
    ids = {}
    for place, given in enumerate(HOSTILE):
        for source in (
            SessionSource(platform="telegram", chat_id=given, user_id=given, chat_name=given),
            SessionSource(platform=f"p{place}{given}"[:60], chat_id="1", user_id="u"),
        ):
            with chats.begin_turn(source, f"hello {given}", message_key=given) as turn:
                ids[turn.entry.session_key] = turn.session_id
            assert chats.get_or_create_session(source).session_id == turn.session_id
            assert "No session" in handle(chats, source, "/resume %").text
    assert len(set(ids.values())) == len(ids) == 2 * len(HOSTILE)
    assert {one.session_key: one.session_id for one in chats.list_sessions()} == ids
    assert {key: one["session_id"] for key, one in index_of(chats).items()} == ids
    assert set(chats.sessions_dir.iterdir()) == {
        chats.sessions_dir / name for name in ("sessions.json", ".sessions.lock")
    }


@pytest.mark.parametrize(
    "entry",
    [
        {"session_id": "theirs"},
        {"session_id": "theirs", "session_key": 5, "created_at": "then", "updated_at": None},
        {"session_id": "a/../b", "session_key": "k", "created_at": "2026-03-02T10:00:00"},
        {"session_id": "theirs", "origin": 7, "chat_type": [], "last_prompt_tokens": "many"},
    ],
)
def test_an_entry_that_another_program_broke_keeps_no_message_out(chats, db, entry):
    key = chats.session_key(DM)
    db._submit(ops.RoutesWrite(scope=chats.scope, now=1e9, put={key: json.dumps(entry)}))
    chats.get_or_create_session(SessionSource(platform="telegram", chat_id="whole"))
    for _ in range(2):
        with chats.begin_turn(DM, "hello") as turn:
            assert turn.entry.session_key == key
        assert db.get_session(turn.session_id)["ended_at"] is None
    assert Watcher(chats).round() == []
    assert {one.session_key for one in chats.list_sessions()} >= {"agent:main:telegram:dm:whole"}
    assert chats.reset_session(key).session_id != turn.session_id
    with chats.begin_turn(DM, "again") as turn:
        pass
    assert key in index_of(chats)


@pytest.mark.parametrize("given", ["²", "٣", "9" * 5000, "-1", "0", "1 2", "%", "../x", "\x00"])
def test_what_people_type_behind_a_command_raises_nothing(chats, given):
    for command in ("/sessions", "/resume", "/title", "/new"):
        assert handle(chats, DM, f"{command} {given}").text


@pytest.mark.parametrize("error", [RuntimeError, SystemExit, AssertionError])
def test_hooks_that_fail_stop_nothing(open_chats, db, local_time, caplog, error):
    def fails(**_given):
        raise error("hook")

    hooks = Hooks(entry_points=False)
    for event in ("session_start", "session_reset", "before_reset", "session_finalize"):
        hooks.add(event, fails)
    chats = open_chats(hooks=hooks)
    entry = chats.get_or_create_session(DM)
    for number in range(4):
        say(chats, entry.session_id, str(number))
    local_time.passes(hours=2)
    assert Watcher(chats).round() == [entry.session_id]
    assert chats.get_or_create_session(DM).auto_reset_reason == "idle"
    for event in ("session_start", "session_reset", "before_reset", "session_finalize"):
        assert f"of {event} failed" in caplog.text


def test_messages_that_come_together_call_the_memory_hook_once(open_chats, db, local_time):
    """Two gateways of a chat that has expired: one calls the hook, and both go on together."""
    called = []

    def remember(entry, **_):
        called.append(entry.session_id)
        time.sleep(0.5)

    gateways = []
    for _ in range(2):
        hooks = Hooks(entry_points=False)
        hooks.add("before_reset", remember)
        gateways.append(open_chats(hooks=hooks))
    old = gateways[0].get_or_create_session(DM).session_id
    for number in range(4):
        message = {"role": "user", "content": str(number), "timestamp": local_time().isoformat()}
        gateways[0].append_to_transcript(old, message)
    local_time.passes(hours=2)
    entries = []
    start = threading.Barrier(4)

    def ask(number):
        start.wait()
        entries.append(gateways[number % 2].get_or_create_session(DM))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert called == [old]
    assert len({entry.session_id for entry in entries}) == 1
    assert old not in {entry.session_id for entry in entries}
    assert db.get_session(old)["end_reason"] == "idle"
    # The next session gets its own call.
    new = entries[0].session_id
    for number in range(4):
        message = {"role": "user", "content": str(number), "timestamp": local_time().isoformat()}
        gateways[0].append_to_transcript(new, message)
    local_time.passes(hours=2)
    gateways[1].get_or_create_session(DM)
    assert called == [old, new]
    assert db.list_turns() == []


def test_a_message_that_comes_during_the_memory_hook_begins_the_next_session(
    open_chats, db, local_time
):
    """The watcher has called the hook: the session that it is about ends, and goes on no more."""
    reached, go_on = threading.Event(), threading.Event()
    hooks = Hooks(entry_points=False)
    hooks.add("before_reset", lambda **_: (reached.set(), go_on.wait(60)))
    watching, chats = open_chats(hooks=hooks), open_chats()
    old = chats.get_or_create_session(DM).session_id
    for number in range(4):
        message = {"role": "user", "content": str(number), "timestamp": local_time().isoformat()}
        chats.append_to_transcript(old, message)
    local_time.passes(hours=2)
    finished, opened = [], []
    watcher = threading.Thread(target=lambda: finished.extend(Watcher(watching).round()))
    watcher.start()
    assert reached.wait(60)
    message = threading.Thread(target=lambda: opened.append(chats.get_or_create_session(DM)))
    message.start()
    wait_until(db.list_turn_waiters)
    go_on.set()
    watcher.join()
    message.join()
    assert finished == [old]
    (entry,) = opened
    assert (entry.session_id != old, entry.auto_reset_reason) == (True, "idle")
    assert db.list_turn_waiters() == db.list_turns() == []


# --- messages, turns ---------------------------------------------------------------------------


def test_a_turn_stores_a_message_once_and_clears_marks(chats, db, local_time):
    with chats.begin_turn(DM, "hello", message_key="m1") as turn:
        assert not turn.is_repeated
        turn.append("assistant", "hi")
        assert [one["role"] for one in turn.history] == ["user", "assistant"]
    with chats.begin_turn(DM, "hello", message_key="m1") as turn:
        assert turn.is_repeated
    assert db.message_count(turn.session_id) == 2
    assert db.list_turns() == []


def wait_until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_those_who_wait_for_a_turn_get_it_in_the_order_of_their_coming(db):
    """Also against one that comes when the turn is free, and does not want to wait."""
    db.create_session("s", "cli")
    served = []

    def answer(number):
        with db.turn("s", holder=f"h{number}", wait=60):
            served.append(number)

    threads = [threading.Thread(target=answer, args=(number,)) for number in range(8)]
    with db.turn("s", holder="first"):
        for number, thread in enumerate(threads):
            thread.start()
            wait_until(lambda: len(db.list_turn_waiters()) == number + 1)  # noqa: B023
        line = db.list_turn_waiters()
        assert [one.holder for one in line] == [f"h{number}" for number in range(8)]
        assert [one.ticket for one in line] == sorted({one.ticket for one in line})
    for thread in threads:
        thread.join()
    assert served == list(range(8))
    assert db.list_turn_waiters() == []
    assert db.list_turns() == []


def test_a_turn_that_others_wait_for_is_not_taken_by_one_that_comes_later(db):
    db.create_session("s", "cli")
    db.create_session("t", "cli")
    waiting = ops.TurnWait(
        session_id="s", holder="elsewhere", kind="turn", now=time.time(), seconds=600.0, pid=1,
        place="another host/1",
    )  # fmt: skip
    ticket = db._submit(waiting)
    with pytest.raises(TurnBusy, match=r"elsewhere .* comes first"):
        db.turn("s")
    db.turn("t").release()  # another conversation
    # It never comes: after a while of a free turn the next one in the line goes first.
    with db.turn("s", wait=60):
        assert db.list_turn_waiters() == []
        assert db._submit(ops.TurnLeave(ticket=ticket)) is False
    # One whose time is over does not count, and is cleared away with the next that waits.
    db._submit(msgspec.structs.replace(waiting, now=time.time() - 601))
    with db.turn("s"), pytest.raises(TurnBusy):
        db.turn("s", wait=1)
    assert db.list_turn_waiters() == []


def test_a_turn_that_is_finished_inside_its_block_is_finished_once(chats, db):
    with chats.begin_turn(DM, "one") as turn:
        turn.finish(last_prompt_tokens=700)
        # The next holder may have the chat before the block is left.
        with chats.begin_turn(DM, "two") as following:
            assert following.session_id == turn.session_id
    (entry,) = chats.list_sessions()
    assert entry.last_prompt_tokens == 700
    assert not entry.resume_pending
    with chats.begin_turn(DM, "three") as turn:
        turn.fail()
    assert chats.list_sessions()[0].resume_pending
    assert db.list_turns() == []


def test_notice_after_a_reset_comes_once(chats, local_time):
    with chats.begin_turn(DM, "x") as turn:
        pass
    chats.update_session(turn.entry.session_key, 10)
    local_time.passes(hours=2)
    with chats.begin_turn(DM, "y") as turn:
        assert "inactive for 1h" in turn.notice
        assert "no prior context" in turn.context_note
    with chats.begin_turn(DM, "z") as turn:
        assert turn.notice is None
        assert turn.context_note is None


def test_no_notice_for_an_excluded_platform(chats, local_time):
    api = SessionSource(platform="api_server", chat_id="1")
    chats.update_session(chats.get_or_create_session(api).session_key, 10)
    local_time.passes(hours=2)
    with chats.begin_turn(api, "y") as turn:
        assert turn.entry.was_auto_reset
        assert turn.notice is None


def test_an_error_in_a_turn_marks_the_chat(chats):
    with pytest.raises(ZeroDivisionError), chats.begin_turn(DM, "x") as turn:
        _ = 1 / 0
    assert chats.lookup_by_session_id(turn.session_id).resume_pending
    with chats.begin_turn(DM, "y"):
        pass
    assert not chats.lookup_by_session_id(turn.session_id).resume_pending


def test_one_conversation_has_one_turn(db):
    db.create_session("s", "cli")
    with db.turn("s", holder="first") as turn:
        with pytest.raises(TurnBusy, match="first"):
            db.turn("s")
        db.append_message("s", "user", "x", turn=turn)
        assert [held.token for held in db.list_turns()] == [turn.token]
    with db.turn("s") as later:
        assert later.token > turn.token
        with pytest.raises(TurnLost):
            turn.renew()


WRITES = {
    "append_message": lambda db, **how: db.append_message("s", "user", "y", **how),
    "replace_messages": lambda db, **how: db.replace_messages(
        "s", [{"role": "user", "content": "y"}], **how
    ),
    "replace_messages, none": lambda db, **how: db.replace_messages("s", [], **how),
    "clear_messages": lambda db, **how: db.clear_messages("s", **how),
    "update_token_counts": lambda db, **how: db.update_token_counts("s", input_tokens=5, **how),
    "update_system_prompt": lambda db, **how: db.update_system_prompt("s", "other", **how),
    "set_session_title": lambda db, **how: db.set_session_title("s", "other", **how),
    "end_session": lambda db, **how: db.end_session("s", "x", **how),
    "continue_session": lambda db, **how: db.continue_session("s", "child", **how),
    "reopen_session": lambda db, **how: db.reopen_session("s", **how),
}
FREE = {"set_session_title", "reopen_session"}


@pytest.fixture
def written(db):
    """A session with something in every column that a turn writes."""
    db.create_session("s", "telegram", system_prompt="prompt")
    db.set_session_title("s", "title")
    db.append_message("s", "user", "x")
    return db


def everything(db):
    return db.export_all()


@pytest.mark.parametrize("write", WRITES)
def test_every_write_of_a_lost_turn_is_refused(written, write):
    """By another holder, by an operator and by time; what is written under the turn counts."""
    before = everything(written)
    with written.turn("s") as turn:
        pass
    stolen = written.turn("s")
    written.steal_turn("s")
    past = written.turn("s", seconds=0.01)
    time.sleep(0.02)
    for lost in (turn, stolen, past):
        with pytest.raises(TurnLost):
            WRITES[write](written, turn=lost)
    assert everything(written) == before
    with written.turn("s") as turn:
        if write == "reopen_session":
            written.end_session("s", "x", turn=turn)
            before = everything(written)
        WRITES[write](written, turn=turn)
    assert everything(written) != before


def test_a_message_that_is_dated_back_does_not_outlive_its_turn(chats, db):
    db.create_session("s", "cli")
    turn = db.turn("s", seconds=0.01)
    time.sleep(0.02)
    message = {"role": "user", "content": "y", "timestamp": 1.0}
    with pytest.raises(TurnLost):
        chats.append_to_transcript("s", message, turn=turn)
    with pytest.raises(TurnLost):
        chats.rewrite_transcript("s", [message], turn=turn)
    assert db.get_messages("s") == []


@pytest.mark.parametrize("setting", ["[telegram]", "true", "telegram"])
@pytest.mark.parametrize("write", WRITES)
def test_turns_that_are_required(stores, tmp_path, monkeypatch, setting, write):
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.yaml").write_text(f"turns: {{required: {setting}}}\n")
    monkeypatch.setenv("HERMES_HOME", str(home))
    db = stores.open(home / "state.db")
    db.create_session("s", "telegram", system_prompt="prompt")
    db.create_session("s2", "cli")
    with db.turn("s") as turn:
        db.append_message("s", "user", "x", turn=turn)
    before = everything(db)
    if write in FREE:
        WRITES[write](db)
    else:
        with pytest.raises(TurnRequired, match=r"turns\.required"):
            WRITES[write](db)
        assert everything(db) == before
    with db.turn("s") as turn:
        WRITES[write](db, turn=turn)
    if setting == "true":
        with pytest.raises(TurnRequired):
            db.append_message("s2", "user", "y")
    else:
        db.append_message("s2", "user", "y")
    db.update_token_counts("new", input_tokens=1)
    assert db.get_session("new")["input_tokens"] == 1


def test_a_gateway_works_where_turns_are_required(stores, tmp_path, monkeypatch, local_time):
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.yaml").write_text("turns: {required: true}\n")
    monkeypatch.setenv("HERMES_HOME", str(home))
    db = stores.open(home / "state.db")
    chats = SessionStore(
        home / "sessions", IDLE, db=db, clock=local_time, hooks=Hooks(entry_points=False)
    )
    with chats.begin_turn(DM, "one", message_key="m1") as turn:
        turn.append("assistant", "answer")
    assert "Mine" in handle(chats, DM, "/title Mine").text
    local_time.passes(hours=2)
    assert Watcher(chats).round() == [turn.session_id]
    with chats.begin_turn(DM, "two") as turn:
        assert turn.entry.was_auto_reset
        turn.compress([{"role": "user", "content": "short"}])
    assert handle(chats, DM, "/new").changed
    with pytest.raises(TurnRequired):
        chats.append_to_transcript(turn.session_id, {"role": "user", "content": "beside"})
    chats.close()


def test_a_turn_is_waited_for(db):
    db.create_session("s", "cli")
    turn = db.turn("s")
    threading.Timer(0.2, turn.release).start()
    with db.turn("s", wait=30) as second:
        assert second.token > turn.token


def test_a_turn_covers_the_continuation_and_no_other_conversation(db):
    db.create_session("s", "cli")
    db.create_session("other", "cli")
    with db.turn("s") as turn:
        child = db.continue_session("s", turn=turn)
        db.append_message(child, "user", "x", turn=turn)
        db.append_message("s", "user", "late", turn=turn)
        with pytest.raises(TurnLost, match="not for 'other'"):
            db.append_message("other", "user", "x", turn=turn)
        with pytest.raises(TurnBusy):
            db.turn(child)
    with db.turn("s") as turn:
        assert turn.session_id == child


def test_a_turn_ends_with_its_time(db):
    db.create_session("s", "cli")
    turn = db.turn("s", seconds=0.05)
    time.sleep(0.06)
    with pytest.raises(TurnLost):
        db.append_message("s", "user", "late", turn=turn)
    with db.turn("s"):
        assert db.get_messages("s") == []


def test_an_operator_ends_a_turn(db):
    db.create_session("s", "cli")
    turn = db.turn("s")
    assert db.steal_turn("s")
    assert not db.steal_turn("s")
    assert not turn.release()


def test_a_chat_with_a_turn_is_not_reset(chats, local_time):
    turn = chats.begin_turn(DM, "x")
    local_time.passes(days=2)
    assert chats.get_or_create_session(DM).session_id == turn.session_id
    assert Watcher(chats).round() == []
    assert "Another process" in handle(chats, DM, "/new").text
    turn.finish()


# --- messages that two programs store ----------------------------------------------------------


@pytest.fixture
def merging(stores, tmp_path, monkeypatch):
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.yaml").write_text("gateway: {merge_doubled_rows: true}\n")
    monkeypatch.setenv("HERMES_HOME", str(home))
    db = stores.open(home / "state.db")
    db.create_session("s", "telegram")
    return db


def once(db, key, text="hello", at=None, session="s"):
    row = ops.MessageRow(role="user", timestamp=at or time.time(), content=text)
    return db._submit(ops.MessageOnce(session_id=session, message_key=key, message=row))


def texts_of(db, session="s"):
    return [(one["role"], one["content"]) for one in db.get_messages(session)]


@pytest.mark.parametrize("text", ["hello", "grüße 北京\n", [{"type": "text", "text": "x"}]])
def test_a_message_that_gateway_and_agent_store_is_one_row(merging, text):
    db = merging
    first = once(db, "m1", json.dumps(text) if isinstance(text, list) else text)
    assert first.appended
    if isinstance(text, list):
        text = json.dumps(text)
    for _ in range(2):  # the agent may try again
        assert db.append_message("s", "user", text) == first.id
    db.append_message("s", "assistant", text)
    assert len(texts_of(db)) == 2
    row = db.get_session("s")
    assert (row["message_count"], len(db.get_messages("s"))) == (2, 2)
    # The agent first: its row gets the id, by which another delivery is known.
    agents = db.append_message("s", "user", "later")
    found = once(db, "m2", "later")
    assert (found.id, found.appended) == (agents, True)
    again = once(db, "m2", "later")
    assert (again.id, again.appended) == (agents, False)
    assert len(texts_of(db)) == 3


def test_what_a_user_says_twice_stays_two_messages(merging):
    db = merging
    for key in ("m1", "m2"):
        once(db, key, "yes")
        db.append_message("s", "user", "yes")
        db.append_message("s", "assistant", "ok")
    assert texts_of(db) == [("user", "yes"), ("assistant", "ok")] * 2
    db.append_message("s", "user", "no")
    db.append_message("s", "user", "no")  # neither came from a platform
    assert texts_of(db)[4:] == [("user", "no")] * 2


def test_other_texts_roles_and_times_are_not_merged(merging):
    db = merging
    once(db, "m1", "yes", at=time.time() - 121)
    assert texts_of(db) == [("user", "yes")]
    db.append_message("s", "user", "yes")
    once(db, "m2", "yes!")
    db.append_message("s", "user", "yes")
    db.append_message("s", "tool", "yes!")
    assert [text for _, text in texts_of(db)] == ["yes", "yes", "yes!", "yes", "yes!"]


def test_a_turn_says_what_belongs_together_however_long_it_takes(merging):
    db = merging
    once(db, "m0", "yes")
    with db.turn("s") as turn:
        # Said before this turn: however short ago, it belongs to another one.
        db.append_message("s", "user", "yes", turn=turn)
        assert len(texts_of(db)) == 2
    with db.turn("s", seconds=3600) as turn:
        once(db, "m1", "go", at=time.time() + 1)
        row = ops.MessageRow(role="user", timestamp=time.time() + 600, content="go")
        db._submit(ops.MessageAppend(session_id="s", message=row, turn=int(turn)))
        assert len(texts_of(db)) == 3


def test_rows_are_merged_where_the_settings_say_so_only(db):
    db.create_session("s", "telegram")
    once(db, "m1")
    db.append_message("s", "user", "hello")
    assert len(texts_of(db)) == 2


# --- expiry ------------------------------------------------------------------------------------


def test_expired_sessions_are_finished_once_after_the_memory_hook(open_chats, db, local_time):
    called, hooks = [], Hooks(entry_points=False)
    hooks.add("before_reset", lambda **given: called.append((given["reason"], "before")))
    hooks.add("before_reset", lambda **given: 1 / 0)
    hooks.add("session_finalize", lambda **given: called.append(given["session_id"]))
    chats = open_chats(hooks=hooks)
    entry = chats.get_or_create_session(DM)
    for number in range(4):
        say(chats, entry.session_id, str(number))
    local_time.passes(hours=2)
    watchers = [Watcher(chats), Watcher(chats)]
    assert [one.round() for one in watchers] == [[entry.session_id], []]
    assert called == [("idle", "before"), entry.session_id]
    assert db.get_session(entry.session_id)["end_reason"] == "idle"
    assert index_of(chats)[entry.session_key]["expiry_finalized"]
    again = chats.get_or_create_session(DM)
    assert (again.auto_reset_reason, again.expiry_finalized) == ("idle", False)
    assert len(called) == 2


@pytest.fixture
def remembered(open_chats, local_time):
    """Make a chat with so many messages that has expired; its hook notes how many it saw."""

    def make(messages):
        called, hooks = [], Hooks(entry_points=False)
        hooks.add("before_reset", lambda **given: called.append(len(given["transcript"])))
        chats = open_chats(hooks=hooks)
        entry = chats.get_or_create_session(DM)
        for number in range(messages):
            say(chats, entry.session_id, str(number))
        local_time.passes(hours=2)
        return chats, entry, called

    return make


@pytest.mark.parametrize(("messages", "calls"), [(3, 0), (4, 1)])
def test_memory_hook_comes_before_a_reset_that_the_watcher_missed(remembered, messages, calls):
    chats, _, called = remembered(messages)
    assert chats.get_or_create_session(DM).was_auto_reset
    assert called == [messages] * calls


@pytest.mark.parametrize(("messages", "calls"), [(3, 0), (4, 1)])
def test_the_watcher_calls_the_memory_hook_for_a_conversation_that_is_long_enough(
    remembered, messages, calls
):
    chats, entry, called = remembered(messages)
    watcher = Watcher(chats)
    assert [watcher.round(), watcher.round()] == [[entry.session_id], []]
    assert chats.get_or_create_session(DM).was_auto_reset
    assert called == [messages] * calls


def test_a_hook_that_hangs_is_not_waited_for(open_chats, local_time):
    waits, hooks = threading.Event(), Hooks(entry_points=False, seconds=0.1)
    hooks.add("before_reset", lambda **given: waits.wait(60))
    chats = open_chats(hooks=hooks)
    entry = chats.get_or_create_session(DM)
    for number in range(4):
        say(chats, entry.session_id, str(number))
    local_time.passes(hours=2)
    assert Watcher(chats).round() == [entry.session_id]
    waits.set()


def test_the_end_is_said_also_when_the_turn_cannot_be_given_back(
    open_chats, db, local_time, monkeypatch
):
    """The claim is committed by then, and no other watcher will say it."""
    ended, hooks = [], Hooks(entry_points=False)
    hooks.add("session_finalize", lambda **given: ended.append(given["session_id"]))
    chats = open_chats(hooks=hooks)
    entry = chats.get_or_create_session(DM)
    local_time.passes(hours=2)
    submit = db._submit

    def refused(operation):
        if isinstance(operation, ops.TurnRelease):
            raise ActorBroken("no answer")
        return submit(operation)

    monkeypatch.setattr(db, "_submit", refused)
    assert Watcher(chats).round() == [entry.session_id] == ended


# --- commands inside a chat ----------------------------------------------------------------------


def test_title_new_and_sessions(chats, db, local_time):
    assert handle(chats, DM, "hello") is None
    assert "has no title" in handle(chats, DM, "/title").text
    first = chats.get_or_create_session(DM).session_id
    assert "My Research" in handle(chats, DM, "/title  My Research ").text
    local_time.passes(seconds=2)
    reply = handle(chats, DM, "/new My Research")
    assert reply.changed
    assert "without a title" in reply.text
    listed = handle(chats, DM, "/sessions").text.splitlines()
    assert listed[1] == "2. My Research (0 messages)"
    assert handle(chats, DM, "/resume My Research").changed
    assert chats.get_or_create_session(DM).session_id == first
    assert not handle(chats, DM, "/resume 2").changed


def test_sessions_of_other_people_do_not_exist(chats, db, local_time):
    mallory = SessionSource(platform="telegram", chat_id="200", user_id="u2")
    secret = chats.get_or_create_session(DM)
    db.set_session_title(secret.session_id, "salary")
    own = chats.get_or_create_session(mallory).session_id
    nothing = handle(chats, mallory, "/resume nothing").text
    for given in ("salary", secret.session_id, secret.session_id[:-2]):
        reply = handle(chats, mallory, f"/resume {given}")
        assert reply.text == nothing.replace("'nothing'", repr(given))
        assert not reply.changed
    assert "salary" not in handle(chats, mallory, "/sessions").text
    assert chats.get_or_create_session(mallory).session_id == own


def test_a_shared_room_sees_its_own_sessions_only(open_chats, db):
    config = GatewayConfig(group_sessions_per_user=False, write_jsonl=False)
    chats = open_chats(config)
    room = SessionSource(platform="telegram", chat_type="group", chat_id="-5", user_id="u1")
    private = chats.get_or_create_session(DM)
    shared = chats.get_or_create_session(room)
    text = handle(chats, room, "/sessions").text
    assert shared.session_id in text
    assert private.session_id not in text


# --- derived files -------------------------------------------------------------------------------


def lines_of(chats, session_id):
    text = chats.get_transcript_path(session_id).read_text("utf-8")
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def kept(open_chats):
    return open_chats(GatewayConfig())


def test_a_transcript_follows_its_session(kept, db):
    with kept.begin_turn(DM, "grüße") as turn:
        turn.append("assistant", "北京")
    path = kept.get_transcript_path(turn.session_id)
    assert "grüße" in path.read_text("utf-8")
    meta, *rest = lines_of(kept, turn.session_id)
    assert (meta["role"], meta["platform"]) == ("session_meta", "telegram")
    assert [(one["role"], one["content"]) for one in rest] == [
        ("user", "grüße"), ("assistant", "北京"),
    ]  # fmt: skip
    assert kept.load_transcript(turn.session_id) == rest
    assert kept.transcripts.catch_up() == 0
    db.append_message(turn.session_id, "user", "more")
    assert kept.transcripts.catch_up() == 1
    assert [one["content"] for one in lines_of(kept, turn.session_id)[1:]] == [
        "grüße", "北京", "more",
    ]  # fmt: skip
    kept.rewrite_transcript(turn.session_id, [{"role": "user", "content": "only"}])
    assert [one["content"] for one in lines_of(kept, turn.session_id)[1:]] == ["only"]


def test_what_a_dead_follower_left_is_cut_off(kept, db):
    with kept.begin_turn(DM, "x") as turn:
        pass
    path = kept.get_transcript_path(turn.session_id)
    good = path.read_bytes()
    for torn in (b'{"role": "us', b'{"role": "user", "content": "not marked"}\n'):
        path.write_bytes(good + torn)
        db.append_message(turn.session_id, "user", "y")
        assert kept.transcripts.follow(turn.session_id)
        rows = [one["content"] for one in db.get_messages(turn.session_id)]
        assert [one["content"] for one in lines_of(kept, turn.session_id)[1:]] == rows
        good = path.read_bytes()


def test_a_file_that_cannot_be_written_keeps_no_other_one_behind(kept, db, caplog):
    entries = [
        kept.get_or_create_session(SessionSource(platform="telegram", chat_id=str(number)))
        for number in range(3)
    ]
    for entry in entries:
        say(kept, entry.session_id)
    bad = kept.get_transcript_path(entries[1].session_id)
    bad.with_suffix(".jsonl.tmp").mkdir(parents=True)
    assert kept.transcripts.catch_up() == 2
    assert entries[1].session_id in caplog.text
    Watcher(kept).round()
    assert [kept.get_transcript_path(entry.session_id).exists() for entry in entries] == [
        True, False, True,
    ]  # fmt: skip


def test_files_of_other_programs_are_read_and_never_written(kept, db):
    entry = kept.get_or_create_session(DM)
    path = kept.get_transcript_path(entry.session_id)
    kept.sessions_dir.mkdir(exist_ok=True)
    theirs = [{"role": "user", "content": str(number)} for number in range(3)]
    text = (
        "\n".join(map(json.dumps, theirs[:1]))
        + "\nbroken {\n"
        + "\n".join(map(json.dumps, theirs[1:]))
    )
    path.write_text(text + "\n")
    db.append_message(entry.session_id, "user", "stored")
    assert kept.load_transcript(entry.session_id) == theirs
    assert not kept.transcripts.follow(entry.session_id)
    assert path.read_text() == text + "\n"
    for _ in range(2):
        db.append_message(entry.session_id, "user", "stored")
    assert [one["content"] for one in kept.load_transcript(entry.session_id)] == ["stored"] * 3


@pytest.mark.parametrize(("lines", "rows", "wins"), [(10, 4, "file"), (4, 4, "row")])
def test_the_longer_transcript_wins_and_a_tie_goes_to_the_store(kept, db, lines, rows, wins):
    entry = kept.get_or_create_session(DM)
    kept.sessions_dir.mkdir(exist_ok=True)
    texts = [json.dumps({"role": "user", "content": f"file {n}"}) for n in range(lines)]
    kept.get_transcript_path(entry.session_id).write_text("\n".join(texts) + "\n")
    for number in range(rows):
        db.append_message(entry.session_id, "user", f"row {number}")
    found = [one["content"] for one in kept.load_transcript(entry.session_id)]
    count = lines if wins == "file" else rows
    assert found == [f"{wins} {number}" for number in range(count)]


def test_append_with_skip_db_grows_the_file_alone(kept, db):
    entry = kept.get_or_create_session(DM)
    kept.append_to_transcript(entry.session_id, {"role": "user", "content": "x"}, skip_db=True)
    assert [one["content"] for one in lines_of(kept, entry.session_id)] == ["x"]
    assert db.message_count(entry.session_id) == 0
    with pytest.raises(ValueError, match="name of a file"):
        kept.get_transcript_path("../x")


def test_index_of_another_program_is_imported_once(open_chats, db, tmp_path, local_time, caplog):
    first = open_chats()
    entry = first.get_or_create_session(DM)
    index = index_of(first)
    broken = {"session_key": "bad", "session_id": "../x"}
    index |= {"_README": "note", "bad": broken, "worse": 5, "k2": {**entry.to_dict()}}
    index["k2"] |= {"session_key": "k2", "session_id": "theirs"}
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "sessions.json").write_text(json.dumps(index))
    other = SessionStore(folder, IDLE, db=db, clock=local_time, hooks=Hooks(entry_points=False))
    assert {one.session_key for one in other.list_sessions()} == {entry.session_key, "k2"}
    assert "'bad'" in caplog.text
    assert "'worse'" in caplog.text
    (folder / "sessions.json").write_text("{}")
    again = SessionStore(folder, IDLE, db=db, clock=local_time, hooks=Hooks(entry_points=False))
    assert len(again.list_sessions()) == 2
    for store in (other, again):
        store.close()


def test_index_equals_the_routes(chats, db):
    for number in range(5):
        chats.get_or_create_session(SessionSource(platform="telegram", chat_id=str(number)))
    index = index_of(chats)
    routes = db._query(queries.all_routes, chats.scope)
    assert index == {route.key: route.entry for route in routes}
    assert not list(chats.sessions_dir.glob(".sessions_*.tmp"))


def test_transcripts_of_other_programs_are_migrated(kept, db):
    from hermes_actor.gateway.migration import migrate_transcripts

    kept.sessions_dir.mkdir(exist_ok=True)
    lines = [{"role": "session_meta", "platform": "discord", "model": "m"}]
    lines += [{"role": "user", "content": str(one)} for one in range(3)]
    (kept.sessions_dir / "old.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    with kept.begin_turn(DM, "ours"):
        pass
    arguments = (db, kept.sessions_dir, kept.scope)
    assert migrate_transcripts(*arguments, dry_run=True) == (1, 3, 1)
    assert db.get_session("old") is None
    assert migrate_transcripts(*arguments) == (1, 3, 1)
    assert db.get_session("old")["source"] == "discord"
    assert [one["content"] for one in db.get_messages("old")] == ["0", "1", "2"]
    assert (kept.sessions_dir / "old.jsonl.migrated").exists()
    assert migrate_transcripts(*arguments) == (0, 0, 1)


@pytest.mark.parametrize(
    ("stored", "kept_whole"),
    [("3 4", True), ("0 1", True), ("0 1 2 3 4", False), ("1 2", False), ("9", False)],
    ids=["tail", "head", "all", "middle", "others"],
)
def test_stored_messages_stay_as_they_are(kept, db, stored, kept_whole):
    """A file may have a head that the session lacks, or a tail; a third thing is left alone."""
    from hermes_actor.gateway.migration import migrate_transcripts

    kept.sessions_dir.mkdir(exist_ok=True)
    file = kept.sessions_dir / "old.jsonl"
    lines = [{"role": "user", "content": str(one)} for one in range(5)]
    file.write_text("".join(json.dumps(one) + "\n" for one in lines))
    db.create_session("old", "telegram")
    for one in stored.split():
        db.append_message("old", "user", one, token_count=7, tool_name="t")
    before = db.get_messages("old")
    with db.turn("old", holder="answering"):
        assert migrate_transcripts(db, kept.sessions_dir, kept.scope)[:2] == (0, 0)
    assert db.get_messages("old") == before
    done = migrate_transcripts(db, kept.sessions_dir, kept.scope)
    after = db.get_messages("old")
    assert done[:2] == ((1, 5 - len(before)) if kept_whole else (0, 0))
    assert file.exists() != kept_whole
    if kept_whole:
        assert [one["content"] for one in after] == ["0", "1", "2", "3", "4"]
    found = [one for one in after if one["token_count"] == 7]
    plain = [{**one, "id": 0} for one in found]
    assert plain == [{**one, "id": 0} for one in before]
