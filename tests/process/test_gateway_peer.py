"""Random programs on the released gateway store of the peer, and on ours: the same sessions.

Both run under one clock. What differs on purpose, and is left out of the comparison:

* a session that is left by ``force_new``: the peer leaves it open, ours ends it;
* of 0.14.0 the end reasons, of which it has one for all resets where ours names the cause, and
  ``reset_had_activity``, for which it asks a counter that it never counts up;
* the stored time of use: ours is written once a minute, so that steps here are longer.
"""

import json
import os
import random
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from conformance.store_calls import stores_of
from support.actors import end_actors
from support.peer import FOLDER

from hermes_actor import SessionDB
from hermes_actor.attach.typed import ROUTED_FINGERPRINTS
from hermes_actor.gateway import (
    GatewayConfig,
    Hooks,
    SessionResetPolicy,
    SessionSource,
    SessionStore,
)

ROOT = Path(__file__).parents[2]
ROUTED_RELEASES = sorted(ROUTED_FINGERPRINTS.values())
PROGRAMS, STEPS = 30, 40

SOURCES = [
    {"platform": "telegram", "chat_id": "100", "user_id": "u1", "chat_name": "Al"},
    {"platform": "telegram", "chat_id": "100", "thread_id": "7"},
    {"platform": "discord", "chat_id": "55", "chat_type": "channel", "user_id": "u1"},
    {"platform": "discord", "chat_id": "55", "chat_type": "channel", "user_id": "u2"},
    {"platform": "slack", "chat_id": "9", "chat_type": "group", "thread_id": "4", "user_id": "u1"},
    {"platform": "whatsapp", "chat_id": "60123456789:47@s.whatsapp.net"},
]
POLICIES = [
    {"mode": "none"},
    {"mode": "idle", "idle_minutes": 90},
    {"mode": "daily", "at_hour": 4},
    {"mode": "both", "idle_minutes": 600, "at_hour": 0},
]
JUMPS = [61, 600, 3600, 5400, 5401, 40_000, 86_400, 200_000]

RUN = """
import json, sys
from datetime import datetime, timedelta


def play(program, store, set_time, source_of, reason_of):
    now = datetime.fromisoformat(program["start"])
    set_time(now)
    names, ids_of, out, forced = {}, {}, [], set()

    def name(session_id):
        return names.setdefault(session_id, len(names))

    def shown(entry):
        if entry is None:
            return None
        ids_of.setdefault(entry.session_key, [])
        if entry.session_id not in ids_of[entry.session_key]:
            ids_of[entry.session_key].append(entry.session_id)
        kept = entry.to_dict()
        for left in program["left_out"]:
            kept.pop(left, None)
        kept["session_id"] = name(entry.session_id)
        return kept

    keys = {}
    for step, *given in program["steps"]:
        if step == "wait":
            now += timedelta(seconds=given[0])
            set_time(now)
            continue
        if step in ("get", "force"):
            if step == "force":
                key = keys.get(given[0])
                forced.update(e.session_id for e in store.list_sessions() if e.session_key == key)
            entry = store.get_or_create_session(source_of(given[0]), force_new=step == "force")
            keys[given[0]] = entry.session_key
            out.append([step, shown(entry)])
            continue
        if step == "recent":
            out.append([step, store.suspend_recently_active(given[0])])
            continue
        if step == "prune":
            out.append([step, store.prune_old_entries(given[0])])
            continue
        if step == "expire":  # as the watcher of a gateway does it
            for entry in sorted(store.list_sessions(), key=lambda one: one.session_key):
                if store._is_session_expired(entry) and not entry.expiry_finalized:
                    if hasattr(store, "set_expiry_finalized"):
                        store.set_expiry_finalized(entry)
                    else:
                        entry.expiry_finalized = True
                        store._save()
                    out.append([step, shown(entry)])
            continue
        key = keys.get(given[0], "unknown")
        if step in ("say", "compress"):
            if key not in store._entries:
                continue
            entry = store._entries[key]
            message = {"role": "user", "content": "hello"}
            if step == "compress":  # as an agent does it, and then the gateway
                old, entry.session_id = entry.session_id, f"{entry.session_id}c{len(names)}"
                store._db.end_session(old, "compression")
                store._db.create_session(entry.session_id, "telegram", parent_session_id=old)
                store._save()
            store.append_to_transcript(entry.session_id, message)
            out.append([step, shown(entry), len(store.load_transcript(entry.session_id))])
            continue
        if step == "reset":
            out.append([step, shown(store.reset_session(key))])
        elif step == "switch":
            known = ids_of.get(key, ["none"])
            target = known[given[1] % len(known)]
            out.append([step, shown(store.switch_session(key, target)) if key in ids_of else None])
        elif step == "suspend":
            out.append([step, store.suspend_session(key)])
        elif step == "tokens":
            store.update_session(key, given[1])
    out.append(["all", [shown(entry) for entry in store.list_sessions()]])
    if program["has_reasons"]:
        out.append(["ends", [reason_of(one) for one in names if one not in forced]])
    return out
"""

