"""Session keys, reset policies and entries: pure functions of their arguments."""

import json
import time
from datetime import datetime, timedelta

import pytest

from hermes_actor.gateway import (
    GatewayConfig,
    SessionEntry,
    SessionResetPolicy,
    SessionSource,
    build_session_key,
    is_shared_multi_user_session,
    load_gateway_config,
)
from hermes_actor.gateway.words import duration
from hermes_actor.store.gateway.entries import DEFAULTS
from hermes_actor.store.gateway.route_rules import reset_reason

KEYS = [
    ("telegram", "dm", "100", None, None, {}, "agent:main:telegram:dm:100"),
    ("telegram", "dm", "100", "7", None, {}, "agent:main:telegram:dm:100:7"),
    ("telegram", "dm", None, "7", None, {}, "agent:main:telegram:dm:7"),
    ("telegram", "dm", None, None, None, {}, "agent:main:telegram:dm"),
    ("telegram", "dm", None, None, "u9", {}, "agent:main:telegram:dm:u9"),
    ("telegram", "dm", "100", None, "u9", {}, "agent:main:telegram:dm:100"),
    (
        "whatsapp", "dm", "60123456789:47@s.whatsapp.net", None, None, {},
        "agent:main:whatsapp:dm:60123456789",
    ),
    (
        "whatsapp", "group", "120363@g.us", None, "60123456789@s.whatsapp.net", {},
        "agent:main:whatsapp:group:120363@g.us:60123456789",
    ),
    ("telegram", "group", "-100", None, "u1", {}, "agent:main:telegram:group:-100:u1"),
    ("telegram", "group", "-100", None, None, {}, "agent:main:telegram:group:-100"),
    ("telegram", "group", "-100", None, "u1", {"group": False}, "agent:main:telegram:group:-100"),
    ("telegram", "group", "-100", "42", "u1", {}, "agent:main:telegram:group:-100:42"),
    (
        "telegram", "group", "-100", "42", "u1", {"thread": True},
        "agent:main:telegram:group:-100:42:u1",
    ),
    (
        "telegram", "group", "-100", "42", "u1", {"thread": True, "group": False},
        "agent:main:telegram:group:-100:42",
    ),
    ("discord", "channel", "55", None, "u1", {}, "agent:main:discord:channel:55:u1"),
    ("discord", "thread", "55", "55", "u1", {}, "agent:main:discord:thread:55:55"),
    ("slack", "channel", None, None, "u1", {}, "agent:main:slack:channel:u1"),
]  # fmt: skip


@pytest.mark.parametrize(("platform", "kind", "chat", "thread", "user", "settings", "key"), KEYS)
def test_key_of_every_type_of_chat(platform, kind, chat, thread, user, settings, key, tmp_path):
    source = SessionSource(
        platform=platform, chat_type=kind, chat_id=chat, thread_id=thread, user_id=user
    )
    made = build_session_key(
        source, settings.get("group", True), settings.get("thread", False), home=tmp_path
    )
    assert made == key


def test_the_stable_id_of_a_user_is_preferred_and_a_profile_is_named():
    source = SessionSource(
        platform="signal", chat_type="group", chat_id="g1", user_id="+1", user_id_alt="uuid-9"
    )
    assert build_session_key(source) == "agent:main:signal:group:g1:uuid-9"
    assert build_session_key(source, profile="coder").startswith("agent:coder:")
    assert build_session_key(source, profile="default").startswith("agent:main:")


def test_all_ids_of_a_person_on_whatsapp_give_one_key(tmp_path):
    folder = tmp_path / "whatsapp" / "session"
    folder.mkdir(parents=True)
    (folder / "lid-mapping-9999.json").write_text('"111@s.whatsapp.net"')
    (folder / "lid-mapping-111_reverse.json").write_text('"9999"')
    keys = {
        build_session_key(SessionSource(platform="whatsapp", chat_id=chat), home=tmp_path)
        for chat in ("9999@lid", "111@s.whatsapp.net", "+111")
    }
    assert keys == {"agent:main:whatsapp:dm:111"}
    odd = SessionSource(platform="whatsapp", chat_id="../../etc")
    assert build_session_key(odd, home=tmp_path) == "agent:main:whatsapp:dm:../../etc"


