"""CPython's own tests of ``sqlite3`` through ``connect()``; ``make conformance`` runs more."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from conformance.cpython_suite import missing
from conformance.stand_in import CONTROL, OURS
from conformance.suites import CPYTHON, run
from conformance.verdict import judge, listed


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(
    missing() is not None, reason="the interpreter comes without its own tests of sqlite3"
)
def test_every_test_of_cpython_passes_or_is_in_the_list():
    with ThreadPoolExecutor(2) as sides:
        control, ours = sides.submit(run, CPYTHON, CONTROL), sides.submit(run, CPYTHON, OURS)
    verdict = judge("cpython", ours.result(), control.result(), listed("cpython"))
    assert verdict.faults == []
    assert verdict.control > 400
    assert verdict.share >= 0.97