# The packages that a gateway imports and does not use here are not installed.
STUBS = """
import sys, types
for name in ("requests", "openai", "httpx"):
    sys.modules[name] = types.ModuleType(name)
"""

# What a user has before hermes-agent is attached: a file that its own class has made.
MADE_BEFORE = "from hermes_state import SessionDB; SessionDB().close()"

ROUTED = """
import sys
from hermes_actor.attach import boot
from hermes_actor.attach.typed import TYPED_FINGERPRINTS

boot.install({
    "scheme": boot.SCHEME, "homes": [sys.argv[1]], "names": ["hermes_state", "gateway"],
    "folder": sys.argv[2], "editable": False, "advice": "", "typed": dict(TYPED_FINGERPRINTS),
})
import gateway.session
assert gateway.session.SessionStore is not gateway.session._AttachedSessionStore
"""

PEER = """
import tempfile
from pathlib import Path
import gateway.session as session
from gateway.config import GatewayConfig, Platform, SessionResetPolicy

answers = []
for program in json.load(sys.stdin):
    folder = Path(tempfile.mkdtemp(dir=sys.argv[1]))
    config = GatewayConfig(default_reset_policy=SessionResetPolicy(**program["policy"]))
    store = session.SessionStore(folder / "sessions", config)

    def set_time(now):
        session._now = lambda: now

    def source_of(number):
        given = dict(program["sources"][number])
        return session.SessionSource(platform=Platform(given.pop("platform")), **given)

    def reason_of(session_id):
        return store._db.get_session(session_id)["end_reason"]

    answers.append(play(program, store, set_time, source_of, reason_of))
print(json.dumps(answers))
"""


FILES = """
import os, sys
from datetime import datetime
from pathlib import Path
import gateway.session as session
from gateway.config import GatewayConfig, Platform, SessionResetPolicy

session._now = lambda: datetime(2026, 3, 27, 22, 30, 0, 250000)
config = GatewayConfig(default_reset_policy=SessionResetPolicy(mode="none"))
store = session.SessionStore(Path(os.environ["HERMES_HOME"]) / "sessions", config)
for chat in ("100", "北京", "é"):
    source = session.SessionSource(
        platform=Platform.TELEGRAM, chat_id=chat, user_id="u1", chat_name=chat
    )
    entry = store.get_or_create_session(source)
store.suspend_session(entry.session_key)
store.mark_resume_pending(store.list_sessions()[0].session_key)
time = "2026-03-27T22:30:00.250000"
meta = {"role": "session_meta", "tools": [], "model": None, "platform": "telegram"}
store.append_to_transcript(entry.session_id, meta | {"timestamp": time}, skip_db=True)
for role, content in (("user", "你好 \\u2028 \\"é\\""), ("assistant", "hi\\n")):
    message = {"role": role, "content": content, "timestamp": time}
    store.append_to_transcript(entry.session_id, message)
print(entry.session_id)
"""


def of_home(home, folder):
    """The variables of a process with the program in *folder* and ours."""
    paths = (ROOT, ROOT / "protocol", folder)
    return {
        **os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "HERMES_HOME": str(home),
    }  # fmt: skip


