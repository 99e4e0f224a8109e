"""A gateway under test: answers chats until it is killed, or asked to end.

    python -m harness.gateway_worker DATABASE PYTHON NAME SEED

It begins with a line on its standard input, with many first messages at one moment. Each turn
stores the user's message by its key and two lines of its own, ``begin`` and ``end``. The keys are
those of all workers, so that messages are delivered twice. Now and then a chat is reset, compressed
or switched back, and the derived files are brought up to date.
"""

from __future__ import annotations

import contextlib
import random
import signal
import sys
import threading
from pathlib import Path

from harness.mutations import break_client
from hermes_actor import SessionDB
from hermes_actor.errors import HermesActorError, TurnBusy
from hermes_actor.gateway import GatewayConfig, Hooks, SessionSource, SessionStore

CHATS = 6
KEYS = 40
CROWD_CHATS = 50
CROWD_THREADS = 20
TURN_SECONDS = 1.0
"""Shorter than a worker is stopped for: it must not write after that."""


def main() -> None:
    database, python, name, seed = sys.argv[1:5]
    sys.executable = python
    break_client()
    rng = random.Random(f"{seed} {name}")
    db = SessionDB(Path(database), timeout=60)
    store = SessionStore(config=GatewayConfig(), db=db, hooks=Hooks(entry_points=False))
    ending = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ending.set())
    print("ready", flush=True)
    sys.stdin.readline()
    crowd(store, rng)
    number = 0
    while number == 0 or not ending.is_set():
        number += 1
        source = SessionSource(platform="echo", chat_id=str(rng.randrange(CHATS)))
        with contextlib.suppress(HermesActorError):
            one_turn(store, source, f"{name}.{number}", rng)
    # The last change of each worker is followed by an index file of it.
    store.reset_session(store.session_key(source))
    store.close()


def crowd(store: SessionStore, rng: random.Random) -> None:
    """Send the first messages of many chats at one moment, from many threads."""

    def send(chats: list[int]) -> None:
        start.wait()
        for chat in chats:
            store.get_or_create_session(SessionSource(platform="crowd", chat_id=str(chat)))

    start = threading.Barrier(CROWD_THREADS)
    chats = range(CROWD_CHATS)
    threads = [
        threading.Thread(target=send, args=(rng.sample(chats, CROWD_CHATS),))
        for _ in range(CROWD_THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def one_turn(store: SessionStore, source: SessionSource, tag: str, rng: random.Random) -> None:
    entry = store.get_or_create_session(source)
    with store.db.turn(entry.session_id, holder=tag, wait=10, seconds=TURN_SECONDS) as turn:
        session_id = turn.session_id
        store.append_to_transcript(
            session_id, {"role": "assistant", "content": f"begin {tag}"}, turn=int(turn)
        )
        if rng.random() < 0.1:
            session_id = store.db.continue_session(session_id, turn=turn)
        store.append_to_transcript(
            session_id, {"role": "assistant", "content": f"end {tag}"}, turn=int(turn)
        )
    with contextlib.suppress(TurnBusy):
        key = f"m{rng.randrange(KEYS)}"
        store.begin_turn(source, key, message_key=key, wait=5).finish()
    what = rng.random()
    if what < 0.1:
        store.reset_session(entry.session_key)
    elif what < 0.15:
        store.switch_session(entry.session_key, entry.session_id)
    elif what < 0.3:
        store.transcripts.catch_up()
    elif what < 0.4:
        store.flush()


if __name__ == "__main__":
    main()
