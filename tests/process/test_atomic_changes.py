"""Two writing threads and a reading process: no change is seen half applied."""

import json
import os
import subprocess
import sys
import threading
from itertools import count

import pytest
from support.processes import SCRIPTS

SECONDS = 3.0

READER = """
import json, sys, time
from pathlib import Path
from hermes_actor import SessionDB
from hermes_actor.client.file_queries import FileQueries
from hermes_actor.client.reader import Reader
from hermes_actor.paths import resolve_paths

path, mode, seconds = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])


class Reading(SessionDB):
    # Reads as every SessionDB does. In embedded mode only the owner may have more than that.
    def __init__(self):
        self._reader, self._port = Reader(resolve_paths(path)), None
        self._queries = FileQueries(self._reader, None, 30.0)


db = SessionDB(path, mode=mode) if mode == "actor" else Reading()
seen, rounds, wrong = {}, 0, []


def check(fact, *details):
    if not fact:
        wrong.append(repr(details))


def transcript(contents, *details):
    # Every row of a generation has its number and says how many there are.
    tags = {tuple(text.split(":")) for text in contents}
    check(len(tags) <= 1, "mixed generations", tags, *details)
    for generation, rows in tags:
        check(len(contents) == int(rows), "missing rows", generation, rows, len(contents))
        seen.setdefault("generations", set()).add(generation)


def counters(session, *details):
    if session is None:
        return
    rows = session["messages"]
    check(session["message_count"] == len(rows), "counter and rows", session["id"], len(rows),
          session["message_count"])
    calls = sum(len(row["tool_calls"] or []) for row in rows)
    check(session["tool_call_count"] == calls, "calls and rows", session["id"])


def lineage(rows):
    by_id = {row["id"]: row for row in rows}
    for row in rows:
        parent = row["parent_session_id"]
        if parent is None:
            continue
        check(parent in by_id, "no parent", row["id"])
        ended = by_id.get(parent, {})
        check(ended.get("end_reason") == "compression", "open parent", row["id"], parent)
        check((ended.get("ended_at") or 1e99) <= row["started_at"], "early child", row["id"])
    chain = [row for row in rows if row["source"] == "chain"]
    check(sum(row["ended_at"] is None for row in chain) == 1, "two open ends", len(chain))
    check(all(row["title"] for row in chain), "untitled")
    seen.setdefault("tips", set()).update(r["id"] for r in chain if r["ended_at"] is None)


def orphans(conn):
    return conn.execute(
        "SELECT COUNT(*) FROM messages WHERE session_id NOT IN (SELECT id FROM sessions)"
    ).fetchone()[0]


print("ready", flush=True)
end = time.monotonic() + seconds
while time.monotonic() < end and not wrong:
    rounds += 1
    whole = db.export_session("transcript")
    counters(whole)
    transcript([row["content"] for row in whole["messages"]], "export")
    transcript([row["content"] for row in db.get_messages("transcript")], "messages")
    transcript([m["content"] for m in db.get_messages_as_conversation("transcript")], "replay")
    lineage(db.search_sessions(limit=-1))
    lineage(db.list_sessions_rich(include_children=True, limit=-1))
    passing = db.export_session("passing")
    counters(passing)
    check(passing is None or len(passing["messages"]) in (0, 7), "passing", passing)
    seen.setdefault("passing", set()).add(passing is not None)
    check(db._reader.snapshot(orphans) == 0, "messages without a session")
print(json.dumps({"rounds": rounds, "wrong": wrong, **{k: len(v) for k, v in seen.items()}}))
"""


def replace_forever(db, stop):
    for generation in count(1):
        rows = generation % 7 + 1
        message = {"role": "tool", "content": f"{generation}:{rows}", "tool_calls": [generation]}
        db.replace_messages("transcript", [message] * rows)
        if stop.is_set():
            return


def continue_and_delete_forever(db, stop):
    chain = ["chain"]
    for number in count():
        chain.append(db.continue_session(chain[-1], f"chain {number}"))
        if len(chain) > 5:
            # The child of the deleted session loses its parent in the same moment.
            db.delete_session(chain.pop(0))
        db.create_session("passing", "cli")
        db.replace_messages("passing", [{"role": "user", "content": "x", "tool_calls": [1]}] * 7)
        db.delete_session("passing")
        if stop.is_set():
            return


@pytest.mark.parametrize("objects", [1, 2])
def test_reader_never_sees_half_a_change(open_store, mode, tmp_path, objects):
    path = tmp_path / "state.db"
    stores = [open_store(path) for _ in range(objects)]
    stores[0].create_session("transcript", "cli")
    stores[0].create_session("chain", "chain")
    stores[0].set_session_title("chain", "chain")
    stop, errors = threading.Event(), []

    def run(work, db):
        try:
            work(db, stop)
        except Exception as error:
            errors.append(error)

    threads = [
        threading.Thread(target=run, args=(work, stores[number % objects]))
        for number, work in enumerate((replace_forever, continue_and_delete_forever))
    ]
    reader = subprocess.Popen(
        [sys.executable, "-c", READER, str(path), mode, str(SECONDS / 2)],
        env={**os.environ, "PYTHONPATH": str(SCRIPTS)},
        stdout=subprocess.PIPE,
        text=True,
    )
    with reader:
        assert reader.stdout.readline() == "ready\n"
        for thread in threads:
            thread.start()
        text = reader.stdout.read()
        stop.set()
        for thread in threads:
            thread.join()
    assert errors == []
    assert reader.returncode == 0
    result = json.loads(text)
    assert result["wrong"] == []
    # It has really looked while things changed.
    assert result["rounds"] > 5
    assert result["generations"] > 5
    assert result["tips"] > 5
    assert result["passing"] == 2
