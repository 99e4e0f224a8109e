"""What the engine does about a disk that fails: found by the verification programme, kept here."""

import os
import sqlite3

import pytest
from support.processes import own_mounts, run_python

from hermes_actor import exit_codes
from hermes_actor.engine.environment import Environment
from hermes_actor.engine.jobs import Request
from hermes_actor.engine.writer import Writer
from hermes_actor.errors import CannotOpen, DiskIOError
from hermes_actor.paths import resolve_paths
from hermes_actor.sqlite import Connection, connect_writer
from hermes_protocol.operations import MetaSet


@pytest.fixture
def paths(tmp_path):
    paths = resolve_paths(tmp_path / "state.db")
    paths.folder.mkdir(mode=0o700)
    return paths


@pytest.fixture
def open_writer(paths):
    opened = []

    def open_(env=None, **options):
        opened.append(Writer(paths, env, **options))
        return opened[-1]

    yield open_
    for writer in opened:
        writer.close()


def put(writer, key):
    (outcome,) = writer.run_batch([Request(MetaSet(key=key, value="v"))])
    return outcome.error


def failed(code):
    error = sqlite3.OperationalError("it does not work")
    error.sqlite_errorcode, error.sqlite_errorname = code, "SQLITE_TEST"
    return error


# The barrier after a failed sync.


@pytest.mark.parametrize("after_failure", [False, True])
def test_wal_is_written_again_before_it_is_checkpointed(paths, open_writer, after_failure):
    """Or frames that only the cache has would be in the database, and not in the disk's WAL."""
    open_writer().close()
    if after_failure:
        paths.fsync_failed.touch()
    told = []
    again = "written again"
    open_writer(
        Environment(failpoint=told.append, write_again=lambda _: told.append(again))
    ).recover()
    expected = ["barrier.before", again, "barrier.after_checkpoint"]
    assert [what for what in told if what in expected] == (
        expected if after_failure else [expected[0], expected[2]]
    )
    assert not paths.fsync_failed.exists()


def test_writing_again_keeps_every_byte_and_syncs(paths, monkeypatch):
    data = os.urandom(3_000_000)
    paths.wal.write_bytes(data)
    synced = []
    monkeypatch.setattr(os, "fsync", synced.append)
    before = paths.wal.stat()
    Environment().write_again(str(paths.wal))
    assert paths.wal.read_bytes() == data
    assert paths.wal.stat().st_ino == before.st_ino
    assert paths.wal.stat().st_mtime_ns > before.st_mtime_ns
    assert len(synced) == 1
    paths.wal.unlink()
    Environment().write_again(str(paths.wal))
    assert not paths.wal.exists()


def test_wal_that_cannot_be_written_again_stops_the_writer(paths, open_writer):
    def refuse(_path):
        raise OSError(5, "Input/output error")

    open_writer().close()
    paths.fsync_failed.touch()
    writer = open_writer(Environment(write_again=refuse))
    with pytest.raises(DiskIOError):
        writer.recover()
    assert writer.connection.broken is not None
    assert writer.connection.exit_code == exit_codes.FSYNC_FAILED
    assert paths.fsync_failed.exists()
    # The next one has more luck.
    later = open_writer()
    assert later.recover()
    assert put(later, "k") is None
    assert not paths.fsync_failed.exists()


# File systems without WAL.


def test_without_wal_the_folder_is_synced_too(open_writer):
    """A journal that comes back with the power takes an acknowledged change with it."""

    class WithoutWal(Connection):
        def execute(self, sql, *args):
            if sql == "PRAGMA journal_mode=WAL":
                raise sqlite3.OperationalError("locking protocol")
            return super().execute(sql, *args)

    def connect(path):
        return sqlite3.connect(path, isolation_level=None, factory=WithoutWal)

    writer = open_writer(Environment(connect_writer=connect))
    assert writer.connection.conn.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    assert writer.connection.conn.execute("PRAGMA synchronous").fetchone() == (3,)
    assert put(writer, "k") is None


# I/O errors.


