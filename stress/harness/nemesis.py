"""What is done to an actor while clients work: one method per kind of misfortune.

Each leaves the sandbox in a state from which clients get on by themselves, and returns when its
fault is over.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable

from support.actors import actors_of

from harness.sandbox import Sandbox
from hermes_actor.client.control import request_handoff
from hermes_actor.errors import HermesActorError

__all__ = ["KINDS", "Nemesis"]


class Nemesis:
    """Misfortunes of one sandbox."""

    def __init__(self, sandbox: Sandbox, rng: random.Random) -> None:
        self._sandbox, self._rng = sandbox, rng
        self.failed_syncs = 0
        """After one of them an owner ends without a line in the log."""

    def kill(self) -> None:
        self._sandbox.kill(self._sandbox.serves())

    def term(self) -> None:
        """SIGTERM, sometimes twice: the second may shorten waiting, never skip a commit."""
        pid = self._sandbox.serves()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
            if self._rng.random() < 0.5:
                time.sleep(self._rng.uniform(0.0, 0.05))
                os.kill(pid, signal.SIGTERM)

    def stop(self) -> None:
        """SIGSTOP for a while: clients wait, and none takes over from a process that lives."""
        pid = self._sandbox.serves()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(self._rng.uniform(0.1, 1.5))
            os.kill(pid, signal.SIGCONT)

    def hand_off(self) -> None:
        with contextlib.suppress(HermesActorError, OSError):
            request_handoff(self._sandbox.paths, str(self._sandbox.python))

    def hand_off_with_a_stop(self) -> None:
        """A process is stopped in the middle of a hand-off, and goes on later."""
        asking = threading.Thread(target=self.hand_off, daemon=True)
        self._sandbox.serves()
        asking.start()
        time.sleep(self._rng.uniform(0.0, 0.6))
        victims = sorted(actors_of(self._sandbox.path))
        with contextlib.suppress(ProcessLookupError, IndexError):
            victim = self._rng.choice(victims)
            os.kill(victim, signal.SIGSTOP)
            time.sleep(self._rng.uniform(0.1, 1.0))
            os.kill(victim, signal.SIGCONT)
        asking.join(90)

    def vanish(self) -> None:
        """It dies with requests unanswered, and for a while no other one can be started."""
        with self._sandbox.stopped() as pid:
            time.sleep(self._rng.uniform(0.05, 0.3))
            self._sandbox.order(HERMES_STRESS_ABSENT="1")
            self._sandbox.kill(pid)
        time.sleep(self._rng.uniform(0.2, 0.8))
        self._sandbox.order()

    def stuck_sync(self) -> None:
        """The next actor's commits take long, all of them, until it is killed."""
        seconds = self._rng.uniform(0.05, 0.5)
        start = self._rng.randint(1, 30)
        self._sandbox.obeyed_by_next(
            HERMES_ACTOR_FAILPOINT=f"commit.before:{start}:sleep={seconds:.3f}"
        )
        time.sleep(self._rng.uniform(0.5, 1.5))
        self.kill()

    def failed_sync(self) -> None:
        """The next actor meets a disk whose syncs fail."""
        sign = self._sandbox.folder / "fail now"
        pid = self._sandbox.serves_under(HERMES_STRESS_FAIL_SYNCS=str(sign))
        sign.touch()
        self.failed_syncs += 1
        self._sandbox.serves(other_than=pid)

    def strike(self, kind: str) -> None:
        """One misfortune, noted with its times beside the history."""
        act: Callable[[], None] = getattr(self, kind)
        began = time.monotonic()
        try:
            act()
        finally:
            with (self._sandbox.folder / "events").open("a") as events:
                events.write(f"{began:.6f} {time.monotonic():.6f} {kind}\n")


KINDS = (
    "kill", "kill", "term", "stop", "hand_off", "hand_off", "hand_off_with_a_stop", "stuck_sync",
    "failed_sync",
)  # fmt: skip
