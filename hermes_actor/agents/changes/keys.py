"""Keys of ciphertexts: what a process encrypts with a key that was replaced is refused.

A change of keys takes two steps. First it asks those with the present key to wait, or it would
find new values for ever; then it replaces every value at once. The ids are a row of ``meta``, whose
lock makes a change of keys and a new ciphertext wait for each other on servers, so that afterwards
no value is left that only the old key opens. The wait is a courtesy: a client that ends it early
only makes the change of keys fail.
"""

from __future__ import annotations

import json
from typing import Any

from hermes_actor.agents import verbs
from hermes_actor.agents.documents import dumps
from hermes_actor.agents.rows import Rows
from hermes_actor.agents.tables import TABLES
from hermes_actor.errors import KeyChanging, KeyReplaced

__all__ = ["check_key", "end_pause", "pause", "replace_key"]

_META, _KEY = TABLES["meta"], {"key": "secrets.keys"}
_KEPT = 100


def _state(rows: Rows) -> dict[str, Any]:
    """Return the ids of keys, and let no other transaction change them."""
    found = verbs.find(rows, _META, None, _KEY, lock=True)
    if found is None:
        verbs.upsert(rows, _META, None, {**_KEY, "value": "{}"}, keep=True)
        found = verbs.find(rows, _META, None, _KEY, lock=True)
    assert found is not None
    try:
        state = json.loads(found["value"])
    except ValueError:
        state = None
    return state if isinstance(state, dict) else {}


def _store(rows: Rows, replaced: list[Any], paused: str | None) -> None:
    state = {"replaced": replaced[-_KEPT:], **({"paused": paused} if paused else {})}
    verbs.upsert(rows, _META, None, {**_KEY, "value": dumps(state)})


def _replaced(state: dict[str, Any]) -> list[Any]:
    found = state.get("replaced")
    return found if isinstance(found, list) else []


def check_key(rows: Rows, key_id: str) -> None:
    """Raise :class:`KeyReplaced` or :class:`KeyChanging` for a key that is not taken now."""
    state = _state(rows)
    if key_id in _replaced(state):
        raise KeyReplaced(
            "the key for secrets was replaced by hermes-actor secrets rekey: nothing was stored;"
            " use the new key"
        )
    if state.get("paused") == key_id:
        raise KeyChanging(
            "the key for secrets is being replaced by hermes-actor secrets rekey: nothing was"
            " stored; try again in a moment"
        )


def pause(rows: Rows, key_id: str) -> None:
    """Have those who encrypt with the key wait."""
    _store(rows, _replaced(_state(rows)), key_id)


def end_pause(rows: Rows) -> None:
    """Take what is encrypted with the key again: it was not replaced."""
    state = _state(rows)
    if "paused" in state:
        _store(rows, _replaced(state), None)


def replace_key(rows: Rows, old: str, new: str | None) -> None:
    """Refuse what is encrypted with the key *old* from now on, and take *new* again."""
    kept = [one for one in _replaced(_state(rows)) if one not in (old, new)]
    _store(rows, kept + ([old] if old != new else []), None)
