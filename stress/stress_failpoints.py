"""The process ends at a named step of its work: each failpoint, again and again, under load.

The steps of opening, commit, reply, checkpoint and indexing come by themselves. For those of a
drain the actor gets a SIGTERM, for those of a hand-off somebody asks for one, and for those of a
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

from programme.house import House
from programme.job import Job, run
from programme.workload import at_work, new_house

from hermes_actor.cli.handoff import hand_over
from hermes_actor.errors import HermesActorError
from hermes_actor.failpoints import POINTS

OFTEN = {"batch.begin": 40, "commit.before": 40, "commit.after": 40, "reply.before": 40,
         "reply.after": 40, "checkpoint.before": 3, "checkpoint.after": 3, "index.slice": 2,
         "index.after": 2}  # fmt: skip
"""Steps that an actor meets many times: up to which of them it may live."""

CRASHES_PER_HOUSE = 60
REACH_SECONDS = 40.0
"""In which every step must come; the slowest wait for idle time of the actor."""


def main(job: Job) -> None:
    names = plan(job.rng)
    while job.more():
        house = new_house(job)
        # A new file is migrated once: its failpoint is the first of every house.
        house.order_once(HERMES_ACTOR_FAILPOINT="migration.commit")
        with house.open(), at_work(
            house, job.rng, writers=4, readers=1, depth=8, pause=0.05
        ) as load:  # fmt: skip
            reached(job, house, "migration.commit", 0)
            for _ in range(CRASHES_PER_HOUSE - 1):
                if not job.more():
                    break
                crash(job, house, next(names))
            load.nothing_more_happens()
            load.goes_on()
            load.judge(job)


def plan(rng: random.Random) -> Iterator[str]:
    """All names in turn, in another order each time; a new file alone meets the migration."""
    names = [name for name in POINTS if name != "migration.commit"]
    while True:
        rng.shuffle(names)
        yield from names


def crash(job: Job, house: House, name: str) -> None:
    """Have one process end at a step, and see it."""
    before = house.log_count(f"failpoint {name}: killed")
    count = job.rng.randint(1, OFTEN.get(name, 1))
    order = f"{name}:{count}"
    if name.startswith("successor."):
        house.serves()  # it must be the successor that takes the order
        house.order_once(HERMES_ACTOR_FAILPOINT=order)
        ask_for_a_hand_off(house, name, before)
    else:
        # After the last crash somebody is about to start the next actor, which may take it.
        house.obeyed_by_next(HERMES_ACTOR_FAILPOINT=order)
        if name.startswith(("drain.", "close.")):
            with contextlib.suppress(ProcessLookupError):
                os.kill(house.serves(), signal.SIGTERM)
        elif name.startswith("handoff."):
            house.serves()
            ask_for_a_hand_off(house, name, before)
    reached(job, house, name, before)


def reached(job: Job, house: House, name: str, before: int) -> None:
    wait_until(
        lambda: house.log_count(f"failpoint {name}: killed") > before, f"{name} is not reached"
    )
    job.count("crashes")


def ask_for_a_hand_off(house: House, name: str, before: int) -> None:
    """Ask, and do not wait: whoever is asked may not live to answer.

    It is asked for again until the step is reached: the last hand-off may not be over yet.
    """
    give_up = time.monotonic() + REACH_SECONDS

    def ask() -> None:
        while house.log_count(f"failpoint {name}: killed") == before and time.monotonic() < give_up:
            with contextlib.suppress(HermesActorError, OSError):
                hand_over(house.place, str(house.python))
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
