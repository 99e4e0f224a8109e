"""The process under test: the product's own command, after the harness has had its way with it.

Run by the interpreter of a :class:`~harness.sandbox.Sandbox` with the words that would have
followed ``python``. Every actor under test keeps all receipts, so that the whole order of changes
can be read from the file when all is over. ``HERMES_STRESS_CLOCK`` makes its wall clock jump, and
while the file that ``HERMES_STRESS_FAIL_SYNCS`` names is there its syncs fail.
``HERMES_STRESS_STRAY`` names a file that has it make a mistake, see :mod:`harness.lock_faults`.
``HERMES_STRESS_WATCH_ROWS`` names a file for what :mod:`harness.transaction_watch` sees.
``HERMES_STRESS_SWEEP`` has receipts swept after so many changes instead of kept, and with
``HERMES_STRESS_ABSENT`` the process ends at once: no actor can be started.
``HERMES_STRESS_BREAK`` names a deliberate fault of the selftest, see :mod:`harness.mutations`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def keep_receipts() -> None:
    """Nothing is pruned, swept or forgotten."""
    from hermes_actor import limits
    from hermes_actor.engine.receipts import Receipts

    # Above every number that a client may claim.
    limits.RECEIPTS_PRUNED_AT_ONCE = limits.RECEIPTS_KEPT_COMMITS = 2**70

    def forget(self: Receipts, _conn: object, client_id: bytes) -> None:
        self._clients.pop(client_id, None)

    Receipts.forget = forget  # type: ignore[method-assign, assignment]


def sweep_receipts(after: int) -> None:
    """Receipts go as soon as they may, after so few changes that a job can make them."""
    from hermes_actor import limits

    limits.RECEIPTS_KEPT_COMMITS = limits.RECEIPTS_SWEEP_EVERY_COMMITS = after


def main() -> int:
    if os.environ.get("HERMES_STRESS_ABSENT"):
        return 1
    sys.path.append(str(Path(__file__).resolve().parents[1]))
    words = sys.argv[1:]
    words = words[words.index("hermes_actor") + 1 :]
    if "serve" in words:
        if after := os.environ.get("HERMES_STRESS_SWEEP"):
            sweep_receipts(int(after))
        else:
            keep_receipts()
        if seed := os.environ.get("HERMES_STRESS_CLOCK"):
            from harness.clock import jump

            jump(seed)
        if sign := os.environ.get("HERMES_STRESS_FAIL_SYNCS"):
            from support.fsync_shim import fail_on_order

            fail_on_order(Path(sign), "commit.before")
        if sign := os.environ.get("HERMES_STRESS_STRAY"):
            from harness.lock_faults import act_on_order

            act_on_order(Path(sign))
        if file := os.environ.get("HERMES_STRESS_WATCH_ROWS"):
            from harness.transaction_watch import watch_rows

            watch_rows(Path(file))
    if broken := os.environ.get("HERMES_STRESS_BREAK"):
        from harness.mutations import break_build

        break_build(broken)
    sys.argv = ["hermes-actor", *words]
    from hermes_actor.__main__ import main as product

    return product()


if __name__ == "__main__":
    sys.exit(main())
