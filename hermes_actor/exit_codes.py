"""Exit codes: what a script or a service manager can tell from the end of a process."""

from __future__ import annotations

__all__ = [
    "ALREADY_RUNNING", "BROKEN", "FENCED", "FILES_REPLACED", "FSYNC_FAILED", "INTERRUPTED",
    "NOT_RUNNING", "NOT_SERVING", "OK", "REFUSED", "USAGE",
]  # fmt: skip

OK = 0
REFUSED = 1
"""The command understood and could not do it, or was declined."""
USAGE = 2
"""Wrong usage, which is click's code; a question that has no terminal to be asked at."""

NOT_RUNNING = 3
"""There is no actor."""
ALREADY_RUNNING = 4
"""Another actor owns the store."""
NOT_SERVING = 5
"""An actor runs and does not serve yet, or any more."""
BROKEN = 6
"""An actor runs and cannot serve."""

FSYNC_FAILED = 71
"""R2: a sync failed; the actor stopped at once. The next one opens with care."""
FILES_REPLACED = 72
"""R3: database or WAL were replaced under the actor; its WAL was saved beside the database."""
FENCED = 73
"""R5: another owner has taken over the file."""

INTERRUPTED = 130
