"""Random programs of several connections, on ``connect()`` and on ``sqlite3``: the same answers."""

import sqlite3

import pytest
from conformance.programs import compare, programs, reset
from hypothesis import HealthCheck, given, settings

from hermes_actor import dbapi


@pytest.mark.slow
def test_programs_get_the_answers_of_sqlite3(tmp_path):
    compared = []

    @settings(suppress_health_check=list(HealthCheck))
    @given(programs())
    def one(program):
        reset(dbapi.connect, tmp_path / "ours.db")
        reset(sqlite3.connect, tmp_path / "control.db")
        compared.append(
            compare(program, dbapi.connect, tmp_path / "ours.db", tmp_path / "control.db")
        )

    one()
    assert sum(compared) > 100
