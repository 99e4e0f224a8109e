"""``hermes_actor.dbapi`` is the standard module but for connections, and costs nothing unused."""

import inspect
import sqlite3
import threading
from contextlib import closing

import pytest
from support.processes import run_python

import hermes_actor
from hermes_actor import dbapi
from hermes_actor.dbapi.transaction import MOST_BYTES, MOST_STATEMENTS, Journal
from hermes_protocol.operations import SqlReply, SqlRun, SqlStep

OWN = {"Connection", "Cursor", "connect", "dbapi2"}


def test_every_public_name_of_sqlite3_is_there():
    # But for parts that it loads when they are needed, such as ``sqlite3.dump``.
    names = {
        name
        for name, value in vars(sqlite3).items()
        if not name.startswith("_") and (name == "dbapi2" or not inspect.ismodule(value))
    }
    different = {name for name in names if getattr(dbapi, name) is not getattr(sqlite3, name)}
    assert different == OWN
    assert names <= set(dbapi.__all__)
    assert dbapi.dbapi2 is dbapi
    assert (dbapi.apilevel, dbapi.paramstyle) == ("2.0", "qmark")


def test_own_classes_are_those_of_sqlite3():
    assert issubclass(dbapi.Connection, sqlite3.Connection)
    assert issubclass(dbapi.Cursor, sqlite3.Cursor)
    assert hermes_actor.connect is dbapi.connect


def test_parameters_of_connect_are_those_of_sqlite3():
    ours = inspect.signature(dbapi.connect).parameters
    documented = [
        "database", "timeout", "detect_types", "isolation_level", "check_same_thread", "factory",
        "cached_statements", "uri",
    ]  # fmt: skip
    assert list(ours)[: len(documented)] == documented
    with closing(sqlite3.connect(":memory:")) as native:
        assert ours["isolation_level"].default == native.isolation_level


def test_names_that_do_not_exist_do_not():
    with pytest.raises(AttributeError):
        dbapi.no_such_name  # noqa: B018
    with pytest.raises(AttributeError):
        hermes_actor.no_such_name  # noqa: B018


def test_other_programs_do_not_pay_for_it():
    loaded = run_python(
        """
        import json, sys
        from hermes_actor import SessionDB
        print(json.dumps([name for name in sys.modules if name.startswith("hermes_actor.dbapi")]))
        """
    )
    assert loaded == []


def test_journal_is_bounded():
    reply = SqlReply()
    run = SqlRun(steps=[SqlStep(sql="INSERT", parameters=["x" * 1_000_000])])
    large = Journal()
    for _ in range(MOST_BYTES // 1_000_000):
        large.add(run, reply)
    assert large.is_complete
    large.add(run, reply)
    assert not large.is_complete
    assert large.entries == []
    many = Journal()
    many.add(SqlRun(steps=[SqlStep(sql="INSERT", rows=[[1]] * MOST_STATEMENTS)]), reply)
    assert many.is_complete
    many.add(SqlRun(steps=[SqlStep(sql="INSERT")]), reply)
    assert not many.is_complete


def test_connection_that_was_never_opened_says_so():
    conn = dbapi.Connection.__new__(dbapi.Connection)
    for call in (
        conn.commit,
        conn.cursor,
        lambda: conn.execute("SELECT 1"),
        lambda: conn.total_changes,
    ):
        with pytest.raises(sqlite3.ProgrammingError):
            call()


def test_databases_of_a_thread_are_checked_by_sqlite3():
    conn = dbapi.connect(":memory:")
    raised = []

    def use():
        try:
            conn.execute("SELECT 1")
        except sqlite3.ProgrammingError as error:
            raised.append(error)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    conn.close()
    assert len(raised) == 1
