"""Exceptions strike clients inside their calls, while the actor is killed, stopped and handed off.

Three processes with three clients each share a connection, and send more at once than the window
holds. A call that was struck has an unknown outcome. Whatever happens, nothing that was answered
as not executed is executed, nothing is made twice, and when it is over every client goes on.
"""

from __future__ import annotations

import sys

from harness.job import Job, run
from harness.nemesis import Nemesis
from harness.workload import OUT_OF_TIME, new_sandbox, run_clients

KINDS = ("kill", "term", "stop", "hand_off", "vanish", "vanish")

MISFORTUNES_PER_SANDBOX = 12
SHORT_MISFORTUNES = 3

DEFAULT_TIMEOUT_SECONDS = 8.0


def main(job: Job) -> None:
    while job.more():
        sandbox = new_sandbox(job)
        strikes = sandbox.folder / "strikes"
        strikes.touch()
        nemesis = Nemesis(sandbox, job.rng)
        with sandbox.open(), run_clients(
            sandbox, job.rng, writers=3, readers=1, threads=2, depth=80, large=0.01, pause=0.005,
            timeout=DEFAULT_TIMEOUT_SECONDS, strikes=str(strikes),
        ) as load:  # fmt: skip
            kinds = [job.options["only"]] if "only" in job.options else KINDS
            number = SHORT_MISFORTUNES if job.form == "short" else MISFORTUNES_PER_SANDBOX
            number = int(job.options.get("sandbox", number))
            for kind in job.rng.choices(kinds, k=number):
                load.goes_on(30)
                nemesis.strike(kind)
                job.count("misfortunes")
            load.goes_on(30)
            strikes.unlink()
            load.everyone_returns()  # what was struck last may have been under way until now
            load.stop_faults()
            load.everyone_returns()
            load.judge(job, excused=(*OUT_OF_TIME, "AlreadyOwned", "Interrupt"))
        files = (sandbox.folder / "history").iterdir()
        job.count("interrupts", sum(file.read_text().count(" Interrupt") for file in files))


if __name__ == "__main__":
    sys.exit(run(main, "interrupts", short=50, usual=3000))
