"""Features that both ends of a connection name in Hello and Welcome, such as the kind of the file.

A client that needs a kind says so in its Hello and is rejected where the file is of another one.
An actor says in its Welcome what it serves. Either may leave it out: a client without the feature
takes any kind, and an actor without it is of a build that knew only files with sessions.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "AGENTS",
    "INTERRUPT",
    "KINDS",
    "LAST_WITH_COMMIT",
    "PLAIN",
    "SESSIONS",
    "kind_feature",
    "kind_in",
    "needed_features",
]

SESSIONS = "sessions"
"""Files with sessions, messages and their full-text indexes."""

PLAIN = "plain"
"""Files without a schema of ours. What runs on one runs on a file of any kind."""

AGENTS = "agents"
"""Files of an agent store: many agents, each with a view of its own."""

LAST_WITH_COMMIT = "lease.commit.last"
"""The commit of a lease may bring the last statements."""

INTERRUPT = "interrupt"
"""A client may end a statement of its own that runs."""

KINDS = (SESSIONS, PLAIN, AGENTS)

_PREFIX = "kind="


def kind_feature(kind: str) -> str:
    """Return the feature that names *kind*."""
    return _PREFIX + kind


def needed_features(kind: str) -> list[str]:
    """Return what the Hello of a client names whose operations are those of *kind*."""
    return [] if kind == PLAIN else [kind_feature(kind)]


def kind_in(features: Sequence[str]) -> str | None:
    """Return the kind that *features* name; ``None`` if they name none."""
    for feature in features:
        if feature.startswith(_PREFIX):
            return feature.removeprefix(_PREFIX)
    return None
