"""What the benchmark compares with keeps every change, and the count finds one that is lost."""

import random

import pytest
import writers
from alternatives import ALTERNATIVES
from support import servers

SERVERS = {"postgresql": "postgresql", "postgresql-indexed": "postgresql", "mariadb": "mysql"}


@pytest.mark.parametrize("kind", ["sqlite3", *SERVERS])
def test_a_turn_is_kept_and_counted(kind, tmp_path):
    address = str(tmp_path / "store.db") if kind == "sqlite3" else servers.new_store(SERVERS[kind])
    alternative = ALTERNATIVES[kind]
    alternative.create(address, ["s0", "s1"])
    db = writers.open_store(kind, address)
    for turn in writers.pool(random.Random("turns"), 2):
        for write in turn:
            getattr(db, write.method)("s1", **write.arguments)
    db.close()
    assert alternative.count(address) == 6


def test_every_kind_of_the_program_has_a_title():
    assert len({one.title for one in ALTERNATIVES.values()}) == len(ALTERNATIVES) == 8
