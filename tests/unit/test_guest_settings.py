"""Settings of guests' connections on the one write connection."""

import pytest

from hermes_actor.engine.guest_settings import GuestSettings
from hermes_actor.engine.jobs import Request
from hermes_actor.engine.writer import Writer
from hermes_actor.errors import NotAllowed
from hermes_actor.paths import resolve_paths
from hermes_actor.sqlite import connect_alone
from hermes_protocol.operations import MetaSet, SqlRun, SqlStep

CHILD = "INSERT INTO child VALUES (7)"


@pytest.fixture
def conn():
    conn = connect_alone()
    conn.execute("PRAGMA foreign_keys = 1")
    yield conn
    conn.close()


@pytest.fixture
def settings(conn):
    return GuestSettings(conn, {"foreign_keys": 1})


def value(conn, name):
    return conn.execute(f"PRAGMA {name}").fetchall()[0][0]


def test_settings_of_a_guest_are_those_of_a_new_connection_where_it_says_nothing(conn, settings):
    settings.apply({"recursive_triggers": 1, "secure_delete": "fast"})
    assert [value(conn, n) for n in ("foreign_keys", "recursive_triggers", "secure_delete")] == [
        0, 1, 2,
    ]  # fmt: skip
    assert settings.are_set({"recursive_triggers": 1, "secure_delete": 2})
    assert not settings.are_set(None)


def test_the_engine_gets_its_own_back(conn, settings):
    settings.apply({"recursive_triggers": 1, "case_sensitive_like": 1})
    assert conn.execute("SELECT 'A' LIKE 'a'").fetchall() == [(0,)]
    settings.apply(None)
    assert (value(conn, "foreign_keys"), value(conn, "recursive_triggers")) == (1, 0)
    assert conn.execute("SELECT 'A' LIKE 'a'").fetchall() == [(1,)]


def test_inside_a_transaction_what_sqlite_ignores_stays_known(conn, settings):
    conn.execute("BEGIN")
    settings.apply({"recursive_triggers": 1}, inside=True)
    conn.execute("COMMIT")
    assert (value(conn, "foreign_keys"), value(conn, "recursive_triggers")) == (1, 1)
    assert settings.are_set({"recursive_triggers": 1, "foreign_keys": 1})


@pytest.mark.parametrize(
    "asked", [{"synchronous": 0}, {"foreign_keys": "on; DROP TABLE t"}, {"journal_mode": "delete"}]
)
def test_other_settings_are_refused(settings, asked):
    with pytest.raises(NotAllowed):
        settings.apply(asked)


def test_what_sqlite_switches_off_is_set_in_each_transaction(conn, settings):
    for _ in range(2):
        settings.apply({"defer_foreign_keys": 1})
        conn.execute("BEGIN")
        settings.apply({"defer_foreign_keys": 1}, inside=True)
        assert value(conn, "defer_foreign_keys") == 1
        assert settings.are_set({"defer_foreign_keys": 1})
        conn.execute("COMMIT")
    settings.apply(None)
    assert settings.are_set(None)


# --- in the writer --------------------------------------------------------------------------------


@pytest.fixture
def writer(tmp_path):
    writer = Writer(resolve_paths(tmp_path / "state.db"))
    (outcome,) = writer.run_batch(
        [run("CREATE TABLE parent (id PRIMARY KEY)", "CREATE TABLE child (p REFERENCES parent)")]
    )
    assert outcome.error is None
    yield writer
    writer.close()


def run(*statements, **settings):
    return Request(SqlRun(steps=[SqlStep(sql=one) for one in statements], settings=settings))


def all_outcomes(writer, requests):
    outcomes = []
    while len(outcomes) < len(requests):
        outcomes += writer.run_batch(requests[len(outcomes) :])
    return outcomes


def test_each_request_of_a_batch_has_its_own_settings(writer):
    strict, lax = run(CHILD, foreign_keys=1), run(CHILD)
    outcomes = all_outcomes(writer, [lax, strict, Request(MetaSet(key="k")), lax, strict])
    errors = [getattr(one.result, "error", None) for one in outcomes]
    assert [error and error.name for error in errors] == [
        None, "SQLITE_CONSTRAINT_FOREIGNKEY", None, None, "SQLITE_CONSTRAINT_FOREIGNKEY",
    ]  # fmt: skip


def test_a_batch_ends_where_the_settings_differ(writer):
    assert len(writer.run_batch([run(CHILD), run(CHILD, foreign_keys=1)])) == 1
    assert len(writer.run_batch([run(CHILD), Request(MetaSet(key="k"))])) == 1


def test_a_setting_that_is_not_allowed_refuses_its_request_alone(writer):
    good, bad = run(CHILD), run(CHILD, synchronous=0)
    outcomes = all_outcomes(writer, [bad, good, bad, good])
    assert [type(one.error) for one in outcomes] == [NotAllowed, type(None)] * 2


def test_a_lease_has_the_settings_of_its_holder_and_the_next_batch_its_own(writer):
    writer.leases.begin(float("inf"), {"foreign_keys": 0})
    reply = writer.leases.run(run(CHILD).operation)
    assert reply.error is None
    writer.leases.end(Request(MetaSet(key="commit")))
    (outcome,) = writer.run_batch([run(CHILD, foreign_keys=1)])
    assert outcome.result.error.name == "SQLITE_CONSTRAINT_FOREIGNKEY"
