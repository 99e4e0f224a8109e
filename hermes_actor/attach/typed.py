"""The typed tier: releases of ``hermes_state`` whose class ours stands in for."""

from __future__ import annotations

import types
from collections.abc import Sequence

from hermes_actor.paths import default_home

__all__ = ["TYPED_FINGERPRINTS", "take_over"]

TYPED_FINGERPRINTS = {
    "09f72aed6a82fa73e071469a5adf520743c459c98255b7cc5fb68c12a744f1d7": "0.14.0",
}
"""SHA-256 of ``hermes_state.py``, and the release that it belongs to."""


def take_over(module: types.ModuleType, homes: Sequence[str]) -> None:
    """Give *module* the names of :mod:`hermes_actor.hermes_state`, if its home is attached.

    Its own names stay where ours has none; its class stays under ``_AttachedSessionDB``.
    """
    present = default_home().resolve()
    if not any(present.is_relative_to(home) for home in homes):
        return
    from hermes_actor import hermes_state

    module._AttachedSessionDB = vars(module).get("SessionDB")  # type: ignore[attr-defined]
    # sqlite3 stays the bound one: it decides by path.
    vars(module).update(
        {name: getattr(hermes_state, name) for name in hermes_state.__all__ if name != "sqlite3"}
    )
