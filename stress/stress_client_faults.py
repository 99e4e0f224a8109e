"""Exceptions strike clients inside their calls, while the actor is killed, stopped and handed off.

Three processes with three clients each share a connection, and send more at once than the window
holds. A call that was struck has an unknown outcome. Whatever happens, nothing that was told as not
executed is executed, nothing is made twice, and when it is over every client goes on.
"""

from __future__ import annotations

import sys

from programme.job import Job, run
from programme.nemesis import Nemesis
from programme.workload import OUT_OF_TIME, at_work, new_house

KINDS = ("kill", "term", "stop", "hand_off", "vanish", "vanish")

MISFORTUNES_PER_HOUSE = 12
SHORT_MISFORTUNES = 3

DEFAULT_TIMEOUT_SECONDS = 8.0


def main(job: Job) -> None:
    while job.more():
        house = new_house(job)
        strikes = house.folder / "strikes"
        strikes.touch()
        nemesis = Nemesis(house, job.rng)
        with house.open(), at_work(
            house, job.rng, writers=3, readers=1, threads=2, depth=80, large=0.01, pause=0.005,
            timeout=DEFAULT_TIMEOUT_SECONDS, strikes=str(strikes),
        ) as load:  # fmt: skip
            kinds = [job.options["only"]] if "only" in job.options else KINDS
            number = SHORT_MISFORTUNES if job.form == "short" else MISFORTUNES_PER_HOUSE
            number = int(job.options.get("house", number))
            for kind in job.rng.choices(kinds, k=number):
                load.goes_on(30)
                nemesis.strike(kind)
                job.count("misfortunes")
            load.goes_on(30)
            strikes.unlink()
            load.everyone_returns()  # what was struck last may have been under way until now
            load.nothing_more_happens()
            load.everyone_returns()
            load.judge(job, excused=(*OUT_OF_TIME, "AlreadyOwned", "Interrupt"))
        files = (house.folder / "history").iterdir()
        job.count("interrupts", sum(file.read_text().count(" Interrupt") for file in files))


if __name__ == "__main__":
    sys.exit(run(main, "interrupts", short=50, usual=3000))
