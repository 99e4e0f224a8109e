"""Random programs against a store on a server and the model: every read method must agree."""

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from support.programs import GHOST_OF_A_GHOST, LONG, programs, run_on
from support.stores import SERVERS, Stores, chosen_kinds


@pytest.fixture(scope="module", params=[kind for kind in SERVERS if kind in chosen_kinds()])
def stores(request):
    stores = Stores(request.param)
    yield stores
    stores.close()


_numbers = iter(range(1_000_000))


def run(stores, program):
    db = stores.open(f"store {next(_numbers)}")
    try:
        run_on(db, program, unasked={"raw"})  # content that is bytes, which servers do not search
    finally:
        db.close()


@pytest.mark.slow
@pytest.mark.timeout(7200 if LONG else 300)
@settings(
    deadline=None,
    max_examples=200 if LONG else 3,
    derandomize=not LONG,
    # A program takes seconds here; the same one shrinks on a file, or in the long mode.
    phases=list(Phase) if LONG else [Phase.generate],
    database=None,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.function_scoped_fixture,
    ],
)
@given(programs())
def test_store_and_model_agree(stores, program):
    run(stores, program)


def test_a_ghost_of_a_ghost(stores):
    run(stores, GHOST_OF_A_GHOST)
