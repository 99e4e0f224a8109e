"""Errors of the storage at a commit, in an operation and in a vacuum."""

import errno
import os
import sqlite3
from urllib.parse import quote

import pytest
from support.direct_writer import (
    append,
    assert_index_is_true,
    batch,
    index_everything,
    keys,
    put,
    run,
    sql,
)
from support.files import names, raw

from hermes_actor import exit_codes, limits
from hermes_actor.engine.environment import Environment
from hermes_actor.engine.jobs import Request
from hermes_actor.engine.writer import Writer
from hermes_actor.errors import (
    ActorBroken,
    Busy,
    ConstraintFailed,
    Damaged,
    DiskFull,
    DiskIOError,
    OutcomeUnknown,
    cannot_use,
)
from hermes_actor.paths import resolve_paths
from hermes_actor.sqlite import Connection
from hermes_actor.store.schema_features import features_of
from hermes_protocol.operations import (
    SessionCreate,
    SqlLease,
    Vacuum,
)


class Failing(Connection):
    """Fails the statements that a test names, and remembers all statements after that."""

    code = sqlite3.SQLITE_IOERR_FSYNC
    fail_on = ""
    times = 1000

    def execute(self, sql, *args):
        if self.later is not None:
            self.later.append(sql)
        if self.fail_on and sql.startswith(self.fail_on) and self.times > 0:
            self.times -= 1
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = self.code
            error.sqlite_errorname = "SQLITE_TEST"
            if self.later is None:
                self.later = []
            raise error
        return super().execute(sql, *args)

    def __init__(self, *args, **kwargs):
        self.later = None
        super().__init__(*args, **kwargs)


@pytest.fixture
def failing(open_writer, path):
    def connect(file):
        return sqlite3.connect(
            f"file:{quote(str(file))}?mode=rw", uri=True, timeout=0, isolation_level=None,
            factory=Failing,
        )  # fmt: skip

    writer = open_writer(Environment(connect_writer=connect))
    run(writer, SessionCreate(id="s", source="cli", started_at=1.0))
    return writer


@pytest.mark.parametrize("code", [sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_WRITE])
@pytest.mark.parametrize("count", [1, 3])
def test_failed_commit_leaves_the_outcome_open_and_breaks_the_writer(failing, path, code, count):
    failing.connection.conn.fail_on, failing.connection.conn.code = "COMMIT", code
    outcomes = batch(failing, *(put(str(n)) for n in range(count)))
    assert [type(outcome.error) for outcome in outcomes] == [OutcomeUnknown] * count
    assert {outcome.error.executed for outcome in outcomes} == {"unknown"}
    assert {outcome.commit_no for outcome in outcomes} == {None}
    failing.connection.conn.fail_on = ""
    later = batch(failing, put("later"))
    assert isinstance(later[0].error, ActorBroken)
    assert "disk I/O error" in str(later[0].error)
    with pytest.raises(ActorBroken):
        failing.leases.begin(float("inf"))
    with pytest.raises(ActorBroken):
        failing.index.run_slice(1.0)
    failing.checkpointer.run_if_due(waiting=False)
    assert failing.idle_slice() is None
    failing.close()
    # The connection is neither rolled back, nor checkpointed, nor closed.
    assert failing.connection.conn.later == []
    assert failing.connection.conn.in_transaction


def test_failed_commit_of_a_lease_breaks_the_writer(failing):
    failing.leases.begin(float("inf"))
    failing.leases.run(sql("INSERT INTO state_meta VALUES ('k', 'v')"))
    failing.connection.conn.fail_on = "COMMIT"
    outcome = failing.leases.end(Request(SqlLease(lease=0)))
    assert isinstance(outcome.error, OutcomeUnknown)
    assert isinstance(batch(failing, put("later"))[0].error, ActorBroken)


def test_failed_commit_of_an_index_slice_breaks_the_writer(failing):
    run(failing, append("x"))
    failing.connection.conn.fail_on = "COMMIT"
    with pytest.raises(OutcomeUnknown):
        failing.index.run_slice(1.0)
    assert isinstance(batch(failing, put("later"))[0].error, ActorBroken)


