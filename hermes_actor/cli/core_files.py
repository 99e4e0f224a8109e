"""Core files of commands that hold secrets."""

from __future__ import annotations

import resource

__all__ = ["leave_no_core_file"]


def leave_no_core_file() -> None:
    """Have this process, and what it starts, leave no core file if it crashes.

    For commands that decrypt secrets: a core file would hold them, and the key. The hard limit
    stays, so a program that is started can raise it again. Stores opened by other programs do not
    call this: limits of a process are for its program to choose.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
