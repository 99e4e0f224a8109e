"""A client that knows what its sessions hold: it changes them, and finds all of it again.

It appends, replaces, clears and deletes by the public methods, and compares what it reads and what
searches find with what was acknowledged. A difference is an error line of its history. A search
may lack something while an index is damaged and filled again; it must be complete in the end.
"""

from __future__ import annotations

import base64
import random
import time
from pathlib import Path
from typing import Any

from harness.client import OPEN_SECONDS, Options
from hermes_actor.testing.worker import Worker

__all__ = ["keep"]

_SESSIONS = 3
_MESSAGES = 4
"""In one session at most: the words of a keeper stay few enough to be searched one by one."""

_COMPLETE_SECONDS = 100.0
"""In which a search is complete again. No promise: for ever is what it must not take."""

_PAUSE_SECONDS = 0.02


def keep(worker: Worker) -> None:
    """Change and look until it is time to end. A line ``k`` for each whole look."""
    keeper = Keeper(worker)
    worker.ready()
    while not worker.over(_PAUSE_SECONDS):
        try:
            keeper.change()
            keeper.look()
        except Exception as error:
            keeper.wrong(f"{keeper.doing}: {type(error).__name__}: {error}")
            keeper.begin_again()
    keeper.close()


class Keeper:
    """The sessions of one client, and what is in them."""

    def __init__(self, worker: Worker) -> None:
        from hermes_actor import SessionDB

        self._options, self._name = Options(**worker.options), worker.name
        self._record, self._rng = worker.record, worker.rng
        self._db = SessionDB(Path(worker.store), mode="actor", timeout=OPEN_SECONDS)
        self._sessions: dict[str, list[tuple[str, str]]] = {}
        """The messages of each session: the word that only this one has, and its text."""
        self._number = 0
        self.doing = ""

    def change(self) -> None:
        """One change; what is known is changed after it was acknowledged."""
        if len(self._sessions) < _SESSIONS:
            self._number += 1
            session = f"{self._name} {self._number}"
            self._db.create_session(session, "keeper")
            self._sessions[session] = []
        session = self._rng.choice(sorted(self._sessions))
        held = self._sessions[session]
        ways = [self._append] * 3 if len(held) < _MESSAGES else []
        way = self._rng.choice([*ways, self._replace, self._clear, self._delete])
        self.doing = way.__name__.strip("_")
        way(session)
        self.doing = "look"

    def _append(self, session: str) -> None:
        message = self._message()
        self._db.append_message(session, "user", message[1])
        self._sessions[session].append(message)

    def _replace(self, session: str) -> None:
        messages = [self._message() for _ in range(self._rng.randint(1, 2))]
        self._db.replace_messages(session, [{"role": "user", "content": m[1]} for m in messages])
        self._sessions[session] = messages

    def _clear(self, session: str) -> None:
        self._db.clear_messages(session)
        self._sessions[session] = []

    def _delete(self, session: str) -> None:
        if not self._db.delete_session(session):
            self.wrong(f"{session} was not there to be deleted")
        del self._sessions[session]

    def _message(self) -> tuple[str, str]:
        self._number += 1
        word = f"{self._name}n{self._number}q"
        return word, f"{word} {_text(self._rng, self._options.largest)} {word}"

    def look(self) -> None:
        """Everything is there, nothing else is, and searches find it."""
        began = time.monotonic()
        for session, held in self._sessions.items():
            there = [row["content"] for row in self._db.get_messages(session)]
            if there != [text for _, text in held]:
                self.wrong(f"{session} has {len(there)} messages, or others than {len(held)}")
        while missing := self._not_found():
            if time.monotonic() > began + _COMPLETE_SECONDS:
                self.wrong(f"searches do not find {missing} after {_COMPLETE_SECONDS:g} s")
                self.begin_again()
                break
            time.sleep(0.05)
        self._record("k", began)

    def _not_found(self) -> list[str]:
        """Words of messages that a search does not find exactly where they are."""
        return [
            word
            for session, held in self._sessions.items()
            for word, _ in held
            if self._found(word) != {session}
        ]

    def _found(self, word: str) -> set[str]:
        """Where a search finds it; nowhere yet, if it says that the index is damaged or behind."""
        from hermes_actor.errors import IndexBehind, StorageError

        self.doing = "search"
        try:
            return {row["session_id"] for row in self._db.search_messages(word)}
        except (StorageError, IndexBehind):
            return set()

    def begin_again(self) -> None:
        """After an error: other sessions, so that one fault is one error."""
        self._sessions = {}

    def wrong(self, text: str) -> None:
        self._record("e", time.monotonic(), " ".join(text.split())[:300])

    def close(self) -> None:
        self._db.close()


def _text(rng: random.Random, largest: int) -> str:
    """Some words; or up to *largest* bytes of words, of an image as base64, of Chinese."""
    if not largest:
        return " ".join(f"w{rng.randrange(1000)}" for _ in range(rng.randint(1, 20)))
    size = rng.randint(largest // 8, largest)
    kind: Any = rng.choice([_words, _image, _chinese])
    text: str = kind(rng, size)
    return text


def _words(rng: random.Random, size: int) -> str:
    return " ".join(f"word{rng.randrange(50_000)}" for _ in range(size // 10))


def _image(rng: random.Random, size: int) -> str:
    return base64.b64encode(rng.randbytes(size * 3 // 4)).decode()


def _chinese(rng: random.Random, size: int) -> str:
    return "".join(chr(rng.randrange(0x4E00, 0x9FA5)) for _ in range(size // 3))