def test_rooms_are_shared_by_the_settings():
    room = SessionSource(platform="x", chat_type="group", chat_id="1")
    thread = SessionSource(platform="x", chat_type="group", chat_id="1", thread_id="2")
    assert not is_shared_multi_user_session(SessionSource(platform="x"), False, False)
    assert [is_shared_multi_user_session(room, group, False) for group in (True, False)] == [
        False, True,
    ]  # fmt: skip
    assert [is_shared_multi_user_session(thread, True, one) for one in (True, False)] == [
        False, True,
    ]  # fmt: skip


def local(text):
    return datetime.fromisoformat(text)


@pytest.mark.parametrize(
    ("policy", "now", "used", "reason"),
    [
        ({"mode": "idle"}, "2026-03-02T10:00:00", "2026-03-01T10:00:00", None),
        ({"mode": "idle"}, "2026-03-02T10:00:00", "2026-03-01T09:59:59.999999", "idle"),
        ({"mode": "daily"}, "2026-03-02T03:59:00", "2026-03-01T05:00:00", None),
        ({"mode": "daily"}, "2026-03-02T03:59:00", "2026-03-01T03:30:00", "daily"),
        ({"mode": "daily"}, "2026-03-02T04:00:00", "2026-03-02T03:59:59", "daily"),
        ({"mode": "daily"}, "2026-03-02T09:00:00", "2026-03-02T04:00:00", None),
        ({"mode": "daily", "at_hour": 0}, "2026-03-02T00:00:01", "2026-03-01T23:59:00", "daily"),
        ({"mode": "both", "idle_minutes": 60}, "2026-03-06T10:00:00", "2026-03-02T10:00", "idle"),
        ({"mode": "none"}, "2026-03-06T10:00:00", "2025-03-02T10:00:00", None),
    ],
)
def test_policy_decides_by_the_last_use(policy, now, used, reason):
    limits = SessionResetPolicy.from_dict(policy).thresholds(local(now))
    assert reset_reason({}, local(used).timestamp(), *limits) == reason


def test_wrong_values_of_a_policy_are_named_and_the_default_is_used(caplog):
    policy = SessionResetPolicy.from_dict(
        {"mode": "weekly", "at_hour": 24, "idle_minutes": 0, "notify": None}
    )
    assert policy == SessionResetPolicy()
    assert policy.mode == "none"
    for word in ("weekly", "at_hour", "idle_minutes"):
        assert word in caplog.text


def test_policy_of_the_platform_wins_over_that_of_the_type():
    idle, none = SessionResetPolicy(mode="idle", idle_minutes=10), SessionResetPolicy()
    daily = SessionResetPolicy(mode="daily")
    config = GatewayConfig(daily, {"dm": none}, {"telegram": idle})
    assert config.get_reset_policy("telegram", "dm") is idle
    assert config.get_reset_policy("discord", "dm") is none
    assert config.get_reset_policy("discord", "group") is daily


def test_settings_come_from_three_places(tmp_path, monkeypatch):
    (tmp_path / "gateway.json").write_text(
        json.dumps({
            "session_reset": {"mode": "daily", "at_hour": 5},
            "reset_by_platform": {"discord": {"mode": "none"}},
            "session_store_max_age_days": "many",
        })
    )  # fmt: skip
    (tmp_path / "config.yaml").write_text(
        "group_sessions_per_user: false\nsession_reset:\n  mode: both\n  idle_minutes: 90\n"
        "gateway:\n  session_reset:\n    idle_minutes: 5\n  resume_scope: source\n"
    )
    monkeypatch.setenv("SESSION_RESET_HOUR", "6")
    monkeypatch.setenv("SESSION_IDLE_MINUTES", "soon")
    config = load_gateway_config(tmp_path)
    policy = config.default_reset_policy
    assert (policy.mode, policy.idle_minutes, policy.at_hour) == ("both", 90, 6)
    assert not config.group_sessions_per_user
    assert config.reset_by_platform["discord"].mode == "none"
    assert (config.resume_scope, config.session_store_max_age_days) == ("source", 90)


