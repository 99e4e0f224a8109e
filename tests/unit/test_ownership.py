"""The epoch fence, and the files and the lock of an owner."""

import json
import os
import re

import pytest
from support.actors import own
from support.direct_writer import (
    append,
    batch,
    indexed,
    keys,
    put,
    run,
)
from support.files import raw

from hermes_actor.engine.ownership import OwnerLock
from hermes_actor.engine.writer import Writer
from hermes_actor.errors import (
    ActorBroken,
    AlreadyOwned,
)
from hermes_actor.paths import resolve_paths
from hermes_protocol.operations import (
    Vacuum,
)


def test_every_owner_raises_the_epoch(open_writer, path):
    for epoch in (1, 2, 3):
        writer = open_writer()
        run(writer, put("k"))
        assert (writer.epoch, own(path, "epoch")) == (epoch, epoch)
        writer.close()


def test_old_owner_commits_nothing_more(open_writer, path):
    old, new = open_writer(), open_writer()
    run(old, put("1"))
    run(new, put("2"))
    for _ in range(2):
        outcomes = batch(old, put("3"), put("4"))
        assert all(isinstance(outcome.error, ActorBroken) for outcome in outcomes)
        assert all(outcome.error.executed == "no" for outcome in outcomes)
    assert keys(path) == ["1", "2"]
    run(new, put("5"))
    assert own(path, "commit_no") == 3


def raise_(error):
    raise error


@pytest.mark.parametrize(
    "attempt",
    [
        lambda writer: writer.leases.begin(float("inf")),
        lambda writer: writer.index.run_slice(1.0),
        lambda writer: raise_(batch(writer, Vacuum())[0].error),
    ],
    ids=["lease", "index", "vacuum"],
)
def test_old_owner_does_nothing_else_either(writer, path, attempt):
    run(writer, append("x"))
    with raw(path) as foreign:
        foreign.execute("UPDATE hermes_actor_meta SET value = value + 1 WHERE key = 'epoch'")
    with pytest.raises(ActorBroken):
        attempt(writer)
    assert isinstance(batch(writer, put("1"))[0].error, ActorBroken)
    assert indexed(path, "messages_fts") == []
    assert writer.idle_slice() is None


# --- files and the owner lock ----------------------------------------------------------------


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_files_belong_to_their_owner_alone(path, umask):
    paths, old = resolve_paths(path), os.umask(umask)
    try:
        lock = OwnerLock.acquire(paths)
        writer = Writer(paths)
        run(writer, put("k"))
    finally:
        os.umask(old)
    modes = {
        file.name: oct(file.stat().st_mode & 0o777)
        for file in (paths.db, paths.wal, paths.shm, paths.owner_lock, paths.folder)
    }
    writer.close()
    lock.release()
    assert modes.pop(paths.folder.name) == "0o700"
    assert set(modes.values()) == {"0o600"}


def test_owner_lock_tells_who_holds_it(path):
    paths = resolve_paths(path)
    lock = OwnerLock.acquire(paths)
    lock.describe(epoch=7)
    content = json.loads(paths.owner_lock.read_text())
    assert sorted(content) == ["build", "epoch", "mode", "pid", "started"]
    assert (content["pid"], content["epoch"], content["mode"]) == (os.getpid(), 7, "actor")
    lock.release()


def test_second_owner_learns_of_the_first(path):
    paths = resolve_paths(path)
    lock = OwnerLock.acquire(paths)
    with pytest.raises(AlreadyOwned, match=str(os.getpid())) as caught:
        OwnerLock.acquire(paths)
    assert caught.value.pid == os.getpid()
    assert re.search(r" since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d: it is the actor", str(caught.value))
    inode = paths.owner_lock.stat().st_ino
    lock.release()
    lock.release()
    OwnerLock.acquire(paths).release()
    assert paths.owner_lock.stat().st_ino == inode


def test_unreadable_lock_content_does_not_hide_the_owner(path):
    paths = resolve_paths(path)
    lock = OwnerLock.acquire(paths)
    paths.owner_lock.write_bytes(b"\xff{")
    with pytest.raises(AlreadyOwned, match="unknown"):
        OwnerLock.acquire(paths)
    lock.release()


def test_lock_is_not_handed_to_programs_that_are_started(path):
    lock = OwnerLock.acquire(resolve_paths(path))
    assert not os.get_inheritable(lock._descriptor)
    lock.release()
