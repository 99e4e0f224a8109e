"""Runs the recorded examples: groups of calls, in order, each group on a store of its own.

Nothing here imports the product: the module and the class under test are handed in, so the same
code can be pointed at another implementation.
"""

import ast
import builtins
import json
import os
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

EXAMPLES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "tests" / "data" / "sessiondb-examples.json").read_text("utf-8")
)

FOREIGN_KEY = "FOREIGN KEY constraint failed"

# What the tables of the specification say about a message beyond the `contains` of the data file.
MESSAGE_PARTS: dict[int, tuple[str, ...]] = {
    8: (FOREIGN_KEY,),
    59: (FOREIGN_KEY,),
    60: ("NOT NULL constraint failed: messages.role",),
    91: (FOREIGN_KEY,),
    112: ("too long", "101", "100"),
    119: ("already in use", "my project", "s1"),
    121: ("already in use", "my project", "s1"),
    122: ("too long", "150", "100"),
    201: (FOREIGN_KEY,),
    228: ("already linked",),
    229: (FOREIGN_KEY,),
    270: ("unable to open database file",),
}


@dataclass(frozen=True)
class Outcome:
    """What a row was expected to give and what it gave, both as text."""

    call: str
    expected: str
    got: str
    ok: bool

    def __str__(self) -> str:
        return f"\ncall:     {self.call}\nexpected: {self.expected}\ngot:      {self.got}"


def run_group(
    group: dict[str, Any],
    directory: Path,
    module: ModuleType,
    session_db: Callable[..., Any],
    sql: Callable[..., list[tuple[Any, ...]]] | None = None,
) -> dict[int, Outcome]:
    """Run one group on a fresh store in `directory` and return the outcome of each row.

    `sql(db, query, *args)` answers rows that read or change tables by SQL; by default the store
    itself does.
    """
    clock = SimpleNamespace(now=1000.0)
    opened: list[sqlite3.Connection] = []

    def connect(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        opened.append(sqlite3.connect(*args, **kwargs))
        return opened[-1]

    real_time, time.time = time.time, lambda: clock.now
    try:
        db = session_db(db_path=directory / "state.db")
        names = {
            "db": db,
            "hs": module,
            "SessionDB": session_db,
            "D": directory,
            "Path": Path,
            "os": os,
            "sqlite3": SimpleNamespace(connect=connect),
            "at": lambda t: setattr(clock, "now", float(t)),
            "SQL": lambda q, *args: (sql or by_store)(db, q, *args),
            "pick": lambda d, *keys: {key: d.get(key, "<absent>") for key in keys},
        }
        try:
            exec(group["setup"], names)
            return {row["n"]: run_row(row, names) for row in group["rows"]}
        finally:
            db.close()
    finally:
        time.time = real_time
        for connection in opened:
            connection.close()


def by_store(db: Any, query: str, *args: Any) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in db._conn.execute(query, args).fetchall()]


def run_row(row: dict[str, Any], names: dict[str, Any]) -> Outcome:
    *statements, last = ast.parse(row["call"]).body
    assert isinstance(last, ast.Expr)
    try:
        exec(compile(ast.Module(statements, []), f"row {row['n']}", "exec"), names)
        got = repr(eval(compile(ast.Expression(last.value), f"row {row['n']}", "eval"), names))
    except Exception as error:
        return judge_error(row, error)
    if "raises" in row:
        return Outcome(row["call"], f"raises {row['raises']}", got, ok=False)
    return Outcome(row["call"], row["result"], got, ok=got == row["result"])


def judge_error(row: dict[str, Any], error: Exception) -> Outcome:
    got = f"raises {type(error).__name__}: {error}"
    if "raises" not in row:
        return Outcome(row["call"], row["result"], got, ok=False)
    parts = {*MESSAGE_PARTS.get(row["n"], ()), row.get("contains", "")}
    cls = getattr(builtins, row["raises"], None) or getattr(sqlite3, row["raises"])
    ok = isinstance(error, cls) and all(part in str(error) for part in parts)
    return Outcome(row["call"], f"raises {row['raises']} with {sorted(parts)}", got, ok)
