"""Looks at the files around a commit: each costs a lone writer time before its reply."""

import os
from collections import Counter

import pytest
from support.direct_writer import FakeTime, put, run

from hermes_actor.engine import environment


@pytest.fixture
def looks():
    """How often each file was looked at, by name."""
    return Counter()


def test_commit_looks_once_at_each_file_before_and_after(open_writer, path, looks, monkeypatch):
    stat = os.stat

    def counted(file, *arguments, **options):
        looks[os.path.basename(file)] += 1
        return stat(file, *arguments, **options)

    time = FakeTime()
    writer = open_writer(time.env())
    run(writer, put("first"))
    time.sleep(1.0)  # so that the look after the last commit is not enough any more
    monkeypatch.setattr(environment.os, "stat", counted)
    run(writer, put("second"))
    monkeypatch.undo()
    names = ("state.db", "state.db-wal", "state.db-shm", "owner.lock")
    assert looks == dict.fromkeys(names, 2)


def test_database_that_is_written_in_place_is_seen_by_the_same_look(open_writer, path):
    time = FakeTime()
    writer = open_writer(time.env())
    run(writer, put("first"))
    guard = writer.connection.guard
    assert guard.intact()
    with path.open("r+b") as file:
        file.seek(0, os.SEEK_END)
        file.write(bytes(4096))
    assert not guard.intact()
