"""Notifications of changes, for subscribers."""

from __future__ import annotations

from typing import Any

from hermes_protocol.messages import Changed
from hermes_protocol.operations import Operation

__all__ = ["change_of"]

_ID_LENGTH = 1000


def change_of(operation: Operation[Any], commit_no: int) -> Changed:
    """Return the notification of an applied operation."""
    tag = str(operation.__struct_config__.tag)
    about = getattr(operation, "session_id", None)
    if about is None and tag.startswith(("session.", "handoff.")):
        about = getattr(operation, "id", None) or getattr(operation, "new", None)
    # Thousands of changes are kept. An id that is longer than any real one is left out.
    session_id = about if isinstance(about, str) and len(about) <= _ID_LENGTH else None
    return Changed(commit_no=commit_no, op=tag, session_id=session_id)
