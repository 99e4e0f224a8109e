"""The process ends at a named step of its work: each failpoint, again and again, under load.

The steps of opening, commit, reply, checkpoint and indexing come by themselves. For those of a
drain the actor gets a SIGTERM, for those of a hand-off one is requested, and for those of a
successor it is the successor that ends. Clients go on by themselves, and in the end the whole
history is checked.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator

from harness.job import Job, run
from harness.sandbox import Sandbox
from harness.workload import new_sandbox, run_clients

from hermes_actor.client.control import request_handoff
from hermes_actor.errors import HermesActorError
from hermes_actor.failpoints import POINTS

OFTEN = {"batch.begin": 40, "commit.before": 40, "commit.after": 40, "reply.before": 40,
         "reply.after": 40, "checkpoint.before": 3, "checkpoint.after": 3, "index.slice": 2,
         "index.after": 2, "aside.stage": 3, "aside.after": 3}  # fmt: skip
"""Steps that an actor meets many times: up to which of them it may live."""

CRASHES_PER_SANDBOX = 60
REACH_SECONDS = 40.0
"""In which every step must come; the slowest wait for idle time of the actor."""


def main(job: Job) -> None:
    names = plan(job.rng, job.kind)
    while job.more():
        sandbox = new_sandbox(job)
        crashes = Crashes(job, sandbox)
        # A new file is migrated once: its failpoint is the first of every sandbox.
        crashes.order("migration.commit")
        with sandbox.open(), run_clients(
            sandbox, job.rng, writers=4, readers=1, depth=8, pause=0.05, large=0.003
        ) as load:  # fmt: skip
            crashes.reached("migration.commit")
            name = next(names)
            for _ in range(int(job.options.get("sandbox", CRASHES_PER_SANDBOX)) - 1):
                if not job.more():
                    break
                coming = next(names)
                crashes.play(name, coming)
                name = coming
            sandbox.once.unlink(missing_ok=True)
            load.stop_faults()
            load.goes_on()
            load.judge(job)


def plan(rng: random.Random, kind: str) -> Iterator[str]:
    """All names in turn, in another order each time; a new file alone meets the migration."""
    # Clients of this job open no leases, which alone share syncs, and the index is never so far
    # behind them that it goes on in bulk; power cuts and tests do that.
    absent = (
        "migration.commit", "sync.", "bulk.",
        *(("index.", "aside.") if kind == "plain" else ()),
    )  # fmt: skip
    names = [name for name in POINTS if not name.startswith(absent)]
    while True:
        rng.shuffle(names)
        yield from names


class Crashes:
    """Has one process of a sandbox after the other end at a step, and sees it."""

    def __init__(self, job: Job, sandbox: Sandbox) -> None:
        self._job, self._sandbox = job, sandbox
        self._before: dict[str, int] = {}
        """How often each ordered step had been reached when it was ordered."""

    def order(self, name: str) -> None:
        """The process that starts next ends at this step."""
        self._before[name] = self._times(name)
        count = self._job.rng.randint(1, OFTEN.get(name, 1))
        self._sandbox.order_once(HERMES_ACTOR_FAILPOINT=f"{name}:{count}")

    def _times(self, name: str) -> int:
        return self._sandbox.log_count(f"failpoint {name}: killed")

    def play(self, name: str, coming: str) -> None:
        """One crash. *coming* is the step after it, which is ordered ahead where that is possible:
        then the actor that starts after this crash takes it, and none has to be killed for it."""
        sandbox = self._sandbox
        if name.startswith("successor."):
            sandbox.serves()  # it must be the successor that takes the order
            self.order(name)
            self._ask_for_a_hand_off(name)
        else:
            if name not in self._before:
                self.order(name)
            sandbox.see_it_taken()
            by_request = name.startswith("handoff.") or coming.startswith("successor.")
            if not by_request and coming != name:
                self.order(coming)
            if name.startswith(("drain.", "close.")):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(sandbox.serves(), signal.SIGTERM)
            elif name.startswith("handoff."):
                sandbox.serves()
                self._ask_for_a_hand_off(name)
        self.reached(name)

    def reached(self, name: str) -> None:
        before = self._before.pop(name)
        wait_until(lambda: self._times(name) > before, f"{name} is not reached")
        self._job.count("crashes")

    def _ask_for_a_hand_off(self, name: str) -> None:
        """Ask, and do not wait: the actor that is asked may not live to answer.

        It is asked for again until the step is reached: the last hand-off may not be over yet.
        """
        sandbox, before = self._sandbox, self._before[name]
        give_up = time.monotonic() + REACH_SECONDS

        def ask() -> None:
            while self._times(name) == before and time.monotonic() < give_up:
                with contextlib.suppress(HermesActorError, OSError):
                    request_handoff(sandbox.paths, str(sandbox.python))
                time.sleep(0.02)

        threading.Thread(target=ask, daemon=True).start()


def wait_until(fact: Callable[[], bool], what: str) -> None:
    give_up = time.monotonic() + REACH_SECONDS
    while not fact():
        if time.monotonic() > give_up:
            raise TimeoutError(f"{what} within {REACH_SECONDS:g} s")
        time.sleep(0.005)


if __name__ == "__main__":
    sys.exit(run(main, "crashes", short=8, usual=12 * len(POINTS)))
