"""A client that keeps the writer to itself: endless statements, inside transactions and alone.

Every call of it must come back, and the error must say truthfully whether its change was executed:
what it has inserted before the endless statement is looked for afterwards.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.client import OPEN_SECONDS
from hermes_actor.testing.worker import Worker

__all__ = ["hold"]

ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT COUNT(*) FROM c"

ENDLESS_CHANGE = (
    "INSERT INTO state_meta WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c)"
    " SELECT 'endless', COUNT(*) FROM c"
)

_INSERT = "INSERT INTO state_meta VALUES (?, 'here')"


def hold(worker: Worker) -> None:
    """Calls, one after the other, until it is time to end. A line ``k`` for each that returns."""
    from hermes_actor import SessionDB

    rng, record, number = worker.rng, worker.record, 0
    db = SessionDB(Path(worker.store), mode="actor", timeout=OPEN_SECONDS)
    # A process that was killed may have used the same name before.
    name = f"{worker.name} {os.getpid()}"
    worker.ready()
    while not worker.over(rng.uniform(0.0, 0.05)):
        number += 1
        key, began = f"{name} {number}", time.monotonic()
        try:
            db._execute_write(_way(rng, key))
            executed = "yes"
        except Exception as error:
            executed = getattr(error, "executed", "unknown")
            if type(error).__name__ not in ("DeadlineExceeded", "LeaseLost", "OutcomeUnknown"):
                record("e", time.monotonic(), f"{key}: {type(error).__name__}: {error}"[:300])
        there = db.get_meta(key)
        if (executed, there) in (("no", "here"), ("yes", None)):
            record("e", time.monotonic(), f"{key}: executed is {executed}, the file says {there}")
        if rng.random() < 0.3:
            _alone(db)
        record("k", began)
    db.close()


def _way(rng: random.Random, key: str) -> Callable[[Any], Any]:
    """A transaction: a change, and then what takes for ever, or only long, or nothing."""
    then = rng.choice([ENDLESS, ENDLESS_CHANGE, "", "", None])

    def run(conn: Any) -> None:
        conn.execute(_INSERT, (key,))
        if then is None:
            time.sleep(0.4)  # longer than a holder may pause
        elif then:
            conn.execute(then).fetchall()

    return run


def _alone(db: Any) -> None:
    """Outside of a transaction: it is interrupted, or at the latest ends with the timeout."""
    from hermes_actor.errors import HermesActorError

    try:
        db._conn.execute(ENDLESS_CHANGE)
    except HermesActorError:
        return
    raise AssertionError("an endless statement has ended")
