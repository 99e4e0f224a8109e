"""Every recorded example, on every kind of store."""

import pytest
from support.examples import EXAMPLES, run_group

from hermes_actor import hermes_state

ROWS = [
    pytest.param(index, row["n"], id=f"{group['group'][0]}-{row['n']}")
    for index, group in enumerate(EXAMPLES)
    for row in group["rows"]
]

# Rows that are about a file: its full-text tables, and a folder in the place of the file.
ABOUT_FILES = {191, 270, 271}


@pytest.fixture(scope="module")
def outcome(module_stores, tmp_path_factory):
    """The outcome of a row; its group runs when the first of its rows is asked for."""
    done = {}

    def of(index, n):
        if index not in done:
            folder = tmp_path_factory.mktemp("group")
            done[index] = run_group(
                EXAMPLES[index], folder, hermes_state, module_stores.opener, module_stores.sql
            )
        return done[index][n]

    return of


@pytest.mark.parametrize(("group", "n"), ROWS)
def test_row(outcome, module_stores, group, n):
    result = outcome(group, n)
    if module_stores.on_server and n in ABOUT_FILES:
        assert not result.ok, "this row means something on a server: take it off the list"
    else:
        assert result.ok, str(result)


def test_none_of_the_332_rows_is_missing():
    assert [row.values[1] for row in ROWS] == list(range(1, 333))
