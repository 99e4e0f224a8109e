"""Choice of the session that a user wants to resume."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

from hermes_actor.store import queries

if TYPE_CHECKING:
    from hermes_actor.client.interfaces import ReaderPort

__all__ = ["Ambiguous", "Target", "latest", "resolve", "split_words", "target"]

_CANDIDATES = 5


class Target(NamedTuple):
    """Target of a resume. *asked* is the session that was meant, before its continuations."""

    asked: str
    id: str


class Ambiguous(LookupError):
    """Several ids have the given prefix; *candidates* are some of them."""

    def __init__(self, given: str, candidates: list[str]) -> None:
        super().__init__(f"several sessions begin with {given!r}")
        self.candidates = candidates


def split_words(words: Sequence[str], commands: Collection[str] = ()) -> tuple[str, list[str]]:
    """Return a name that was typed without quotes, and the words after it.

    The name ends at the next flag or at the name of a command.
    """
    for end, word in enumerate(words):
        if word.startswith("-") or word in commands:
            return " ".join(words[:end]), list(words[end:])
    return " ".join(words), []


def latest(store: ReaderPort, sources: Sequence[str]) -> str | None:
    """Return the latest active session of the first source that has one, or ``None``."""
    for source in sources:
        if found := store.query(queries.ids_by_activity, source, 1):
            return found[0]
    return None


def resolve(store: ReaderPort, given: str) -> str | None:
    """Return the session of an id, a title, or a prefix of one id; ``None`` if there is none.

    Raises :class:`Ambiguous` if several ids have the prefix.
    """
    if not given:
        return None
    if store.query(queries.get_session, given) is not None:
        return given
    titled = store.query(queries.resolve_title, given)
    if titled is not None:
        return titled
    begin = store.query(queries.ids_with_prefix, given, _CANDIDATES)
    if len(begin) > 1:
        raise Ambiguous(given, begin)
    return begin[0] if begin else None


def target(store: ReaderPort, session_id: str) -> Target:
    """Return the session to resume: the tip of the chain, or one below it that has messages."""
    tip = store.query(queries.compression_tip, session_id) or session_id
    return Target(session_id, store.query(queries.resume_target, tip))
