import pytest
from support.examples import EXAMPLES, run_group

from hermes_actor import SessionDB, hermes_state

ROWS = [
    pytest.param(index, row["n"], id=f"{group['group'][0]}-{row['n']}")
    for index, group in enumerate(EXAMPLES)
    for row in group["rows"]
]


@pytest.fixture(scope="module")
def outcome(mode, tmp_path_factory):
    """The outcome of a row; its group runs when the first of its rows is asked for."""

    class Store(SessionDB):
        def __init__(self, db_path=None):
            super().__init__(db_path, mode=mode)

    done = {}

    def of(index, n):
        if index not in done:
            folder = tmp_path_factory.mktemp("group")
            done[index] = run_group(EXAMPLES[index], folder, hermes_state, Store)
        return done[index][n]

    return of


@pytest.mark.parametrize(("group", "n"), ROWS)
def test_row(outcome, group, n):
    result = outcome(group, n)
    assert result.ok, str(result)


def test_none_of_the_332_rows_is_missing():
    assert [row.values[1] for row in ROWS] == list(range(1, 333))