def make_program(rng, version="0.14.0", is_attached=False):
    """With *is_attached* also what a gateway and its agents do besides; then nothing is pruned,
    for what a pruned chat goes on with differs (see ``test_provider_gateway``)."""
    kinds = ["get"] * 8 + ["wait"] * 6 + ["reset", "switch", "suspend", "tokens", "force"]
    kinds += ["say", "say", "expire", "compress", "recent"] if is_attached else ["prune", "recent"]
    policy = rng.choice(POLICIES)
    steps = []
    for _ in range(STEPS):
        kind = rng.choice(kinds)
        if kind == "recent" and version != "0.19.0" and policy["mode"] != "none":
            kind = "get"  # up to 0.17.0 an interrupted chat is exempt from the policy
        if kind == "recent" and version == "0.18.2":
            kind = "get"  # which resets an interrupted chat even where nothing is to be reset
        given = {
            "wait": lambda: [rng.choice(JUMPS)],
            "recent": lambda: [rng.choice([120, 4000])],
            "prune": lambda: [rng.choice([0, 1, 3])],
            "switch": lambda: [rng.randrange(len(SOURCES)), rng.randrange(5)],
            "tokens": lambda: [rng.randrange(len(SOURCES)), rng.randrange(2)],
        }.get(kind, lambda: [rng.randrange(len(SOURCES))])()
        steps += [[kind, *given], ["wait", 61]]
    # Across the change of summer time of central Europe, and across midnight.
    start = datetime(2026, 3, 27, 22, 30) + timedelta(minutes=rng.randrange(600))
    is_first = version != "0.19.0"
    return {
        "start": start.isoformat(), "policy": policy, "steps": steps, "sources": SOURCES,
        "left_out": ["model_override", *(["reset_had_activity"] if is_first else [])],
        "has_reasons": not is_first,
    }  # fmt: skip


def ours(program, folder):
    space = {}
    exec(RUN, space)
    now = [None]
    folder.mkdir()
    db = SessionDB(folder / "state.db", mode="embedded")
    policy = SessionResetPolicy(**program["policy"])
    config = GatewayConfig(default_reset_policy=policy, write_jsonl=False)
    hooks = Hooks(entry_points=False)
    store = SessionStore(folder / "sessions", config, db=db, clock=lambda: now[0], hooks=hooks)
    answers = space["play"](
        program,
        store,
        lambda moment: now.__setitem__(0, moment),
        lambda number: SessionSource(**SOURCES[number]),
        lambda session_id: db.get_session(session_id)["end_reason"],
    )
    store.close()
    routed = {route.entry["session_id"] for route in store.routes()}
    live = {row["id"] for row in db.export_all() if row["ended_at"] is None}
    db.close()
    return answers, routed, live


