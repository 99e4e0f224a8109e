"""The typed tier: releases of ``hermes_state`` whose class ours stands in for."""

from __future__ import annotations

import logging
import types
from collections.abc import Sequence
from pathlib import Path

from hermes_actor.paths import default_home

__all__ = ["ROUTED_FINGERPRINTS", "TYPED_FINGERPRINTS", "route_chats", "take_over"]

TYPED_FINGERPRINTS = {
    "09f72aed6a82fa73e071469a5adf520743c459c98255b7cc5fb68c12a744f1d7": "0.14.0",
}
"""SHA-256 of ``hermes_state.py``, and the release that it belongs to."""

ROUTED_FINGERPRINTS = {
    "eb455f4ad1df5f21447dfec114aabdc3b9079e0fdb399cb9060c1bfa5b8c9379": "0.14.0",
    "b4498ebb68ec42d7e8a27986fa1d4c76f050b79b474bca7820012b233a44dafa": "0.15.2",
    "4c013bc5c8553696972de5ab98c488f5ec42f3712e54f8afc4f552ec279d1ac3": "0.16.0",
    "dba1893fd529b921a1d0c57d699aab12b3a094d5e926a0ccb24379d8de54c24f": "0.17.0",
    "c8e109c628d88a77970be81fe2e53c81beea4b29b8650c539aa2527d03a5aa19": "0.18.2",
    "5ea0f1bbdcffd2078f5ff9e80e71eb7dce746b7bddfded6adc32d2ddb344544c": "0.19.0",
}
"""SHA-256 of ``gateway/session.py`` whose names and signatures the subclass is written for."""


def route_chats(module: types.ModuleType, digest: str, homes: Sequence[str]) -> None:
    """Keep the chats of *module*, the host's ``gateway.session``, in our store, if asked for.

    Its class stays under ``_AttachedSessionStore``.
    """
    present = default_home().resolve()
    if not _is_in(present, homes):
        return
    from hermes_actor.config import load
    from hermes_actor.settings import ATTACH_CHATS

    if load(present, ATTACH_CHATS.section).read(ATTACH_CHATS) != "routes":
        return
    if digest not in ROUTED_FINGERPRINTS:
        logging.getLogger("hermes_actor.gateway").warning(
            "attach.chats is left out, the gateway keeps its own index: this release is not among"
            " %s",
            ", ".join(ROUTED_FINGERPRINTS.values()),
        )
        return
    from hermes_actor.gateway.host_store import routed_store

    host = module.SessionStore
    module.SessionStore = routed_store(module)  # type: ignore[attr-defined]
    module._AttachedSessionStore = host  # type: ignore[attr-defined]


def _is_in(home: Path, homes: Sequence[str]) -> bool:
    return any(home.is_relative_to(one) for one in homes)


def take_over(module: types.ModuleType, homes: Sequence[str]) -> None:
    """Give *module* the names of :mod:`hermes_actor.hermes_state`, if its home is attached.

    Its own names stay where ours has none; its class stays under ``_AttachedSessionDB``.
    """
    present = default_home().resolve()
    if not _is_in(present, homes):
        return
    from hermes_actor import hermes_state

    module._AttachedSessionDB = vars(module).get("SessionDB")  # type: ignore[attr-defined]
    # sqlite3 stays the bound one: it decides by path.
    vars(module).update(
        {name: getattr(hermes_state, name) for name in hermes_state.__all__ if name != "sqlite3"}
    )