def test_failed_sync_in_the_barrier_breaks_the_writer(open_writer, path):
    """After a failed sync a later one may succeed without having saved anything."""

    def connect(file):
        conn = sqlite3.connect(file, timeout=0, isolation_level=None, factory=Failing)
        conn.execute("PRAGMA foreign_keys = ON")
        return conn

    open_writer().close()
    writer = open_writer(Environment(connect_writer=connect))
    writer.connection.conn.fail_on, writer.connection.conn.times = "COMMIT", 1
    (outcome,) = batch(writer, put("1"))
    assert isinstance(outcome.error, DiskIOError | OutcomeUnknown)
    assert isinstance(batch(writer, put("2"))[0].error, ActorBroken)
    assert keys(path) == []


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (sqlite3.SQLITE_FULL, DiskFull),
        (sqlite3.SQLITE_BUSY, Busy),
        (sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY, ConstraintFailed),
    ],
)
def test_refused_commit_is_not_executed_and_the_writer_goes_on(
    failing, path, code, kind, monkeypatch
):
    monkeypatch.setattr(limits, "COMMIT_BUSY_SECONDS", 0.0)
    failing.connection.conn.fail_on, failing.connection.conn.code = "COMMIT", code
    outcomes = batch(failing, put("1"), put("2"))
    assert [type(outcome.error) for outcome in outcomes] == [kind, kind]
    assert {outcome.error.executed for outcome in outcomes} == {"no"}
    failing.connection.conn.fail_on = ""
    assert keys(path) == []
    assert [outcome.commit_no for outcome in batch(failing, put("3"), put("4"))] == [2, 3]


def test_damage_that_a_commit_meets_is_not_executed_and_stops_changes(failing, path):
    """FTS5 and the tables are looked at before SQLite writes anything: no sync has failed."""
    failing.connection.conn.fail_on, failing.connection.conn.code = "COMMIT", sqlite3.SQLITE_CORRUPT
    outcomes = batch(failing, put("1"), put("2"))
    assert [type(outcome.error) for outcome in outcomes] == [Damaged, ActorBroken]
    assert {outcome.error.executed for outcome in outcomes} == {"no"}
    failing.connection.conn.fail_on = ""
    assert failing.connection.broken is None
    assert not resolve_paths(path).fsync_failed.exists()
    assert keys(path) == []


@pytest.mark.parametrize(("count", "times"), [(1, 1), (3, 2)])
def test_damaged_index_that_a_commit_meets_costs_nothing(failing, path, count, times):
    run(failing, append("walrus"))
    failing.connection.conn.code, failing.connection.conn.times = sqlite3.SQLITE_CORRUPT_VTAB, times
    failing.connection.conn.fail_on = "COMMIT"
    run(failing, *(put(str(n)) for n in range(count)))
    assert keys(path) == [str(n) for n in range(count)]
    assert failing.connection.broken is None
    index_everything(failing)
    assert failing.index.rebuilds == 1
    assert_index_is_true(path)


class Interfering(Failing):
    """Another program acts while the file is rewritten."""

    meanwhile = staticmethod(lambda: None)

    def execute(self, sql, *args):
        done = super().execute(sql, *args)
        if sql == "VACUUM":
            self.meanwhile()
        return done


@pytest.fixture
def interfered(open_writer, path):
    def connect(file):
        return sqlite3.connect(file, timeout=0, isolation_level=None, factory=Interfering)

    writer = open_writer(Environment(connect_writer=connect))
    run(writer, put("1"))
    return writer


@pytest.mark.parametrize("code", [sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_WRITE])
def test_failed_sync_of_a_vacuum_breaks_the_writer(failing, path, code):
    failing.connection.conn.fail_on, failing.connection.conn.code = "VACUUM", code
    (outcome,) = batch(failing, Vacuum())
    assert isinstance(outcome.error, DiskIOError | ActorBroken)
    assert failing.connection.exit_code == exit_codes.FSYNC_FAILED
    assert resolve_paths(path).fsync_failed.exists()
    failing.connection.conn.fail_on = ""
    assert isinstance(batch(failing, put("later"))[0].error, ActorBroken)


