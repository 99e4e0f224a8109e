"""Clients that mean harm, or know no better: each function is one visit.

They speak to the socket by hand. A visit raises ``AssertionError`` if the actor treats it in
another way than it promises; whatever else it does to the actor shows in the neighbours' history.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from support.wire import Wire, append, connect, create, frame, hello, insert, request

__all__ = ["VISITS", "Say", "deaf", "silent"]

_MAX_FRAME = 2 * 1024 * 1024


class Say(NamedTuple):
    """The good changes of a visitor, by the kind of the file."""

    create: Callable[[str], dict[str, Any]]
    append: Callable[[str, str], dict[str, Any]]

    @classmethod
    def on(cls, kind: str) -> Say:
        """Return those that a file of *kind* takes."""
        if kind == "plain":
            return cls(lambda session: insert(session, ""), insert)
        return cls(create, append)


Visit = Callable[[Path, random.Random, Say], None]


def half_a_frame(path: Path, rng: random.Random, say: Say) -> None:
    """Leaves in the middle of a frame."""
    with contextlib.closing(Wire(path)) as wire:
        whole = frame(request(1, say.append("nobody", "x" * 500)))
        wire.send(whole[: rng.randrange(1, len(whole))])


def huge_length(path: Path, rng: random.Random, _say: Say) -> None:
    """Announces more than a frame may have, up to four gigabytes."""
    with contextlib.closing(Wire(path)) as wire:
        wire.send(rng.randrange(_MAX_FRAME + 1, 2**32).to_bytes(4, "big"))
        assert wire.until_end() == [], "a frame over the limit is answered"


def deep_nesting(path: Path, rng: random.Random, _say: Say) -> None:
    with contextlib.closing(Wire(path)) as wire:
        body = rng.choice([b"\x91", b"\x81\xa1x"]) * rng.choice([100, 10_000, 500_000])
        wire.send(len(body).to_bytes(4, "big") + body)
        assert wire.until_end() == [], "nested nonsense is answered"


def nested_operation(path: Path, _rng: random.Random, _say: Say) -> None:
    """The envelope is good, so the connection goes on, and only the operation is refused."""
    with contextlib.closing(Wire(path)) as wire:
        body = frame(request(1, {"op": "x"}))[4:]
        at = body.rindex(b"\x81\xa2op\xa1x")
        bad = body[:at] + b"\x91" * 5000 + b"\xc0"
        wire.send(len(bad).to_bytes(4, "big") + bad)
        answers = wire.until_end() if wire.receive() is None else []
        assert all(answer["t"] != "ok" for answer in answers)


def wrong_magic(path: Path, rng: random.Random, _say: Say) -> None:
    with contextlib.closing(Wire(path, greet=False)) as wire:
        wire.send(hello(wire.client_id, magic=rng.choice(["http", "", "hermes"])))
        assert all(answer["t"] == "reject" for answer in wire.until_end())


def other_protocol(path: Path, _rng: random.Random, _say: Say) -> None:
    with contextlib.closing(Wire(path, greet=False)) as wire:
        wire.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert wire.until_end() == []


def newer_protocol(path: Path, _rng: random.Random, _say: Say) -> None:
    with contextlib.closing(Wire(path, greet=False)) as wire:
        wire.send(hello(wire.client_id, oldest=77, newest=99))
        assert [answer["t"] for answer in wire.until_end()] == ["reject"]


def unknown_tag(path: Path, rng: random.Random, _say: Say) -> None:
    with contextlib.closing(Wire(path)) as wire:
        wire.send({"t": rng.choice(["frobnicate", "", "Hello"]), "ask": -1})
        wire.until_end()


def unknown_operation(path: Path, rng: random.Random, say: Say) -> None:
    """Answered and survived."""
    with contextlib.closing(Wire(path)) as wire:
        answer = wire.do(1, {"op": rng.choice(["session.explode", "", "message.append "])})
        assert (answer["t"], answer.get("executed", "no")) == ("failed", "no")
        assert wire.do(2, say.create("a visitor"))["t"] == "ok"


def leaves_without_a_word(path: Path, rng: random.Random, say: Say) -> None:
    """Gone between its request and the answer; what it sent is applied once (R4)."""
    client = rng.randbytes(16)
    name = f"gone {client.hex()}"
    with contextlib.closing(Wire(path, client)) as wire:
        after = wire.welcome["commit_no"] if wire.welcome else 0
        wire.send(
            request(1, say.create(name), after=after),
            request(2, say.append(name, "x"), after=after),
        )
        if rng.random() < 0.5:
            time.sleep(rng.random() * 0.01)
    with contextlib.closing(Wire(path, client)) as again:
        assert again.do(1, say.create(name), after=after)["t"] == "ok"
        first = again.do(2, say.append(name, "x"), after=after)
        assert first["t"] == "ok", first
        assert again.do(2, say.append(name, "x"), after=after) == first, (
            "answered otherwise the second time"
        )


def number_used_twice(path: Path, rng: random.Random, say: Say) -> None:
    """The same number for something else is refused, and nothing of it is applied (R5)."""
    name = f"twice {rng.randbytes(8).hex()}"
    with contextlib.closing(Wire(path)) as wire:
        assert wire.do(1, say.create(name))["t"] == "ok"
        assert wire.do(2, say.append(name, "x"))["t"] == "ok"
        other = wire.do(2, say.append(name, "y"))
        assert (other["t"], other.get("executed", "no")) == ("failed", "no"), other


def many_at_once(path: Path, rng: random.Random, say: Say) -> None:
    """One client on many connections: one application, equal answers (R6)."""
    client = rng.randbytes(16)
    name = f"many {client.hex()}"
    with contextlib.closing(Wire(path, client)) as wire:
        after = wire.welcome["commit_no"] if wire.welcome else 0
        assert wire.do(1, say.create(name), after=after)["t"] == "ok"
    answers: list[tuple[int, object]] = []

    def one() -> None:
        # A newer connection of the same client ends this one, which then knows nothing.
        with (
            contextlib.suppress(AssertionError, OSError),
            contextlib.closing(Wire(path, client)) as wire,
        ):
            answer = wire.do(2, say.append(name, "x"), after=after)
            if answer["t"] == "ok":
                answers.append((answer["commit_no"], answer["result"]))

    threads = [threading.Thread(target=one) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with contextlib.closing(Wire(path, client)) as wire:
        answer = wire.do(2, say.append(name, "x"), after=after)
        answers.append((answer["commit_no"], answer["result"]))
    assert len(set(answers)) == 1, f"one change was answered {answers}"


def brings_descriptors(path: Path, _rng: random.Random, _say: Say) -> None:
    """Passes open files along; they must not stay open in the actor."""
    with contextlib.closing(Wire(path)) as wire, open("/dev/null") as null:
        data = frame({"t": "status", "ask": -1})
        socket.send_fds(wire.sock, [data], [null.fileno()] * 5)
        assert "status" in wire.answer(-1)


def crowd(path: Path, _rng: random.Random, _say: Say) -> None:
    """A hundred connections at once, most of which say nothing."""
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(contextlib.closing(connect(path)))
        with contextlib.closing(Wire(path)) as wire:
            assert wire.status().pid


def byte_by_byte(path: Path, _rng: random.Random, _say: Say) -> None:
    """Slow, and in order: served like any other."""
    with contextlib.closing(Wire(path)) as wire:
        for byte in frame({"t": "status", "ask": -1}):
            wire.sock.sendall(bytes([byte]))
            time.sleep(0.0005)
        assert "status" in wire.answer(-1)


VISITS: list[Visit] = [
    half_a_frame, huge_length, deep_nesting, nested_operation, wrong_magic, other_protocol,
    newer_protocol, unknown_tag, unknown_operation, leaves_without_a_word, number_used_twice,
    many_at_once, brings_descriptors, crowd, byte_by_byte,
]  # fmt: skip


# --- visitors that stay --------------------------------------------------------------------------


def silent(path: Path) -> socket.socket:
    """Begins a large frame and says no more."""
    sock = connect(path)
    sock.sendall(frame(hello(os.urandom(16))) + (1_000_000).to_bytes(4, "big"))
    return sock


def deaf(path: Path) -> socket.socket:
    """Asks for more than fits and never reads."""
    sock = connect(path)
    sock.sendall(frame(hello(os.urandom(16))))
    sock.setblocking(False)
    ask = frame({"t": "status", "ask": -1})
    with contextlib.suppress(OSError):
        for _ in range(2000):
            sock.send(ask)
    return sock
