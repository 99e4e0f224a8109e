"""Hand-off after hand-off under load; in some, either side is killed at a random moment.

Eight writers and four readers. A hand-off that is not disturbed must succeed; after one that was
disturbed an actor must serve. In the end the whole history is checked, and the log must show that
no two processes ever had the file open at one time.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time

from harness.job import Job, run
from harness.sandbox import Sandbox
from harness.workload import new_sandbox, run_clients
from support.actors import actors_of

from hermes_actor.client.control import request_handoff
from hermes_actor.errors import HandoffFailed, HermesActorError

HANDOFFS_PER_SANDBOX = 50
DISTURBED = 0.25
"""The share of hand-offs in which a process is killed."""
KILL_WITHIN_SECONDS = 0.8
"""As long as a hand-off takes on a slow machine."""


def main(job: Job) -> None:
    while job.more():
        sandbox = new_sandbox(job)
        with sandbox.open(), run_clients(
            sandbox, job.rng, writers=8, readers=4, depth=job.rng.choice([4, 8]), pause=0.03
        ) as load:  # fmt: skip
            for _ in range(int(job.options.get("sandbox", HANDOFFS_PER_SANDBOX))):
                if not job.more():
                    break
                pid = sandbox.serves()
                if job.rng.random() < DISTURBED:
                    disturbed(job, sandbox)
                    load.goes_on(5)
                else:
                    undisturbed(job, sandbox, pid)
                job.count("hand-offs")
            load.stop_faults()
            load.goes_on()
            load.judge(job)


def undisturbed(job: Job, sandbox: Sandbox, old: int) -> None:
    try:
        new = request_handoff(sandbox.paths, str(sandbox.python))["pid"]
    except HermesActorError as error:
        job.violation(f"a hand-off of pid {old} has failed: {type(error).__name__}: {error}")
        return
    job.demand(new != old, f"after a hand-off pid {old} still serves")


def disturbed(job: Job, sandbox: Sandbox) -> None:
    def ask() -> None:
        with contextlib.suppress(HandoffFailed, HermesActorError, OSError):
            request_handoff(sandbox.paths, str(sandbox.python))

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    time.sleep(job.rng.uniform(0.0, KILL_WITHIN_SECONDS))
    victims = sorted(actors_of(sandbox.path))
    if victims:
        sandbox.kill(job.rng.choice(victims))
        job.count("kills")
    asking.join(60)
    job.demand(not asking.is_alive(), "nobody answers whoever asked for a hand-off")


if __name__ == "__main__":
    sys.exit(run(main, "hand-offs", short=20, usual=200, also={"acknowledged": 50_000}))
