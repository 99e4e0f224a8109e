"""Ids that a caller makes, so that an operation that is sent again is the same change."""

from __future__ import annotations

import os
import uuid

__all__ = [
    "attachment_id", "channel_id", "channel_token", "identity_id", "memory_key", "random_id",
    "schedule_id", "user_id",
]  # fmt: skip


def memory_key() -> str:
    """Return a key for a memory without one."""
    return f"mem-{uuid.uuid4().hex[:8]}"


def schedule_id() -> str:
    """Return an id for a schedule."""
    return uuid.uuid4().hex[:8]


def random_id() -> str:
    """Return an id for a sandbox, a policy or an approval."""
    return str(uuid.uuid4())


def channel_id() -> str:
    """Return an id for a channel."""
    return f"chr-{os.urandom(8).hex()}"


def channel_token() -> str:
    """Return a token for a channel."""
    return f"oh_ch_{os.urandom(24).hex()}"


def user_id() -> str:
    """Return an id for a user that an administrator or a token creates."""
    return f"usr-{os.urandom(6).hex()}"


def identity_id() -> str:
    """Return an id for a user that is known by a name on a channel only."""
    return f"u_{os.urandom(8).hex()}"


def attachment_id() -> str:
    """Return an id for an attachment."""
    return f"att_{uuid.uuid4()}"