def test_entry_has_exactly_the_keys_of_the_file():
    now = datetime(2026, 3, 2, 10, 0)
    source = SessionSource(platform="telegram", chat_id="100", guild_id="g")
    entry = SessionEntry("k", "s1", now, now, origin=source, platform="telegram")
    stored = entry.to_dict()
    assert list(stored) == [*DEFAULTS, "origin"]
    assert "is_bot" not in stored["origin"]
    assert stored["origin"]["scope_id"] == stored["origin"]["guild_id"] == "g"
    assert SessionEntry.from_dict(json.loads(json.dumps(stored))) == entry
    old = {name: stored[name] for name in ("session_key", "session_id", "created_at", "updated_at")}
    assert SessionEntry.from_dict({**old, "memory_flushed": True}).expiry_finalized


@pytest.mark.parametrize("field", ["session_key", "session_id", "created_at", "updated_at"])
def test_entry_without_a_required_key_is_refused(field):
    now = datetime(2026, 3, 2)
    stored = SessionEntry("k", "s1", now, now).to_dict()
    del stored[field]
    with pytest.raises((KeyError, ValueError)):
        SessionEntry.from_dict(stored)


@pytest.mark.parametrize("session_id", ["../x", "a/b", "a\\b", "C:\\x", ""])
def test_entry_with_a_path_as_its_id_is_refused(session_id):
    now = datetime(2026, 3, 2)
    stored = SessionEntry("k", "s1", now, now).to_dict() | {"session_id": session_id}
    with pytest.raises(ValueError, match="not an id"):
        SessionEntry.from_dict(stored)


def test_sources_describe_themselves():
    assert SessionSource(platform="local").description == "CLI terminal"
    assert SessionSource(platform="x", user_name="Al").description == "DM with Al"
    room = SessionSource(platform="x", chat_type="group", chat_name="ops", thread_id="7")
    assert room.description == "group: ops, thread: 7"


def test_durations_are_short():
    assert [duration(1440), duration(90), duration(45)] == ["24h", "1h 30m", "45m"]


@pytest.fixture
def berlin(monkeypatch):
    """A zone in which 02:00 to 03:00 is skipped on 29 March 2026, and comes twice on 25 October."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def at(utc):
    """The local time at a moment of world time, as the clock of a gateway tells it."""
    moment = datetime.fromisoformat(f"{utc}+00:00").timestamp()
    return datetime.fromtimestamp(moment), moment


@pytest.mark.usefixtures("berlin")
def test_a_day_with_a_change_of_summer_time_is_a_day_of_the_wall_clock():
    policy = SessionResetPolicy(mode="idle", idle_minutes=1440)
    now = datetime(2026, 3, 29, 12, 0)
    assert policy.thresholds(now).idle_before == (now - timedelta(days=1)).timestamp()


@pytest.mark.usefixtures("berlin")
@pytest.mark.parametrize("minutes", [1, 30, 59, 60, 90])
def test_nothing_is_idle_that_was_used_a_moment_ago(minutes):
    """In no minute of the two nights in which the clocks are changed."""
    policy = SessionResetPolicy(mode="idle", idle_minutes=minutes)
    for night in ("2026-03-28T22:00", "2026-10-24T22:00"):
        for passed in range(300):
            now, moment = at(night)
            now = datetime.fromtimestamp(moment + 60 * passed)
            idle = policy.thresholds(now).idle_before
            assert idle <= moment + 60 * (passed - min(minutes, 1)), now


@pytest.mark.usefixtures("berlin")
@pytest.mark.parametrize("hour", [1, 2, 3, 4])
@pytest.mark.parametrize("night", ["2026-03-28T18:00", "2026-10-24T18:00"])
def test_a_night_with_a_change_of_the_clock_has_one_daily_reset(night, hour):
    """A chat that is used every minute is reset once, at the first moment of that hour."""
    policy = SessionResetPolicy(mode="daily", at_hour=hour)
    _, used = at(night)
    resets = []
    for _ in range(60 * 16):
        moment = used + 60
        limits = policy.thresholds(datetime.fromtimestamp(moment))
        assert limits.daily_before <= moment
        if reset_reason({}, used, *limits) is not None:
            resets.append(datetime.fromtimestamp(moment))
        used = moment
    assert len(resets) == 1
    assert (resets[0].hour, resets[0].minute) in ((hour, 0), (hour + 1, 0))
