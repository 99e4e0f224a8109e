"""Commands inside a chat: ``/title``, ``/new``, ``/reset``, ``/resume``, ``/sessions``.

What a chat may see is decided here: its own sessions, and in a private chat those of the same user
on the same platform. A session of another person answers like one that does not exist.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from hermes_actor.errors import TitleInUse, TurnBusy
from hermes_actor.gateway import words
from hermes_actor.gateway.keys import is_shared_multi_user_session
from hermes_actor.gateway.sources import SessionSource
from hermes_actor.gateway.store import SessionStore
from hermes_actor.store import queries

__all__ = ["Reply", "handle"]

_LISTED = 10
_SEEN = 1000
"""Sessions of a chat among which a name is looked for."""


class Reply(NamedTuple):
    """The answer to a command, and whether the chat is in another session now."""

    text: str
    changed: bool = False


def handle(store: SessionStore, source: SessionSource, text: str) -> Reply | None:
    """Carry out a command of a chat; ``None`` if *text* is not one of these."""
    command, _, rest = text.strip().partition(" ")
    rest = rest.strip()
    if command in store.config.reset_triggers:
        return _reset(store, source, rest)
    known = {"/title": _title, "/resume": _resume, "/sessions": _sessions}
    function = known.get(command)
    return None if function is None else function(store, source, rest)


def _reset(store: SessionStore, source: SessionSource, title: str) -> Reply:
    key = store.session_key(source)
    if _is_busy(store, key):
        return Reply(words.BUSY)
    entry = store.reset_session(key) or store.get_or_create_session(source)
    if not title:
        return Reply(words.NEW_SESSION, changed=True)
    try:
        store.db.set_session_title(entry.session_id, title)
    except (TitleInUse, ValueError) as error:
        return Reply(words.TITLE_REFUSED.format(reason=error), changed=True)
    shown = store.db.get_session_title(entry.session_id)
    return Reply(words.TITLE_SET.format(id=entry.session_id, title=shown), changed=True)


def _title(store: SessionStore, source: SessionSource, title: str) -> Reply:
    session_id = store.get_or_create_session(source).session_id
    if title:
        try:
            store.db.move_session_title(session_id, title)
        except (TitleInUse, ValueError) as error:
            return Reply(words.TITLE_TAKEN.format(reason=error))
    shown = store.db.get_session_title(session_id)
    text = words.TITLE_SET if shown else words.TITLE_MISSING
    return Reply(text.format(id=session_id, title=shown))


def _resume(store: SessionStore, source: SessionSource, given: str) -> Reply:
    if not given:
        return _sessions(store, source, "")
    entry = store.get_or_create_session(source)
    target = _find(store, source, given)
    if target is None:
        return Reply(words.NO_SUCH_SESSION.format(given=given))
    if target == entry.session_id:
        return Reply(words.SAME_SESSION.format(id=target))
    if _is_busy(store, entry.session_key):
        return Reply(words.BUSY)
    try:
        store.switch_session(entry.session_key, target)
    except TurnBusy:
        return Reply(words.BUSY)
    title = store.db.get_session_title(target) or "no title"
    count = store.db.message_count(target)
    return Reply(words.RESUMED.format(id=target, title=title, count=count), changed=True)


def _is_busy(store: SessionStore, key: str) -> bool:
    """Return True while the chat is being answered: its session must not end under the answer."""
    state = store.state(key)
    return state is not None and store.has_turn(state)


def _sessions(store: SessionStore, source: SessionSource, given: str) -> Reply:
    count = _number(given) or _LISTED
    rows = [_described(store, one) for one in _visible(store, source)[: max(1, count)]]
    if not rows:
        return Reply(words.NO_SESSIONS)
    return Reply("\n".join(f"{place}. {row}" for place, row in enumerate(rows, 1)))


def _number(given: str) -> int | None:
    # Nine digits: longer ones are ids, and int() refuses thousands. `²` is a digit, and no number.
    return int(given) if given.isdecimal() and len(given) <= 9 else None


def _described(store: SessionStore, session_id: str) -> str:
    row: dict[str, Any] = store.db.get_session(session_id) or {}
    return f"{row.get('title') or session_id} ({row.get('message_count') or 0} messages)"


def _visible(store: SessionStore, source: SessionSource) -> list[str]:
    """Return the sessions that this chat may resume, latest first."""
    config, db = store.config, store.db
    if config.resume_scope != "peer":
        of = source.platform if config.resume_scope == "source" else None
        return [row["id"] for row in db.list_sessions_rich(source=of, limit=_SEEN)]
    shared = is_shared_multi_user_session(
        source, config.group_sessions_per_user, config.thread_sessions_per_user
    )
    # In a shared room only what was said there: private chats of a member are not the room's.
    user = None if shared or source.user_id is None else str(source.user_id)
    found = db._query(
        queries.sessions_of_chat, source.platform, store.session_key(source), user, _SEEN
    )
    tips = (db.get_compression_tip(one) or one for one in found)
    return list(dict.fromkeys(tips))


def _find(store: SessionStore, source: SessionSource, given: str) -> str | None:
    """Return the session that a number, an id, a prefix or a title means in this chat."""
    mine = _visible(store, source)
    place = _number(given)
    if place is not None and 1 <= place <= len(mine):
        return mine[place - 1]
    if given in mine:
        return given
    titled = store.db.resolve_session_by_title(given)
    if titled in mine:
        return titled
    begin = [one for one in mine if one.startswith(given)]
    return begin[0] if len(begin) == 1 else None
