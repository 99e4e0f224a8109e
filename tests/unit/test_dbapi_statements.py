"""Words, scripts, pragmas, targets and parameters: what connections know without an actor."""

import datetime as dt
import os
import sqlite3
from pathlib import Path

import pytest

from hermes_actor.dbapi import pragmas
from hermes_actor.dbapi.parameters import bind, many, step
from hermes_actor.dbapi.requests import chunks, count_together
from hermes_actor.dbapi.statements import ends_transaction, is_rollback_to, split, words
from hermes_actor.dbapi.target import owned_target
from hermes_protocol.values import Blob, from_value


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("select 1", ("SELECT", "")),
        ("  -- a\n/* b */ begin\timmediate", ("BEGIN", "IMMEDIATE")),
        (";; insert into t", ("INSERT", "INTO")),
        ("BEGIN", ("BEGIN", "")),
        ("", ("", "")),
        ("-- only a remark", ("", "")),
        ("/* open", ("", "")),
        ("create temp table t(x)", ("CREATE", "TEMP")),
        ("BEGIN /* now */ IMMEDIATE", ("BEGIN", "IMMEDIATE")),
        (" " * 5000 + "1", ("", "")),  # in no time, however many blanks there are
    ],
)
def test_first_words(sql, expected):
    assert words(sql) == expected


@pytest.mark.parametrize(
    ("sql", "is_end"),
    [
        ("COMMIT", True),
        ("ROLLBACK /* a part */ TO x", False),
        (";ROLLBACK TO x", False),
        ("end transaction", True),
        ("ROLLBACK", True),
        ("ROLLBACK TO a", False),
        ("/* x */ rollback transaction to savepoint a", False),
        ("rollback -- to a", True),
        ("RELEASE a", False),
    ],
)
def test_ends_of_transactions(sql, is_end):
    assert ends_transaction(words(sql)[0], sql) is is_end
    assert is_rollback_to(sql) is (not is_end and words(sql)[0] == "ROLLBACK")


def test_script_is_split_as_sqlite_reads_it():
    script = """
        -- first; not a statement
        CREATE TABLE t (x DEFAULT ';');
        CREATE TRIGGER r AFTER INSERT ON t BEGIN UPDATE t SET x = 1; DELETE FROM t; END;
        ;
        /* last */ SELECT 1
    """
    parts = list(split(script))
    assert [words(part)[0] for part in parts] == ["CREATE", "CREATE", "SELECT"]
    assert "".join("".join(parts).split()) in "".join(script.split()).replace("END;;", "END;")


def test_statements_travel_together_up_to_transaction_control():
    statements = ["INSERT 1", "DELETE 2", "COMMIT", "SELECT 3"]
    assert [count_together(statements, start) for start in range(4)] == [2, 1, 1, 1]
    assert count_together(["INSERT 1", "CREATE TEMP TABLE t(x)"], 0) == 1
    assert count_together(["INSERT 1"] * 10_000, 0) == 500


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("PRAGMA foreign_keys = ON", ("foreign_keys", "ON")),
        ("pragma main . user_version", ("user_version", None)),
        ("/* x */PRAGMA Table_Info('t')", ("table_info", "t")),
        ('PRAGMA "main".cache_size=-2000;', ("cache_size", "-2000")),
        ("PRAGMA /* x */ foreign_keys=1", ("foreign_keys", "1")),
        ('PRAGMA "foreign_keys"=1', ("foreign_keys", "1")),
        ("PRAGMA", None),
        ("SELECT 1", None),
    ],
)
def test_pragmas_are_read(sql, expected):
    assert pragmas.parse(sql) == expected


def test_tables_of_pragmas_do_not_overlap():
    tables = [pragmas.SETTINGS, pragmas.OWNERS, frozenset(pragmas.ANSWERED), pragmas.LOCAL]
    assert sum(map(len, tables)) == len(frozenset().union(*tables))
    known = {name for (name,) in sqlite3.connect(":memory:").execute("PRAGMA pragma_list")}
    assert frozenset().union(*tables) - known <= {"trusted_schema"}


# --- targets -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("database", "uri"),
    [
        (":memory:", False),
        ("", False),
        ("file::memory:", True),
        ("file:x.db?mode=memory&cache=shared", True),
        ("file:x.db?mode=ro", True),
        ("file:x.db?immutable=1", True),
        ("file:x.db?vfs=unix-none", True),
        ("file:x.db?mode=other", True),
        ("file://elsewhere/x.db", True),
        ("a\0b", False),
        (5, False),
    ],
)
def test_databases_without_an_owner(database, uri):
    assert owned_target(database, uri) is None