def test_io_error_is_followed_by_a_new_connection(open_writer):
    """A full-text table remembers wrong totals of what such an error has rolled back."""
    fails = []

    class Failing(Connection):
        def execute(self, sql, *args):
            if fails and sql.startswith(fails[0]):
                fails.pop()
                raise failed(sqlite3.SQLITE_IOERR_READ)
            return super().execute(sql, *args)

    def connect(path):
        conn = connect_writer(path)
        conn.close()
        return sqlite3.connect(path, timeout=0, isolation_level=None, factory=Failing)

    writer = open_writer(Environment(connect_writer=connect), anchored=True)
    assert put(writer, "1") is None
    used, epoch = writer.connection.conn, writer.epoch
    fails.append("BEGIN IMMEDIATE")
    assert isinstance(put(writer, "2"), DiskIOError)
    assert put(writer, "3") is None
    assert writer.connection.conn is not used
    assert writer.epoch == epoch + 1
    with pytest.raises(sqlite3.ProgrammingError):
        used.execute("SELECT 1")
    # And it stays.
    current = writer.connection.conn
    assert put(writer, "4") is None
    assert writer.connection.conn is current


def test_io_error_goes_on_until_there_can_be_a_new_connection(open_writer):
    """The old one is kept meanwhile; the fault ends by itself (G11)."""
    broken = []

    def connect(path):
        if broken:
            raise failed(sqlite3.SQLITE_CANTOPEN)
        return connect_writer(path)

    writer = open_writer(Environment(connect_writer=connect))
    assert put(writer, "1") is None
    writer.connection.explain(failed(sqlite3.SQLITE_IOERR_READ))
    broken.append(True)
    for _ in range(3):
        assert isinstance(put(writer, "2"), CannotOpen)
    broken.clear()
    assert put(writer, "3") is None


def test_anchor_that_cannot_be_opened_is_a_typed_error(open_writer):
    def refuse(_path):
        raise failed(sqlite3.SQLITE_CANTOPEN)

    with pytest.raises(CannotOpen):
        open_writer(Environment(connect_reader=refuse), anchored=True)
    assert put(open_writer(anchored=True), "k") is None


# A full disk.


@pytest.mark.skipif(not own_mounts(), reason="needs a disk of its own")
def test_restore_that_fills_the_disk_is_reported_as_what_it_is():
    """The new content is durable in the WAL; only to fold it into the file lacks room."""
    code = """
    import json, sqlite3
    from contextlib import closing
    from support.subprocess_env import small_disk
    from hermes_actor.engine.jobs import Request
    from hermes_actor.engine.admin_tasks import maintain
    from hermes_actor.engine.writer import Writer
    from hermes_actor.paths import resolve_paths
    from hermes_protocol.operations import MetaSet

    with small_disk() as (folder, disk):
        place = resolve_paths(folder / "state.db")
        place.folder.mkdir(mode=0o700)
        writer = Writer(place, anchored=True)
        writer.run_batch([Request(MetaSet(key="before", value="v"))])
        copy = place.folder / "restore-copy.db"
        with (
            closing(sqlite3.connect(f"file:{place.db}?mode=ro", uri=True)) as source,
            closing(sqlite3.connect(copy)) as target,
        ):
            source.backup(target)
            target.execute("DELETE FROM state_meta")
            target.execute("INSERT INTO state_meta VALUES ('from the copy', zeroblob(1500000))")
            target.commit()
        disk.fill(leave=copy.stat().st_size * 4 // 3)
        before = writer.connection.commit_no
        result = maintain(writer, "restore", str(copy), float("inf"))
        position, _ = writer.changes.position_after(before)
        followed = [change.op for change in writer.changes.read(position, 10)[0]]
        with closing(sqlite3.connect(f"file:{place.db}?mode=ro", uri=True)) as conn:
            keys = [key for (key,) in conn.execute("SELECT key FROM state_meta")]
        unfolded = place.wal.stat().st_size > 0
        facts = (result["commit_no"], writer.connection.commit_no, writer.receipts.swept_through)
        copy.unlink()
        disk.free()
        (later,) = writer.run_batch([Request(MetaSet(key="later", value="v"))])
        writer.close()
        print(json.dumps([keys, followed, unfolded, facts, before, later.error is None]))
    """
    keys, followed, unfolded, facts, before, later = run_python(code, prefix=own_mounts())
    assert keys == ["from the copy"]
    assert set(facts) == {before + 1}
    assert (followed, unfolded, later) == (["restore"], True, True)
