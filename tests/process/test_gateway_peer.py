"""Random programs on the released gateway store of the peer, and on ours: the same sessions.

Both run under one clock. What differs on purpose, and is left out of the comparison:

* end reasons: the peer has one for all resets, ours names the cause;
* ``reset_had_activity``: the peer asks for a counter that it never counts up;
* a session that is left by ``force_new``: the peer leaves it open, ours ends it;
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
from support.peer import FOLDER

from hermes_actor import SessionDB
from hermes_actor.gateway import (
    GatewayConfig,
    Hooks,
    SessionResetPolicy,
    SessionSource,
    SessionStore,
)

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


def play(program, store, set_time, source_of):
    now = datetime.fromisoformat(program["start"])
    set_time(now)
    names, ids_of, out = {}, {}, []

    def name(session_id):
        return names.setdefault(session_id, len(names))

    def shown(entry):
        if entry is None:
            return None
        ids_of.setdefault(entry.session_key, [])
        if entry.session_id not in ids_of[entry.session_key]:
            ids_of[entry.session_key].append(entry.session_id)
        kept = entry.to_dict()
        for left in ("reset_had_activity", "model_override"):
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
        key = keys.get(given[0], "unknown")
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
    return out
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

    answers.append(play(program, store, set_time, source_of))
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


def make_program(rng):
    kinds = ["get"] * 8 + ["wait"] * 6 + ["reset", "switch", "suspend", "tokens", "force"]
    kinds += ["prune", "recent"]
    policy = rng.choice(POLICIES)
    steps = []
    for _ in range(STEPS):
        kind = rng.choice(kinds)
        if kind == "recent" and policy["mode"] != "none":
            kind = "get"  # an interrupted chat is exempt from the policy of the peer's version
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
    return {"start": start.isoformat(), "policy": policy, "steps": steps, "sources": SOURCES}


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
    )
    store.close()
    routed = {route.entry["session_id"] for route in store.routes()}
    live = {row["id"] for row in db.export_all() if row["ended_at"] is None}
    db.close()
    return answers, routed, live


@pytest.mark.skipif(not FOLDER.is_dir(), reason="the agent program is not installed")
def test_random_programs_give_the_sessions_of_the_peer(tmp_path, monkeypatch):
    import time

    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        rng = random.Random(16)
        programs = [make_program(rng) for _ in range(PROGRAMS)]
        theirs = tmp_path / "peer"
        theirs.mkdir()
        done = subprocess.run(
            [sys.executable, "-c", RUN + PEER, str(theirs)],
            input=json.dumps(programs),
            env={**os.environ, "PYTHONPATH": str(FOLDER), "HERMES_HOME": str(theirs)},
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
