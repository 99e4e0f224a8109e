"""Attacks on the actor of a store while clients are at work."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from support.actors import actor_pid

from harness.job import Job
from hermes_actor.client.control import request_handoff
from hermes_actor.errors import HermesActorError
from hermes_actor.paths import resolve_paths

__all__ = ["attack_actor"]


def attack_actor(
    job: Job,
    path: Path,
    python: Path,
    clients: Iterable[threading.Thread],
    *,
    kills: float,
    handoffs: float,
) -> None:
    """Kill the actor of *path* every *kills* seconds, hand it over to *python* every *handoffs*
    seconds, for as long as any client lives."""
    began, working = time.monotonic(), list(clients)
    next_kill, next_handoff = began + kills, began + handoffs
    while any(client.is_alive() for client in working):
        time.sleep(0.02)
        pid, now = actor_pid(path), time.monotonic()
        if pid is None:
            continue
        if now >= next_kill:
            next_kill = now + kills
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            job.count("kills")
        elif now >= next_handoff:
            next_handoff = now + handoffs
            with contextlib.suppress(HermesActorError, OSError):
                request_handoff(resolve_paths(path), str(python))
                job.count("hand-offs")
