"""Twenty chats of the gateway of an installed hermes-agent on an attached home, under attack.

People write to ``gateway run`` through a Signal daemon on loopback, each of them the next message
when the last one is answered, while the actor of the home is handed over every second and killed
every four. Oldest and newest tested release, with its chats in its own index and in the store.
Each message and each reply is stored once, in the session of its chat and in its order; the logs
have no error; ``sessions.json`` names every chat, and equals the table where there is one.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.attack import attack_actor
from harness.job import Job, run
from support.actors import wait_for
from support.host_turns import is_store_fault
from support.hosts import Host, is_installed
from support.model_server import model_server
from support.signal_server import SignalServer, signal_server

VERSIONS, WAYS = ("0.14.0", "0.19.0"), ("host", "routes")
SHORT = (("0.14.0", "host"), ("0.19.0", "routes"))
CHATS, MESSAGES = 20, 10
SHORT_CHATS, SHORT_MESSAGES = 10, 2
KILL_SECONDS, HANDOFF_SECONDS = 4.0, 1.0
REPLY_SECONDS = 300.0

_CONFIG = """\
attach:
  chats: {way}
session_reset:
  mode: none
display:
  busy_input_mode: queue
"""
_BEFORE = """
from hermes_state import SessionDB
db = SessionDB()
db.create_session(session_id="before", source="cli")
db.close()
"""
"""A user of whom the gateway has a session: to the first one it says more than the message."""
_TABLES = {
    ("0.14.0", "routes"): "hermes_actor_routes",
    ("0.19.0", "routes"): "gateway_routing",
    ("0.19.0", "host"): "gateway_routing",
}
"""Where the chats are kept beside ``sessions.json``; 0.14.0 has no table of its own."""


def main(job: Job) -> None:
    if not all(is_installed(version) for version in VERSIONS):
        job.cannot("the agent program is not installed", goal=0)
        job.also = {}
        return
    few = job.form == "short"
    numbers = (SHORT_CHATS, SHORT_MESSAGES) if few else (CHATS, MESSAGES)
    everything = [(version, way) for version in VERSIONS for way in WAYS]
    with model_server() as url:
        while job.more():
            for version, way in SHORT if few else everything:
                talk(job, url, version, way, *numbers)


def talk(job: Job, url: str, version: str, way: str, chats: int, messages: int) -> None:
    """All chats of one gateway, and the judgement."""
    name = f"{version}-{way}-{job.done}"
    host = Host(version, job.folder / name, url)
    index, table = host.home / "sessions" / "sessions.json", _TABLES.get((version, way))
    try:
        with (host.home / "config.yaml").open("a") as config:
            config.write(_CONFIG.format(way=way))
        host.script(_BEFORE)
        host.actor("attach")
        log = job.folder / f"{name}.log"
        with (
            signal_server() as server,
            host.running("hermes", "gateway", "run", log=log, **server.variables),
        ):
            wait_for(lambda: server.listeners, 180)
            people = [
                threading.Thread(target=_person, args=(job, server, chat, messages), daemon=True)
                for chat in range(chats)
            ]
            for person in people:
                person.start()
            attack_actor(
                job, host.db, host.python, people, kills=KILL_SECONDS, handoffs=HANDOFF_SECONDS
            )
            # Times of use alone reach the index within a second, while the gateway lives.
            with contextlib.suppress(AssertionError):
                wait_for(lambda: not list(faults(host.db, index, table, chats, messages)), 30)
    finally:
        host.end()
    for fault in faults(host.db, index, table, chats, messages):
        job.violation(f"{name}: {fault}")
    job.demand(_has_our_chats(host.db) == (way == "routes"), f"{name}: kept in another way")
    for line in _lines(host.home / "logs"):
        job.demand(not (" ERROR " in line or is_store_fault(line)), f"{name}: {line}")


def _person(job: Job, server: SignalServer, chat: int, messages: int) -> None:
    for number in range(messages):
        if not server.turn(number_of(chat), text_of(chat, number), REPLY_SECONDS):
            got = server.got(number_of(chat))
            job.violation(f"{text_of(chat, number)!r} has no reply, only {got}")
            return
        job.count("messages")


def number_of(chat: int) -> str:
    """The number of the person of a chat."""
    return f"+155511100{chat:02d}"


def text_of(chat: int, number: int) -> str:
    """What the person of a chat says; the model replies with it."""
    return f"chat {chat} message {number} end"


def faults(path: Path, index: Path, table: str | None, chats: int, messages: int) -> Iterator[str]:
    """What is wrong with the store at *path*, and with the index of its chats beside it."""
    try:
        entries = _entries(index)
    except ValueError as error:
        yield f"the index cannot be read: {error}"
        return
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as conn:
        if (verdict := conn.execute("PRAGMA integrity_check").fetchone()) != ("ok",):
            yield f"the file is damaged: {verdict}"
        if table is not None:
            rows = conn.execute(f"SELECT session_key, entry_json FROM {table}").fetchall()
            if {key: json.loads(entry) for key, entry in rows} != entries or len(rows) != chats:
                yield f"the index differs from the {len(rows)} rows of {table}"
        stored = _stored(conn)
        open_ones = {
            one for (one,) in conn.execute("SELECT id FROM sessions WHERE ended_at IS NULL")
        }
    sessions = {one["origin"]["chat_id"]: one["session_id"] for one in entries.values()}
    for chat in range(chats):
        session, wanted = sessions.pop(number_of(chat), None), []
        for text in (text_of(chat, number) for number in range(messages)):
            wanted += [("user", text), ("assistant", f"Heard: {text}")]
        if session not in open_ones:
            yield f"chat {chat} has no open session in the index"
        elif (found := stored.pop(session, [])) != wanted:
            yield f"chat {chat} is stored as {found}"
    if sessions or stored:
        yield f"the index names other chats {sessions}, or other sessions have messages: {stored}"


def _has_our_chats(path: Path) -> bool:
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as conn:
        sql = "SELECT COUNT(*) FROM sqlite_master WHERE name = 'hermes_actor_chats'"
        return bool(conn.execute(sql).fetchone()[0])


def _entries(index: Path) -> dict[str, dict[str, Any]]:
    found = json.loads(index.read_text("utf-8"))
    return {key: entry for key, entry in found.items() if not key.startswith("_")}


def _stored(conn: sqlite3.Connection) -> dict[str, list[tuple[str, str]]]:
    """Messages and replies of each session, in their order."""
    found: dict[str, list[tuple[str, str]]] = {}
    sql = (
        "SELECT session_id, role, content FROM messages WHERE role IN ('user', 'assistant')"
        " ORDER BY id"
    )
    for session, role, text in conn.execute(sql):
        found.setdefault(session, []).append((role, text))
    return found


def _lines(logs: Path) -> Iterator[str]:
    for log in sorted(logs.glob("*.log")):
        yield from log.read_text(errors="replace").splitlines()


if __name__ == "__main__":
    sys.exit(run(main, "messages", short=40, usual=800, also={"kills": 2, "hand-offs": 4}))
