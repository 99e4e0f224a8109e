"""A home under a clock that stands still, and the commands typed in it."""

import contextlib
import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TextIO, TypeVar

import pytest

from hermes_actor import SessionDB
from hermes_actor.cli import run
from support.actors import end_actors
from support.clock import Clock

NOW = 1_772_445_600.0  # Monday, 2026-03-02 10:00:00 UTC
DAY = 86_400.0

Message = dict[str, Any]
T = TypeVar("T")


class Result(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class _Terminal(io.StringIO):
    """Standard input with a person in front of it."""

    def isatty(self) -> bool:
        return True


class Home:
    """A home, and the commands typed in it."""

    def __init__(
        self,
        path: Path,
        clock: Clock,
        capsys: pytest.CaptureFixture[bytes],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        self.path = path
        self.db_path = path / "state.db"
        self.clock = clock
        self._capsys = capsys
        self._monkeypatch = monkeypatch

    def __call__(
        self, *arguments: object, stdin: str | bytes = "", answer: str | TextIO | None = None
    ) -> Result:
        """Type a command; *answer* is given at a terminal, *stdin* comes from elsewhere."""
        data = stdin if isinstance(stdin, bytes) else stdin.encode()
        if answer is None:
            given: Any = io.TextIOWrapper(io.BytesIO(data), "utf-8")
        else:
            given = _Terminal(answer) if isinstance(answer, str) else answer
        self._monkeypatch.setattr(sys, "stdin", given)
        code = run([str(argument) for argument in arguments])
        # As bytes: `ps` may name a file of another test whose name is not UTF-8.
        out, err = (os.fsdecode(text) for text in self._capsys.readouterr())
        # A slow machine makes a command say that it waits; nothing of that is the result.
        said = [line for line in err.splitlines(True) if not line.startswith("waiting: ")]
        return Result(code, out, "".join(said))

    @contextlib.contextmanager
    def store(self) -> Iterator[SessionDB]:
        """The store, written by a writer of this process."""
        # The actor of an earlier command must be gone before this process can own the file.
        end_actors(self.db_path)
        db = SessionDB(self.db_path, mode="embedded")
        try:
            yield db
        finally:
            db.close()
            self.clock.at(NOW)

    def add(
        self,
        session_id: str,
        *texts: str | Message,
        started: float = 0.0,
        ended: float | None = None,
        reason: str = "cli_close",
        title: str | None = None,
        source: str = "cli",
        parent: str | None = None,
        model: str | None = None,
        spacing: float = 1.0,
        tokens: dict[str, Any] | None = None,
    ) -> str:
        """A session: its start and end in seconds before now, its messages a second apart."""
        with self.store() as db:
            self.clock.at(NOW - started)
            db.create_session(session_id, source, parent_session_id=parent, model=model)
            for text in texts:
                message = {"role": "user", "content": text} if isinstance(text, str) else text
                db.append_message(session_id, **message)
                self.clock.now += spacing
            if tokens:
                db.update_token_counts(session_id, **tokens)
            if ended is not None:
                self.clock.at(NOW - ended)
                db.end_session(session_id, reason)
            if title:
                db.set_session_title(session_id, title)
        return session_id

    def read(self, function: Callable[[SessionDB], T]) -> T:
        with self.store() as db:
            return function(db)

    def row(self, session_id: str) -> dict[str, Any] | None:
        return self.read(lambda db: db.get_session(session_id))

    def ids(self) -> set[str]:
        return self.read(lambda db: {row["id"] for row in db.search_sessions(limit=1000)})


def said(role: str, content: Any, **more: Any) -> Message:
    """A message."""
    return {"role": role, "content": content, **more}


def called(*names: str, content: str | None = None) -> Message:
    """An answer that calls tools."""
    calls = [{"id": f"c{n}", "type": "function", "function": {"name": name, "arguments": "{}"}}
             for n, name in enumerate(names)]  # fmt: skip
    return {"role": "assistant", "content": content, "tool_calls": calls}