@pytest.mark.parametrize("version", ["0.14.0", "0.19.0"])
def test_random_programs_give_the_sessions_of_the_peer(version, tmp_path, monkeypatch):
    import time

    if not stores_of(version).is_dir():
        pytest.skip("the agent program is not installed")

    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        rng = random.Random(16)
        programs = [make_program(rng, version) for _ in range(PROGRAMS)]
        theirs = tmp_path / "peer"
        theirs.mkdir()
        done = subprocess.run(
            [sys.executable, "-c", STUBS + RUN + PEER, str(theirs)],
            input=json.dumps(programs),
            env={**os.environ, "PYTHONPATH": str(stores_of(version)), "HERMES_HOME": str(theirs)},
            stdout=subprocess.PIPE,
            text=True,
            timeout=250,
            check=True,
        )
        expected = json.loads(done.stdout.splitlines()[-1])
        for number, program in enumerate(programs):
            got, routed, live = ours(program, Path(tmp_path / str(number)))
            got = json.loads(json.dumps(got))
            for place, (mine, peers) in enumerate(zip(got, expected[number], strict=True)):
                assert mine == peers, (number, place, program["policy"])
            assert routed <= live
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("version", ROUTED_RELEASES)
def test_random_programs_on_the_peer_with_its_chats_in_our_store(version, tmp_path):
    """The class of the peer and its subclass, in the same process but for the hook."""
    folder = stores_of(version)
    if not folder.is_dir():
        pytest.skip("the agent program is not installed")
    rng = random.Random(7)
    programs = [make_program(rng, version, is_attached=True) for _ in range(PROGRAMS // 3)]
    for number, program in enumerate(programs):
        # They share a store, where a chat without a route finds its session again.
        program["sources"] = [one | {"chat_id": f"{number}{one['chat_id']}"} for one in SOURCES]
    answers = {}
    for way, hook in (("host", ""), ("routes", ROUTED)):
        home = tmp_path / way
        home.mkdir()
        (home / "config.yaml").write_text(f"attach: {{chats: {way}}}\n")
        env = of_home(home, folder)
        subprocess.run([sys.executable, "-P", "-c", STUBS + MADE_BEFORE], env=env, check=True)
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-c", STUBS + hook + RUN + PEER, str(home), str(folder)],
                input=json.dumps(programs),
                env=env,
                stdout=subprocess.PIPE,
                text=True,
                timeout=250,
                check=True,
            )
        finally:
            end_actors(home / "state.db")
        answers[way] = json.loads(done.stdout.splitlines()[-1])
    for number, (got, expected) in enumerate(zip(answers["routes"], answers["host"], strict=True)):
        for place, (mine, theirs) in enumerate(zip(got, expected, strict=True)):
            assert mine == theirs, (number, place, programs[number]["policy"])


TWO = """
import json, os
from pathlib import Path
from gateway.config import GatewayConfig, Platform, SessionResetPolicy
from gateway.session import SessionSource, SessionStore

config = GatewayConfig(default_reset_policy=SessionResetPolicy(mode="none"))
folder = Path(os.environ["HERMES_HOME"]) / "sessions"
one, other = SessionStore(folder, config), SessionStore(folder, config)
source = SessionSource(platform=Platform.TELEGRAM, chat_id="100", user_id="u1")
entry = one.get_or_create_session(source)
key = entry.session_key
assert one.get_or_create_session(source) is entry  # the gateway keeps it, and changes it

# The other gateway resets the chat, and this one goes on there.
new = other.reset_session(key)
assert one.get_or_create_session(source) is entry
assert entry.session_id == new.session_id
assert one._db.get_session(entry.session_id)["ended_at"] is None

# A gateway writes into entries and saves them.
entry.expiry_finalized = True
one._save()
(seen,) = other.list_sessions()
assert seen.expiry_finalized

# What it writes into an entry that is older than the store is left out, and it learns why.
newer = other.reset_session(key)
entry.suspended = True
one._save()
assert (entry.session_id, entry.suspended) == (newer.session_id, False)
assert other.get_or_create_session(source).session_id == newer.session_id

one.append_to_transcript(entry.session_id, {"role": "user", "content": "hello"})
assert [row["content"] for row in one._db.get_messages(entry.session_id)] == ["hello"]
assert one.load_transcript(entry.session_id)[0]["content"] == "hello"
assert one.switch_session(key, "elsewhere") is entry and entry.session_id == "elsewhere"
assert one.suspend_session(key) and one.mark_resume_pending(key) is False
assert other.get_or_create_session(source).auto_reset_reason == "suspended"
assert one.switch_session("unknown", "x") is one.reset_session("unknown") is None
del one._entries[key]  # of a session that the chat has left
one._save()
assert len(other.list_sessions()) == len(one.list_sessions()) == 1
del one._entries[key]
one._save()
assert other.list_sessions() == []

# The gateway answers where the message came from, by what only the source itself knows.
source.is_bot = True
assert one.get_or_create_session(source).origin is source
assert one.get_or_create_session(SessionSource(**vars(source))).origin is source
print("done")
"""


@pytest.mark.parametrize("version", ROUTED_RELEASES)
def test_two_gateways_of_the_peer_see_each_others_chats(version, tmp_path):
    folder = stores_of(version)
    if not folder.is_dir():
        pytest.skip("the agent program is not installed")
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.yaml").write_text("attach: {chats: routes}\n")
    env = of_home(home, folder)
    subprocess.run([sys.executable, "-P", "-c", STUBS + MADE_BEFORE], env=env, check=True)
    words = [sys.executable, "-P", "-c", STUBS + ROUTED + TWO, str(home), str(folder)]
    try:
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=200)
    finally:
        end_actors(home / "state.db")
    assert done.stdout == "done\n", done.stderr


@pytest.mark.skipif(not FOLDER.is_dir(), reason="the agent program is not installed")
def test_files_are_those_of_the_peer_byte_for_byte(tmp_path):
    """The index that it left is imported and written again; a transcript is written from rows."""
    env = {**os.environ, "PYTHONPATH": str(FOLDER), "HERMES_HOME": str(tmp_path)}
    words = [sys.executable, "-c", FILES]
    done = subprocess.run(words, env=env, stdout=subprocess.PIPE, text=True, check=True)
    session_id = done.stdout.strip()
    index = tmp_path / "sessions" / "sessions.json"
    transcript = tmp_path / "sessions" / f"{session_id}.jsonl"
    of_peer = index.read_bytes(), transcript.read_bytes()
    with SessionDB(tmp_path / "state.db", mode="embedded") as db:
        hooks = Hooks(entry_points=False)
        store = SessionStore(tmp_path / "sessions", GatewayConfig(), db=db, hooks=hooks)
        assert len(store.routes()) == 3
        index.unlink()
        store.mirror.write()
        transcript.unlink()
        moment = datetime(2026, 3, 27, 22, 30, 0, 250000).timestamp()
        # The times of rows are those of the machine.
        db._conn.execute("UPDATE sessions SET started_at = ?", (moment,))
        db._conn.execute("UPDATE messages SET timestamp = ?", (moment,))
        store.transcripts.catch_up()
        store.close()
    assert (index.read_bytes(), transcript.read_bytes()) == of_peer
