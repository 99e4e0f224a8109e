"""Titles that are set before their session exists, and automatic titles."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hermes_actor.config import load
from hermes_actor.errors import HermesActorError, TitleInUse
from hermes_actor.paths import default_db_path
from hermes_actor.settings import TITLES_ENABLED
from hermes_actor.store.sessions.title_text import sanitize_title
from hermes_actor.tools.sanitize import without_reasoning

if TYPE_CHECKING:
    from hermes_actor.session_db import SessionDB

__all__ = [
    "PendingTitle",
    "auto_title",
    "default_title",
    "may_auto_title",
    "post_process",
]

TitleFunction = Callable[[str, str], "str | None"]
FailureFunction = Callable[[str, Exception], None]

_TITLED_WITHIN = 2  # user messages: later ones say little about what the talk is about
_EXCERPT = 500
_MAX_LENGTH = 80
_WORDS = 7


class PendingTitle:
    """The title of a session that does not exist yet, kept in memory by one process.

    For a title that survives the process see ``SessionDB.queue_title``.
    """

    def __init__(self) -> None:
        self._title: str | None = None

    def set(self, title: str) -> str | None:
        """Clean and keep a title; return it, ``None`` if nothing is left after cleaning.

        Raises ``ValueError`` if it is too long.
        """
        self._title = sanitize_title(title)
        return self._title

    def get(self) -> str | None:
        """Return the title that is kept, or ``None``."""
        return self._title

    def clear(self) -> None:
        """Forget the title."""
        self._title = None

    def apply(self, db: SessionDB, session_id: str) -> Literal["applied", "kept", "refused"]:
        """Give the title to the session, which must exist by now.

        ``kept``: it could not be stored, try again later. ``refused``: another session has this
        title, or the session has got another one.
        """
        if self._title is None:
            return "refused"
        try:
            current = db.get_session_title(session_id)
            if current is not None and current != self._title:
                self.clear()
                return "refused"
            if not db.set_session_title(session_id, self._title):
                return "kept"
        except TitleInUse:
            self.clear()
            return "refused"
        except HermesActorError:
            return "kept"
        self.clear()
        return "applied"


# --- automatic titles ------------------------------------------------------------------------


def may_auto_title(history: Iterable[Mapping[str, Any]]) -> bool:
    """Return True if the conversation is young enough to be named after its beginning."""
    asked = sum(1 for message in history if message.get("role") == "user")
    return asked <= _TITLED_WITHIN


def post_process(generated: str | None) -> str | None:
    """Return the title in a model's answer, at most 80 characters; ``None`` if it is empty."""
    text = without_reasoning(generated or "").strip().strip("\"'")
    text = re.sub(r"^title:", "", text, flags=re.IGNORECASE).strip()
    if len(text) > _MAX_LENGTH:
        text = text[: _MAX_LENGTH - 3] + "..."
    return text or None


def default_title(user: str, assistant: str = "") -> str | None:
    """Return the first words of the question, or ``None``. Deterministic; needs no model."""
    del assistant
    text = re.sub(r"```.*?(?:```|\Z)", "\n", user, flags=re.DOTALL)
    text = re.sub(r"\w+://\S+", " ", text)
    for line in text.splitlines():
        words = re.sub(r"[*_`#>|~\[\](){}<]+", " ", line).split()
        if any(re.search(r"\w", word) for word in words):
            return " ".join(words[:_WORDS]).strip(" \t.,;:!?-–—…\"'") or None
    return None


def _is_wanted(db: SessionDB) -> bool:
    """Return True if the settings of the home leave automatic titles on."""
    place = getattr(db, "db_path", None)  # a store on a server has none
    home = Path(place).parent if place else default_db_path().parent
    return load(home, "auxiliary").read(TITLES_ENABLED)


def auto_title(
    db: SessionDB,
    session_id: str,
    history: Iterable[Mapping[str, Any]],
    user: str,
    assistant: str,
    *,
    title_fn: TitleFunction = default_title,
    on_failure: FailureFunction = lambda _task, _error: None,
) -> threading.Thread | None:
    """Name a session after its first exchange, in a thread of its own.

    Call it after a successful turn. Nothing happens in a conversation of more than two questions,
    without text, or where the setting auxiliary.title_generation.enabled is false. A title that
    a user sets meanwhile stays; one that is taken gets the next number of its lineage. Failures
    go to *on_failure*, never to the caller. Returns the thread.
    """
    if not (session_id and user.strip() and assistant.strip() and may_auto_title(history)):
        return None

    def work() -> None:
        try:
            if _is_wanted(db) and db.get_session_title(session_id) is None:
                title = post_process(title_fn(user[:_EXCERPT], assistant[:_EXCERPT]))
                if title is not None:
                    db.set_default_title(session_id, title)
        except Exception as error:
            on_failure("title_generation", error)

    thread = threading.Thread(target=work, name="auto-title", daemon=True)
    thread.start()
    return thread
