"""A home under a clock that stands still, and the commands typed in it."""

import contextlib
import io
import json
import sys
from typing import Any, NamedTuple

from hermes_actor import SessionDB
from hermes_actor.cli import run
from support.actors import end_actors

NOW = 1_772_445_600.0  # Monday, 2026-03-02 10:00:00 UTC
DAY = 86_400.0


class Result(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def lines(self):
        return self.out.splitlines()

    @property
    def json(self):
        return json.loads(self.out)


class _Terminal(io.StringIO):
    """Standard input with a person in front of it."""

    def isatty(self):
        return True


class Home:
    """A home, and the commands typed in it."""

    def __init__(self, path, clock, capsys, monkeypatch):
        self.path = path
        self.db_path = path / "state.db"
        self.clock = clock
        self._capsys = capsys
        self._monkeypatch = monkeypatch

    def __call__(self, *arguments, stdin="", answer=None):
        """Type a command; *answer* is given at a terminal, *stdin* comes from elsewhere."""
        data = stdin if isinstance(stdin, bytes) else stdin.encode()
        if answer is None:
            given: Any = io.TextIOWrapper(io.BytesIO(data), "utf-8")
        else:
            given = _Terminal(answer) if isinstance(answer, str) else answer
        self._monkeypatch.setattr(sys, "stdin", given)
        code = run([str(argument) for argument in arguments])
        out, err = self._capsys.readouterr()
        # A slow machine makes a command say that it waits; nothing of that is the result.
        told = [line for line in err.splitlines(True) if not line.startswith("waiting: ")]
        return Result(code, out, "".join(told))

    @contextlib.contextmanager
    def store(self):
        """The store, written by a writer of this process."""
        # The actor of an earlier command must be gone before this process can own the file.
        end_actors(self.db_path)
        db = SessionDB(self.db_path, mode="embedded")
        try:
            yield db
        finally:
            db.close()
            self.clock.at(NOW)

    def add(self, session_id, *texts, started=0.0, ended=None, reason="cli_close", title=None,
            source="cli", parent=None, model=None, spacing=1.0, tokens=None):  # fmt: skip
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

    def read(self, function):
        with self.store() as db:
            return function(db)

    def row(self, session_id):
        return self.read(lambda db: db.get_session(session_id))

    def ids(self):
        return self.read(lambda db: {row["id"] for row in db.search_sessions(limit=1000)})


def said(role, content, **more):
    """A message."""
    return {"role": role, "content": content, **more}


def called(*names, content=None):
    """An answer that calls tools."""
    calls = [{"id": f"c{n}", "type": "function", "function": {"name": name, "arguments": "{}"}}
             for n, name in enumerate(names)]  # fmt: skip
    return {"role": "assistant", "content": content, "tool_calls": calls}
