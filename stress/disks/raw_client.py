"""A client that speaks the protocol by hand and remembers what it was promised."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Self

import msgspec
from support.wire import Wire, append, create, request

from disks.recording import Ack, Promises, Sent

__all__ = ["Hand", "History"]


class History:
    """What the clients of one store have sent, and the answers."""

    def __init__(self) -> None:
        self.sent: dict[tuple[bytes, int], Sent] = {}
        self.acks: dict[tuple[bytes, int], Ack] = {}
        self.refused: set[tuple[bytes, int]] = set()
        self.codes: set[str] = set()
        self.refusals = 0

    def promises(self) -> Promises:
        promises = Promises([])
        promises.sent, promises.acks, promises.refused = self.sent, self.acks, self.refused
        return promises


class Hand:
    """One client. The same name is the same client, whatever happened to its connection."""

    def __init__(self, path: Path, history: History, name: str) -> None:
        self._history = history
        self._name = name
        self._client = name.encode().ljust(16, b"-")
        self._wire = Wire(path, self._client)
        self._next = 1 + max((s for c, s in history.sent if c == self._client), default=0)
        self.cut_off = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._wire.close()

    def begin(self) -> None:
        self._must(create(self._name))

    def must_write(self, text: str) -> None:
        self._must(append(self._name, f"{self._next} {text}"))

    def _must(self, operation: dict[str, Any]) -> None:
        answer = self._do(self._next, operation)
        assert answer is not None, "the actor has closed the connection"
        assert answer["t"] == "ok", f"refused: {answer}"

    def try_to_begin(self) -> None:
        """It need not succeed; there must be an answer."""
        assert self._do(self._next, create(self._name)) is not None, "no answer"

    def write(self, text: str) -> dict[str, Any] | None:
        return self._do(self._next, append(self._name, f"{self._next} {text}"))

    def write_until_refused(self, chance: random.Random, most: int) -> None:
        """Write until some changes in a row were refused, or the connection is gone."""
        refused = 0
        for _ in range(most):
            answer = self.write("walrus " * chance.randrange(1, 1500))
            if answer is None:
                self.cut_off = True
                return
            refused += answer["t"] == "failed"
            if refused >= 5:
                return
        raise AssertionError(f"{most} changes and no limit is felt")

    def send_again(self) -> None:
        """What has no answer, in its order."""
        for key, sent in list(self._history.sent.items()):
            if key[0] == self._client and key not in self._history.acks:
                self._do(key[1], msgspec.msgpack.decode(sent.operation))

    def _do(self, seq: int, operation: dict[str, Any]) -> dict[str, Any] | None:
        history, key = self._history, (self._client, seq)
        history.sent[key] = Sent(*key, msgspec.msgpack.encode(operation))
        self._next = max(self._next, seq + 1)
        try:
            self._wire.send(request(seq, operation))
            answer = self._wire.answer(seq)
        except (AssertionError, OSError):
            return None
        if answer["t"] == "ok":
            result = msgspec.msgpack.encode(answer.get("result"))
            history.acks[key] = Ack(answer["commit_no"], result)
        else:
            history.refusals += 1
            history.codes.add(answer["code"])
            if answer.get("executed", "no") == "no":
                history.refused.add(key)
        return answer
