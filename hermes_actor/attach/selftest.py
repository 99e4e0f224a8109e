"""Differential self-test: the same calls on the class of a release, through us and on its own.

It runs in the interpreter of the program, on a home that is made for it. A release that this build
has never seen is attached only if both ways answer alike.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["answers"]

_TIME = re.compile(r"\b1[789]\d{8}(?:\.\d+)?\b")
_TEXTS = ("What is red?", "天気はどう", "x" * 3000, "quote ' and ü")

Call = tuple[str, tuple[Any, ...], dict[str, Any]]


def answers(home: Path) -> list[list[Any]]:
    """Return the name and the answer of each call; a missing method is an answer, too."""
    import hermes_state  # type: ignore[import-not-found]

    db = hermes_state.SessionDB(db_path=home / "state.db")
    seen = []
    for name, arguments, named in _calls():
        method = getattr(db, name, None)
        try:
            answer = "no such method" if method is None else method(*arguments, **named)
        except Exception as error:
            answer = _class_of(error)
        seen.append([name, _comparable(answer, home)])
    db.close()
    return seen


def _calls() -> Iterator[Call]:
    def call(name: str, *arguments: Any, **named: Any) -> Call:
        return name, arguments, named

    for session in ("s1", "s2", "s3"):
        yield call("create_session", session, "cli", model="m")
        for text in _TEXTS:
            yield call("append_message", session, "user", text)
        yield call("append_message", session, "assistant", "An answer")
    yield call("append_message", "no session", "user", "lost")
    yield call("set_session_title", "s1", "A title")
    yield call("set_session_title", "s2", "A title")
    yield call("get_session_title", "s1")
    yield call("get_next_title_in_lineage", "A title")
    yield call("resolve_session_by_title", "A title")
    yield call("resolve_session_id", "s")
    yield call("update_token_counts", "s1", input_tokens=5, output_tokens=7)
    for query in ("red", "天気", "red OR answer", "nothing"):
        yield call("search_messages", query)
    yield call("replace_messages", "s2", [{"role": "user", "content": "only this"}])
    yield call("clear_messages", "s3")
    yield call("end_session", "s1", "user_exit")
    yield call("reopen_session", "s1")
    yield call("set_meta", "key", "value")
    yield call("get_meta", "key")
    yield call("delete_session", "s3")
    yield call("delete_session", "s3")
    yield call("list_sessions_rich")
    yield call("search_sessions")
    yield call("session_count")
    yield call("message_count")
    yield call("get_messages", "s1")
    yield call("get_messages_as_conversation", "s1")
    yield call("export_session", "s2")
    yield call("export_all")


def _class_of(error: Exception) -> str:
    """Return the class that programs know: errors of ours are subclasses."""
    known = ("sqlite3", "builtins")
    return next(cls.__name__ for cls in type(error).__mro__ if cls.__module__ in known)


def _comparable(answer: Any, home: Path) -> Any:
    """Return *answer* as JSON has it, without what differs between any two runs."""
    text = json.dumps(answer, default=repr, sort_keys=True).replace(str(home), "HOME")
    return json.loads(_TIME.sub("0", text))