@pytest.mark.parametrize(
    ("database", "uri", "name"),
    [
        ("x.db", False, "x.db"),
        (b"x.db", False, "x.db"),
        (Path("x.db"), False, "x.db"),
        ("file:x.db", False, "file:x.db"),
        ("file:x%20y.db?cache=private#part", True, "x y.db"),
        ("file:x.db?mode=rw", True, "x.db"),
    ],
)
def test_files_have_an_owner(database, uri, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    target = owned_target(database, uri)
    assert target.paths.db == tmp_path.resolve() / name
    assert not target.has_content()
    assert target.may_be_made() is ("mode=rw" not in os.fsdecode(database))


def test_file_in_no_folder_is_left_to_sqlite(tmp_path):
    assert not owned_target(tmp_path / "no" / "x.db", False).may_be_made()
    assert not owned_target(tmp_path, False).may_be_made()


# --- parameters ----------------------------------------------------------------------------------


class Point:
    def __init__(self, x):
        self.x = x

    def __conform__(self, protocol):
        return f"point {self.x}" if protocol is sqlite3.PrepareProtocol else None


class Number(int):
    pass


class Text(str):
    __slots__ = ()


def stored(values):
    """What SQLite gives back, with its type, for each of *values*."""
    columns = ", ".join("?, typeof(?)" for _ in values)
    doubled = [value for value in values for _ in range(2)]
    return sqlite3.connect(":memory:").execute(f"SELECT {columns}", doubled).fetchone()


VALUES = [
    None, 1, -(2**63), 2**63 - 1, 1.5, "text ä", b"\0\xff", bytearray(b"x"), memoryview(b"y"), True,
    Number(7), Text("t"), Point(3), dt.date(2026, 3, 1),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_values_are_bound_as_sqlite3_binds_them(value):
    bound = bind([value], "")
    assert stored([from_value(bound[0])]) == stored([value])
    named = bind({"a": value}, "SELECT :a")
    assert stored([from_value(named["a"])]) == stored([value])


@pytest.mark.parametrize(
    ("parameters", "sql"),
    [
        ([2**63], "SELECT ?"),
        ([object()], "SELECT ?"),
        ({"a": object()}, "SELECT :a"),
        (5, "SELECT ?"),
        ([1, {}], "SELECT ?, ?"),
    ],
)
def test_refusals_are_those_of_sqlite3(parameters, sql):
    with pytest.raises(Exception) as native:  # noqa: PT011 - whatever it is
        sqlite3.connect(":memory:").execute(sql, parameters)
    with pytest.raises(type(native.value)) as ours:
        bind(parameters, sql)
    assert str(ours.value) == str(native.value)


def test_only_names_of_the_statement_are_bound():
    class Made(dict):
        def __missing__(self, name):
            return f"made {name}"

    assert bind({"a": 1, "b": object()}, "SELECT :a") == {"a": 1}
    assert bind(Made(), "SELECT @x, $y") == {"x": "made x", "y": "made y"}


def test_adapters_of_base_types_are_used():
    sqlite3.register_adapter(int, lambda value: f"int {value}")
    try:
        assert bind([5, Number(5)], "") == ["int 5", 5]
    finally:
        del sqlite3.adapters[(int, sqlite3.PrepareProtocol)]
    assert bind([5], "") == [5]


def test_rows_are_sent_in_few_steps_of_one_form():
    rows = [(1,), (2,), {"a": 3}, (4,)]
    steps = list(chunks("INSERT", iter(rows)))
    assert steps == [
        many("INSERT", [[1], [2]]),
        many("INSERT", [{}]),
        many("INSERT", [[4]]),
    ]
    assert len(list(chunks("INSERT", ((n,) for n in range(12_000))))) == 3
    assert len(list(chunks("INSERT", ((b"x" * 300_000,) for _ in range(5))))) == 3


def test_rows_before_one_that_fails_are_sent_first():
    def rows():
        yield (1,)
        raise ZeroDivisionError

    found = chunks("INSERT", rows())
    assert next(found) == many("INSERT", [[1]])
    with pytest.raises(ZeroDivisionError):
        next(found)


def test_steps_carry_either_form():
    assert step("S", [1, Blob(b"x")]).parameters == [1, Blob(b"x")]
    assert step("S", {"a": 1}).named == {"a": 1}
