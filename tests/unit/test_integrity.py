"""The check of a file in use: what its owner does meanwhile is not damage."""

import sqlite3

from hermes_actor.recovery.integrity import check


def test_table_that_is_dropped_during_the_check_is_no_damage(tmp_path):
    path = tmp_path / "x.db"
    owner = sqlite3.connect(path, isolation_level=None)
    owner.execute("PRAGMA journal_mode = WAL")
    for name in ("a", "b", "c"):
        owner.execute(f"CREATE TABLE {name} (x)")

    def drop_the_last(done, _total):
        if done == 1:
            owner.execute("DROP TABLE c")

    assert check(path, drop_the_last) == []
    owner.close()
