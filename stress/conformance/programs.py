"""Programs of two to four connections, drawn by Hypothesis and run step by step on both sides.

One thread makes the steps, each connection waits for no lock: the order of events is that of the
program, and so is every answer. After each step both sides must agree on rows, counts, ids, errors
and the state of the transaction; the end of this module lists where they need not.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import strategies as st

__all__ = ["Disagreement", "Program", "Step", "compare", "programs", "reset"]

Connect = Callable[..., sqlite3.Connection]

SCHEMA = """
DROP TABLE IF EXISTS item; DROP TABLE IF EXISTS part; DROP TABLE IF EXISTS log;
DROP TABLE IF EXISTS extra; PRAGMA user_version = 0; DROP TABLE IF EXISTS exact;
DROP TABLE IF EXISTS made; DROP TABLE IF EXISTS raised; DROP TABLE IF EXISTS late;
DROP VIEW IF EXISTS names;
CREATE TABLE item(id INTEGER PRIMARY KEY, name TEXT UNIQUE, n INTEGER CHECK (n < 5));
CREATE TABLE part(id INTEGER PRIMARY KEY, item INTEGER REFERENCES item(id) ON DELETE CASCADE);
CREATE TABLE log(what TEXT);
CREATE TRIGGER item_added AFTER INSERT ON item
BEGIN INSERT INTO log VALUES ('added ' || new.name); END;
CREATE TABLE exact(id INTEGER PRIMARY KEY AUTOINCREMENT, n INTEGER NOT NULL) STRICT;
CREATE TABLE made(a INTEGER PRIMARY KEY, b AS (a * 2) STORED, c AS (b + 1) UNIQUE) WITHOUT ROWID;
CREATE TABLE raised(n);
CREATE TRIGGER raises BEFORE INSERT ON raised WHEN new.n > 0 BEGIN
    INSERT INTO log VALUES ('before ' || new.n);
    SELECT CASE new.n WHEN 1 THEN RAISE(ABORT, 'aborted') WHEN 2 THEN RAISE(FAIL, 'failed')
        WHEN 3 THEN RAISE(ROLLBACK, 'rolled back') WHEN 4 THEN RAISE(IGNORE) END;
