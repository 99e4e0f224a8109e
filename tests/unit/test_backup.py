"""Copies of a store that is in use: whole, private, and without a trace if they fail."""

import itertools
import os
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest
from support.actors import contents, wait_for
from support.files import assert_current, dump, query, raw

from hermes_actor import SessionDB, errors
from hermes_actor.recovery import backup
from hermes_actor.recovery.backup import backup_path, create_backup, prune_backups, verify

PAGES = 3000
"""More than are copied at a time."""


@pytest.fixture
def target(tmp_path):
    return tmp_path / "backups" / "copy.db"


@pytest.fixture
def large(path):
    """A store of some megabytes."""
    with closing(SessionDB(path, mode="embedded")) as db:
        db.create_session("ballast", "cli")
        text = "x" * 400_000
        for _ in range(PAGES * 4096 // len(text)):
            db.append_message("ballast", "user", text)
        db.create_session("s", "cli")
        yield db


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def nothing_left(target):
    return not target.parent.exists() or list(target.parent.iterdir()) == []


# --- it is whole ---------------------------------------------------------------------------------


def test_copy_under_constant_writing_ends_and_is_one_moment(path, target, large):
    """Another writer commits between any two steps; the copy holds what was there when it began."""
    acknowledged, steps = [], []
    for number in range(20):
        large.append_message("s", "user", str(number))

    def write_between(done, total):
        steps.append((done, total))
        assert len(steps) < 100, "it begins again whenever another writer commits"
        large.append_message("s", "user", f"during {len(steps)}")

    acknowledged = contents(path, "s")
    create_backup(path, target, write_between)
    assert len(steps) > 3
    assert contents(target, "s") == acknowledged
    assert len(contents(path, "s")) == len(acknowledged) + len(steps)
    # Progress goes up, to the end.
    assert steps == sorted(steps)
    assert steps[-1][0] == steps[-1][1] > PAGES // 2
    assert query(target, "PRAGMA integrity_check") == [("ok",)]


def test_copy_beside_a_busy_writer_has_everything_from_before_and_no_gap(path, target, large):
    enough, acknowledged = threading.Event(), []

    def write():
        for number in itertools.count():
            if enough.is_set():
                return
            large.append_message("s", "user", str(number))
            acknowledged.append(number)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        wait_for(lambda: len(acknowledged) > 20)
        before = len(acknowledged)
        create_backup(path, target)
        after = len(acknowledged)
    finally:
        enough.set()
        writer.join()
    copied = contents(target, "s")
    assert copied == [str(number) for number in range(len(copied))]
    assert before <= len(copied) <= after + 1


def test_copy_is_a_store_like_any_other(path, target):
    with closing(SessionDB(path, mode="embedded")) as db:
        db.create_session("s", "cli")
        db.append_message("s", "user", "walrus")
        assert len(db.search_messages("walrus")) == 1
        create_backup(path, target)
        assert dump(target, ours=False) == dump(path, ours=False)
    assert query(target, "PRAGMA journal_mode") == [("delete",)]
    assert_current(target)
    assert list(target.parent.iterdir()) == [target]
    with closing(SessionDB(target, mode="embedded")) as db:
        assert len(db.search_messages("walrus")) == 1
        db.append_message("s", "user", "another")
    assert contents(path, "s") == ["walrus"]


def test_copy_changes_nothing_about_the_store(path, target):
    """It reads: it neither folds the WAL back nor begins it again."""
    SessionDB(path, mode="embedded").close()
    with raw(path) as conn:
        conn.execute("INSERT INTO state_meta VALUES ('k', 'v')")
        files = [path, path.with_name(f"{path.name}-wal")]
        before = [(file.stat().st_ino, file.read_bytes()) for file in files]
        create_backup(path, target)
        assert [(file.stat().st_ino, file.read_bytes()) for file in files] == before
        assert query(target, "SELECT value FROM state_meta WHERE key = 'k'") == [("v",)]


def test_copy_is_private_whatever_the_umask_says(path, target):
    SessionDB(path, mode="embedded").close()
    mask = os.umask(0)
    try:
        create_backup(path, target)
    finally:
        os.umask(mask)
    assert mode(target) == 0o600
    assert mode(target.parent) == 0o700


@pytest.mark.parametrize("folder", ["100 % #1?", "[a-z]*", "ä\n", "file:x?mode=rw"])
def test_copy_in_a_folder_with_an_unusual_name(tmp_path, folder):
    path = tmp_path / folder / "state.db"
    with closing(SessionDB(path, mode="embedded")) as db:
        db.create_session("s", "cli")
        target = backup_path(path)
        create_backup(path, target)
        assert prune_backups(path, 1) == []
    assert [entry.name for entry in tmp_path.iterdir()] == [folder]
    assert list(target.parent.iterdir()) == [target]
    with raw(target) as conn:
        assert conn.execute("SELECT id FROM sessions").fetchall() == [("s",)]


# --- it is not -----------------------------------------------------------------------------------


def test_interrupted_copy_leaves_nothing(path, target, large):
    def stop(done, total):
        assert done < total
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        create_backup(path, target, stop)
    assert nothing_left(target)


def test_interrupted_copy_leaves_an_older_one_alone(path, target, large):
    create_backup(path, target)
    before = target.stat().st_ino, target.read_bytes()
    large.append_message("s", "user", "x")
    with pytest.raises(ZeroDivisionError):
        create_backup(path, target, lambda _done, _total: 1 / 0)
    assert (target.stat().st_ino, target.read_bytes()) == before
    assert list(target.parent.iterdir()) == [target]
    # A whole one takes its place.
    create_backup(path, target)
    assert contents(target, "s") == ["x"]


def test_interrupted_command_leaves_nothing(path, large):
    code = """
import signal, sys
from hermes_actor.recovery import backup
backup._PAUSE_SECONDS = 600
signal.signal(signal.SIGINT, signal.default_int_handler)
from hermes_actor.cli import run
sys.exit(run(["backup", "--db", sys.argv[1]]))
"""
    folder = path.with_name("backups")
    process = subprocess.Popen([sys.executable, "-c", code, str(path)], stderr=subprocess.PIPE)
    with process:
        wait_for(lambda: folder.exists() and any(f.stat().st_size for f in folder.iterdir()))
        process.send_signal(2)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in said
    assert list(folder.iterdir()) == []


def test_empty_file_gives_no_copy(path, target):
    """It would be kept as one, and push a good one out."""
    path.touch()
    with pytest.raises(errors.NotADatabase, match=r"state\.db is empty"):
        create_backup(path, target)
    assert nothing_left(target)


def test_damaged_store_gives_no_copy(path, target):
    with closing(SessionDB(path, mode="embedded")) as db:
        db.create_session("s", "cli")
        for number in range(200):
            db.append_message("s", "user", f"{number} " * 100)
    (root,) = query(path, "SELECT rootpage FROM sqlite_master WHERE name = 'messages'")[0]
    with path.open("r+b") as file:
        file.seek((root - 1) * 4096 + 8)
        file.write(b"\xff" * 64)
    before = path.read_bytes()
    with pytest.raises(errors.Damaged):
        create_backup(path, target)
    assert nothing_left(target)
    assert path.read_bytes() == before


def test_copy_that_is_cut_short_is_not_whole(path, target):
    with closing(SessionDB(path, mode="embedded")) as db:
        db.create_session("s", "cli")
        for number in range(200):
            db.append_message("s", "user", f"{number} " * 100)
        create_backup(path, target)
    verify(target)
    os.truncate(target, target.stat().st_size // 2)
    with pytest.raises((errors.Damaged, sqlite3.DatabaseError)):
        verify(target)


def test_what_is_not_a_store_is_named(path, target):
    path.write_bytes(b"a letter" * 1000)
    with pytest.raises(errors.StorageError, match="not a database"):
        create_backup(path, target)
    assert nothing_left(target)


def test_no_store_is_named_and_not_made(path, target):
    with pytest.raises(errors.CannotOpen):
        create_backup(path, target)
    assert nothing_left(target)
    assert not path.exists()


def test_folder_that_is_a_file_is_named(path, tmp_path):
    SessionDB(path, mode="embedded").close()
    (tmp_path / "backups").write_text("a file")
    with pytest.raises(errors.StorageError, match="backups"):
        create_backup(path, backup_path(path))


# --- the newest are kept -------------------------------------------------------------------------


def made(path, *names):
    folder = path.with_name("backups")
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).touch()
    return folder


def test_newest_are_kept(path):
    now = datetime(2026, 3, 1, tzinfo=UTC)
    copies = [backup_path(path, now + timedelta(hours=n)) for n in range(5)]
    made(path, *(copy.name for copy in reversed(copies)))
    assert prune_backups(path, 5) == []
    assert prune_backups(path, 2) == copies[:3]
    assert sorted(path.with_name("backups").iterdir()) == copies[3:]
    assert prune_backups(path, 2) == []


def test_nothing_but_copies_of_this_store_is_removed(path):
    other = path.with_name("state-2.db")
    now = datetime(2026, 3, 1, tzinfo=UTC)
    mine = [backup_path(path, now + timedelta(days=n)) for n in range(3)]
    others = [backup_path(other, now + timedelta(days=n)) for n in range(3)]
    notes = ["state-notes.txt", "state-before-the-move.backup.db", "state.db", "README"]
    folder = made(path, *notes, *(copy.name for copy in [*mine, *others]))
    assert prune_backups(path, 1) == mine[:2]
    assert {f.name for f in folder.iterdir()} == {*notes, mine[2].name, *(c.name for c in others)}
    assert prune_backups(other, 1) == others[:2]


def test_without_copies_there_is_nothing_to_remove(path):
    assert prune_backups(path, 1) == []


def test_copies_sort_by_time_when_the_clocks_go_back(path, monkeypatch):
    """Else the copy that was just made would be the first to go."""
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    moments = [datetime(2026, 10, 25, 0, minute, tzinfo=UTC) for minute in (10, 50)]
    moments.append(moments[-1] + timedelta(minutes=20))
    names = []
    for moment in moments:

        class Now(datetime):
            @classmethod
            def now(cls, tz=None, moment=moment):
                return datetime.fromtimestamp(moment.timestamp(), tz)

        monkeypatch.setattr(backup, "datetime", Now)
        names.append(backup_path(path).name)
    monkeypatch.undo()
    time.tzset()
    assert names == sorted(names)
