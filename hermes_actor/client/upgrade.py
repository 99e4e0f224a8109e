"""A client that is newer than its actor asks for a hand-off to its own build.

No call waits for it: the one that noticed goes on at once, and if the new build cannot take over,
the old actor serves on. The actor decides whether to try (never to an older build, each build at
most once a minute), so however many versions run side by side there is no loop.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import hermes_protocol.messages as wire
from hermes_actor._version import __version__
from hermes_actor.build import is_newer
from hermes_actor.config import load
from hermes_actor.errors import BadConfig
from hermes_actor.settings import ACTOR_UPGRADE

if TYPE_CHECKING:
    from hermes_actor.paths import StorePaths
    from hermes_protocol.client import ClientProtocol

__all__ = ["handoff_request"]


def handoff_request(paths: StorePaths, protocol: ClientProtocol) -> bytes:
    """Return the frame after Welcome that asks for a hand-off; empty if there is no reason to.

    ``actor.upgrade``: ``auto`` (the default) asks; with ``ask`` and ``never`` people run
    ``hermes-actor handoff`` when they want to.
    """
    assert protocol.welcome is not None
    # First: it is the cheapest check, and nearly always the last.
    if not is_newer(__version__, than=protocol.welcome.build):
        return b""
    if not _may_ask(paths) or _found_through_environment():
        return b""
    # *wait* also says who asks: without it the actor applies the rules for programs.
    _, data = protocol.ask(
        lambda n: wire.Handoff(ask=n, python=sys.executable, build=__version__, wait=False)
    )
    return data


def _may_ask(paths: StorePaths) -> bool:
    """Return True if the settings allow it. If they cannot be read, people decide."""
    with contextlib.suppress(BadConfig):
        return load(paths.db.parent, "actor").read(ACTOR_UPGRADE) == "auto"
    return False


def _found_through_environment() -> bool:
    """Return True if a successor, with the environment of the actor, would not find this code."""
    package = str(Path(__file__).parents[2])
    return package in os.environ.get("PYTHONPATH", "").split(os.pathsep)