def test_vacuum_without_room_changes_nothing(failing, path):
    failing.connection.conn.fail_on, failing.connection.conn.code = "VACUUM", sqlite3.SQLITE_FULL
    (outcome,) = batch(failing, Vacuum())
    assert isinstance(outcome.error, DiskFull)
    failing.connection.conn.fail_on = ""
    run(failing, put("later"))


def test_file_that_is_replaced_during_a_vacuum_stops_the_writer(interfered, path):
    def replace():
        copy = path.with_name("copy.db")
        with raw(copy) as other:
            other.execute("CREATE TABLE theirs (id)")
        os.replace(copy, path)

    interfered.connection.conn.meanwhile = replace
    (outcome,) = batch(interfered, Vacuum())
    assert isinstance(outcome.error, ActorBroken)
    assert interfered.connection.exit_code == exit_codes.FILES_REPLACED
    assert names(path, "table") == {"theirs"}


def test_owner_that_comes_during_a_vacuum_fences_the_old_one(interfered, path):
    def take_over():
        with raw(path) as other:
            other.execute("UPDATE hermes_actor_meta SET value = value + 1 WHERE key = 'epoch'")

    interfered.connection.conn.meanwhile = take_over
    (outcome,) = batch(interfered, Vacuum())
    assert isinstance(outcome.error, ActorBroken)
    assert interfered.connection.exit_code == exit_codes.FENCED


def test_failed_sync_of_an_extra_index_breaks_the_writer(failing, path):
    with raw(path) as foreign:
        foreign.execute("DROP INDEX hermes_actor_messages_time")
    conn = failing.connection.conn
    while "hermes_actor_messages_time" in features_of(conn).indexes:
        failing.index.run_slice(1.0)
    while failing.index.fill_gaps():
        pass
    conn.fail_on = "COMMIT"
    with pytest.raises(OutcomeUnknown):
        failing.idle_slice()
    assert failing.connection.exit_code == exit_codes.FSYNC_FAILED


def test_batch_that_is_too_big_for_the_disk_goes_through_one_by_one(failing, path):
    failing.connection.conn.fail_on, failing.connection.conn.code = "COMMIT", sqlite3.SQLITE_FULL
    failing.connection.conn.times = 1
    assert [outcome.commit_no for outcome in batch(failing, put("1"), put("2"))] == [2, 3]
    assert keys(path) == ["1", "2"]


@pytest.mark.parametrize("code", [sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_READ])
def test_storage_error_inside_an_operation_costs_only_that_operation(
    failing, path, code, monkeypatch
):
    # Of the disk, and so of every connection: all at once, and again with a way back for each.
    monkeypatch.setattr(Failing, "fail_on", "INSERT INTO messages")
    monkeypatch.setattr(Failing, "code", code)
    outcomes = batch(failing, put("1"), append("x"), put("2"))
    assert isinstance(outcomes[1].error, DiskFull | DiskIOError)
    assert [outcome.commit_no for outcome in outcomes] == [2, None, 3]
    assert keys(path) == ["1", "2"]


def test_error_that_does_not_come_again_costs_nothing(failing, path):
    failing.connection.conn.code, failing.connection.conn.times = sqlite3.SQLITE_IOERR_READ, 1
    failing.connection.conn.fail_on = "INSERT INTO state_meta"
    suspect = failing.connection.conn
    outcomes = batch(failing, put("1"), put("2"))
    assert [outcome.commit_no for outcome in outcomes] == [2, 3]
    assert keys(path) == ["1", "2"]
    # What a full-text table remembers of the failed try went with its connection.
    assert failing.connection.conn is not suspect


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_no_room_for_a_file_is_a_full_disk_also_by_a_quota(path, monkeypatch, number):
    full = OSError(number, os.strerror(number))
    assert isinstance(cannot_use(path, "a side file", full), DiskFull)

    def refuse(*arguments, **named):
        raise full

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(DiskFull, match=os.strerror(number)):
        Writer(resolve_paths(path))