END;
CREATE TABLE late(item INTEGER REFERENCES item(id) DEFERRABLE INITIALLY DEFERRED);
CREATE VIEW names AS SELECT name FROM item;
CREATE TRIGGER named INSTEAD OF INSERT ON names
BEGIN INSERT INTO item(name, n) VALUES (new.name, 0); END;
"""

CONTROL_WORDS = (
    "BEGIN", "BEGIN DEFERRED", "BEGIN IMMEDIATE", "BEGIN EXCLUSIVE", "COMMIT", "END", "ROLLBACK",
    "SAVEPOINT a", "SAVEPOINT b", "RELEASE a", "RELEASE b", "ROLLBACK TO a", "ROLLBACK TO b",
    "SAVEPOINT A", "ROLLBACK TRANSACTION TO SAVEPOINT b", "RELEASE SAVEPOINT a", "END TRANSACTION",
)  # fmt: skip

WRITES = (
    "INSERT INTO item(name, n) VALUES (:name, :n)",
    "INSERT OR IGNORE INTO item(name, n) VALUES (:name, :n)",
    "INSERT OR REPLACE INTO item(name, n) VALUES (:name, :n)",
    "INSERT OR ROLLBACK INTO item(name, n) VALUES (:name, :n)",
    "INSERT OR FAIL INTO item(name, n) VALUES (:name, 1), ('same', :n), (:name, 2)",
    "INSERT INTO item(name, n) VALUES (:name, :n) ON CONFLICT DO UPDATE SET n = 0",
    "INSERT INTO item(name, n) VALUES (:name, :n) RETURNING id, name",
    "INSERT INTO part(item) VALUES (:n)",
    "UPDATE item SET n = n + 1",
    "UPDATE item SET n = n - 1 WHERE name = :name RETURNING n",
    "DELETE FROM item WHERE name = :name",
    "DELETE FROM item",
    "WITH one(x) AS (SELECT :n) INSERT INTO log SELECT x FROM one",
    "INSERT INTO missing VALUES (:name)",
    "CREATE TABLE extra(x)",
    "CREATE TABLE IF NOT EXISTS extra(x)",
    "DROP TABLE extra",
    "ALTER TABLE extra ADD COLUMN y",
    "INSERT INTO extra(x) VALUES (:n)",
    "PRAGMA user_version = 3",
    "INSERT INTO exact(n) VALUES (:name)",
    "INSERT OR IGNORE INTO exact(id, n) VALUES (:n, :n)",
    "INSERT INTO exact(n) VALUES (zeroblob(:n))",
    "INSERT INTO made(a) VALUES (:n)",
    "INSERT INTO made(a) VALUES (:n) ON CONFLICT(a) DO UPDATE SET a = a + 10 RETURNING a, b, c",
    "UPDATE OR REPLACE made SET a = :n",
    "INSERT INTO raised(n) VALUES (:n)",
    "INSERT INTO raised(n) VALUES (0), (:n), (5)",
    "INSERT OR IGNORE INTO raised(n) SELECT n FROM item",
    "INSERT INTO late(item) VALUES (:n)",
    "INSERT INTO names VALUES (:name)",
    "INSERT INTO log VALUES (x'00ff'), (1.5), (NULL), (:name)",
    "REPLACE INTO item(id, name, n) VALUES (:n, :name, 1)",
    "UPDATE item SET name = name || 'x' FROM (SELECT :n AS m) WHERE n < m RETURNING *",
    "INSERT INTO item(name, n) SELECT name || 'y', n FROM item WHERE true"
    " ON CONFLICT(name) DO NOTHING",
    "DELETE FROM log WHERE what LIKE 'ADDED%'",
    "INSERT INTO log SELECT count(*) FROM sqlite_sequence WHERE name = 'exact'",
    "CREATE INDEX IF NOT EXISTS by_what ON log(what)",
    "CREATE UNIQUE INDEX once ON log(what)",
    "DROP INDEX by_what",
    "CREATE TABLE item(x)",
)

WITHOUT_ROWS = [sql for sql in WRITES[:13] if "RETURNING" not in sql]
"""For ``with``: SQLite does not commit before all rows are fetched; we have them all by then."""

MANY = [sql for sql in WRITES[:6] if "OR ROLLBACK" not in sql]
"""For ``executemany``: outside of a transaction SQLite commits row by row, so OR ROLLBACK undoes
one row; for us all rows are one change, of which nothing is left."""

READS = (
    "SELECT id, name, n FROM item ORDER BY id",
    "SELECT * FROM part ORDER BY id",
    "SELECT what FROM log",
    "SELECT count(*), sum(n) FROM item",
    "SELECT * FROM extra",
    "SELECT last_insert_rowid(), changes()",
    "SELECT n FROM item WHERE name = :name",
    "SELECT name FROM item ORDER BY nothing",
    "PRAGMA user_version",
    "PRAGMA foreign_keys",
    "SELECT * FROM exact, made",
    "SELECT n FROM raised",
    "SELECT item, typeof(item) FROM late",
    "SELECT hex(what), typeof(what) FROM log",
    "SELECT count(*) FROM log WHERE what LIKE 'ADDED%'",
    "PRAGMA defer_foreign_keys",
    "PRAGMA foreign_key_check",
    "PRAGMA table_info(extra)",
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :n) SELECT i FROM n",
    "VALUES (:n, :name), (1, 2)",
    "EXPLAIN QUERY PLAN SELECT * FROM item WHERE id = :n",
)

SETTINGS = (
    "PRAGMA foreign_keys = ON", "PRAGMA foreign_keys = OFF", "PRAGMA defer_foreign_keys = ON",
    "PRAGMA recursive_triggers = ON", "PRAGMA case_sensitive_like = ON",
    "PRAGMA ignore_check_constraints = ON", "PRAGMA ignore_check_constraints = OFF",
)  # fmt: skip

LEVELS = ("", None, "IMMEDIATE", "DEFERRED")


class Step(NamedTuple):
    """One call of connection *conn*: the name of a method, and the statement if it takes one."""

    conn: int
    call: str
    sql: str = ""
    name: str = ""
    n: int = 0


class Program(NamedTuple):
    """Isolation levels of the connections, and the steps that they make in turn."""

    levels: list[str | None]
    steps: list[Step]


class Answer(NamedTuple):
    """Everything that a program can see of a step."""

    rows: Any = None
    rowcount: int | None = None
    lastrowid: int | None = None
    error: str | None = None
    message: str = ""
    code: str | None = None
    in_transaction: bool = False
    total_changes: int = 0


class Disagreement(AssertionError):
    """A step that was answered in two ways."""


def _steps(count: int) -> st.SearchStrategy[Step]:
    conn, name = st.integers(0, count - 1), st.sampled_from(["one", "two", "same"])
    number = st.integers(0, 5)
    sql = st.one_of(*(st.sampled_from(kind) for kind in (CONTROL_WORDS, WRITES, READS)))
    return st.one_of(
        st.builds(Step, conn, st.just("execute"), sql, name, number),
        st.builds(Step, conn, st.just("execute"), st.sampled_from(WRITES[:12]), name, number),
        st.builds(Step, conn, st.sampled_from(["commit", "rollback"])),
        st.builds(Step, conn, st.just("with"), st.sampled_from(WITHOUT_ROWS), name, number),
        st.builds(Step, conn, st.just("executemany"), st.sampled_from(MANY), name, number),
        st.builds(Step, conn, st.just("executescript"), st.just(""), name, number),
        st.builds(Step, conn, st.just("execute"), st.sampled_from(SETTINGS)),
        st.builds(Step, conn, st.sampled_from(["failing", "asking"]), st.sampled_from(MANY), name,
                  number),
        st.builds(Step, conn, st.just("level"), st.sampled_from(["", "IMMEDIATE", "none"])),
        st.builds(Step, conn, st.just("reopen")),
    )  # fmt: skip


@st.composite
def programs(draw: st.DrawFn, steps: int = 25) -> Program:
    """Programs of up to so many steps."""
    count = draw(st.integers(2, 4))
    levels = [draw(st.sampled_from(LEVELS)) for _ in range(count)]
    return Program(levels, draw(st.lists(_steps(count), min_size=8, max_size=steps)))


def compare(program: Program, connect: Connect, path: Path, control: Path) -> int:
    """Run *program* on *path* through *connect* and on *control* with ``sqlite3``, a WAL file.

    Return the number of steps that were compared. Raises :class:`Disagreement`.
    """
    sides: tuple[tuple[Connect, Path], ...] = ((connect, path), (sqlite3.connect, control))
    with contextlib.ExitStack() as stack:
        ours, theirs = (_open(stack, *side, program.levels) for side in sides)
        for number, step in enumerate(program.steps):
            if step.call == "reopen":
                for conns, side in zip((ours, theirs), sides, strict=True):
                    conns[step.conn].close()
                    (conns[step.conn],) = _open(stack, *side, [program.levels[step.conn]])
                continue
            got, expected = _answer(ours[step.conn], step), _answer(theirs[step.conn], step)
            if _goes_its_own_way(got, expected):
                return number
            if _comparable(got) != _comparable(expected):
                raise Disagreement(f"step {number}, {step}:\n  ours    {got}\n  sqlite3 {expected}")
    for sql in READS[:3]:
        with contextlib.ExitStack() as stack:
            conns = [_open(stack, *side, [None])[0] for side in sides]
            got, expected = (_answer(conn, Step(0, "execute", sql)) for conn in conns)
        if got != expected:
            raise Disagreement(f"in the end, {sql}:\n  ours    {got}\n  sqlite3 {expected}")
    return len(program.steps)


def reset(connect: Connect, path: Path) -> None:
    """Have *path* begin as every program expects it."""
    with contextlib.closing(connect(path)) as conn:
        conn.execute("PRAGMA journal_mode=WAL")
        conn.executescript(SCHEMA)


def _open(
    stack: contextlib.ExitStack, connect: Connect, path: Path, levels: list[str | None]
) -> list[sqlite3.Connection]:
    conns = [connect(path, timeout=0, isolation_level=level) for level in levels]
    for conn in conns:
        stack.callback(conn.close)
    return conns


def _answer(conn: sqlite3.Connection, step: Step) -> Answer:
    values = {"name": step.name, "n": step.n}
    try:
        cursor = _make(conn, step, values)
        rows = cursor.fetchall() if cursor is not None and cursor.description else None
    except (sqlite3.Error, ValueError) as error:
        return Answer(
            error=type(error).__mro__[_own_classes(error)].__name__,
            message=str(error),
            code=getattr(error, "sqlite_errorname", None),
            in_transaction=conn.in_transaction,
            total_changes=conn.total_changes,
        )
    return Answer(
        rows=rows,
        rowcount=None if cursor is None else cursor.rowcount,
        lastrowid=None if cursor is None else cursor.lastrowid,
        in_transaction=conn.in_transaction,
        total_changes=conn.total_changes,
    )


def _make(conn: sqlite3.Connection, step: Step, values: dict[str, Any]) -> sqlite3.Cursor | None:
    match step.call:
        case "execute":
            return conn.execute(step.sql, values)
        case "executemany":
            more = [values, {"name": "many", "n": step.n}, {"name": step.name, "n": 1}]
            return conn.executemany(step.sql, more)
        case "failing" | "asking":
            return conn.executemany(step.sql, _rows(conn, step, values))
        case "level":
            conn.isolation_level = None if step.sql == "none" else step.sql  # type: ignore[assignment]
            return None
        case "executescript":
            return conn.executescript(
                f"INSERT INTO log VALUES ('script'); INSERT INTO item(name, n)"
                f" VALUES ('{step.name}', {step.n}); INSERT INTO log VALUES ('end');"
            )
        case "with":
            with conn:
                return conn.execute(step.sql, values)
        case "commit":
            conn.commit()
        case "rollback":
            conn.rollback()
    return None


def _rows(conn: sqlite3.Connection, step: Step, values: dict[str, Any]) -> Iterator[Any]:
    """Rows whose making fails half-way, or uses the connection that takes them."""
    yield values
    if step.call == "failing":
        yield {"name": "many", "n": step.n}
        raise ValueError("enough")
    # Not of the rows before: ours travel together.
    ((count,),) = conn.execute("SELECT count(*) FROM sqlite_master WHERE name = 'extra'").fetchall()
    yield {"name": f"of {count}", "n": count}


def _own_classes(error: Exception) -> int:
    """The place of the class of ``sqlite3`` among those of *error*: programs catch that one."""
    mro = type(error).__mro__
    return next(i for i, kind in enumerate(mro) if kind.__module__ in ("sqlite3", "builtins"))


# --- where both sides need not agree -----------------------------------------------------------


def _comparable(answer: Answer) -> Answer:
    """*answer* without what may differ.

    * After the words of SQLite we say which process holds the lock, and since when.
    """
    if answer.error is None:
        return answer
    first, _, _ = answer.message.partition(": ")
    return (
        answer._replace(message="database is locked") if first == "database is locked" else answer
    )


def _goes_its_own_way(got: Answer, expected: Answer) -> bool:
    """Whether the program ends here, since one side may go on where the other must not.

    * A transaction that has read, and writes after another one has committed: SQLite refuses,
      whatever was read. We repeat the reads, and refuse only if they differ.
    * A COMMIT that a deferred foreign key forbids: ours rolls back.
    * With a timeout of nothing, a writer that is at work on its own, on a checkpoint for example,
      is as good as locked.
    """
    if got.code == "SQLITE_BUSY" and "the writer was busy" in got.message:
        return True
    if "FOREIGN KEY" in expected.message and expected.in_transaction and not got.in_transaction:
        return True
    return expected.code == "SQLITE_BUSY_SNAPSHOT" and got.error is None
