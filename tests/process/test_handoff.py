"""Hand-off: another process takes over, and nobody who writes notices."""

import os
import sys

from support.actors import own
from support.builds import serving
from support.load import check_owners, load

from hermes_actor.cli.handoff import hand_over
from hermes_actor.paths import place_of

HANDOFFS = 200 if os.environ.get("HERMES_ACTOR_LONG") else 20


def test_many_in_a_row_under_load(path):
    with serving(path) as first, load(path, 4) as running:
        pids = [first.pid]
        for _ in range(HANDOFFS):
            running.goes_on()
            pids.append(hand_over(place_of(path), sys.executable)["pid"])
        running.goes_on()
    assert check_owners(path) == pids
    assert len(set(pids)) == HANDOFFS + 1
    assert own(path, "epoch") == HANDOFFS + 1
