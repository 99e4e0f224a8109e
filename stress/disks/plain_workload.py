"""The workload of a plain file: runs and leases of programs, and statements that fail in them."""

from __future__ import annotations

import contextlib
import random
import sqlite3
from pathlib import Path

from disks.bench import Bench
from hermes_actor.engine.checkpoint import Action
from hermes_protocol import operations as ops
from hermes_protocol.values import Value

__all__ = ["create_tables", "plain_file", "plain_work"]

_SCHEMA = """
PRAGMA journal_mode = WAL;
CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT UNIQUE, body TEXT);
CREATE TABLE part (id INTEGER PRIMARY KEY, item REFERENCES item (name) ON DELETE CASCADE);
CREATE TRIGGER parted AFTER INSERT ON item BEGIN INSERT INTO part (item) VALUES (new.name); END;
"""

_INSERT = "INSERT INTO item (name, body) VALUES (?, ?)"

_Work = tuple[str, ops.SqlRun]


def create_tables(path: Path) -> None:
    """Make a file as another program makes it; its owner adds what it needs."""
    with contextlib.closing(sqlite3.connect(path)) as conn:
        conn.executescript(_SCHEMA)


class _Runs:
    """Runs of three programs, each of which changes something."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._number = 0

    def _row(self) -> list[Value]:
        self._number += 1
        return [f"n{self._number}", "walrus " * self._chance.randrange(1, 300)]

    def _insert(self, sql: str = _INSERT) -> ops.SqlStep:
        return ops.SqlStep(sql=sql, parameters=self._row())

    def _again(self, sql: str) -> ops.SqlStep:
        """A row whose name is there already."""
        return ops.SqlStep(sql=sql, parameters=[f"n{self._number}", "again"])

    def one(self, settings: dict[str, int | str] | None = None) -> _Work:
        """A run of one of the forms that programs use."""
        forms = (self._single, self._many, self._failing, self._removing, self._table)
        return self._run(self._chance.choice(forms)(), settings or {})

    def _run(self, steps: list[ops.SqlStep], settings: dict[str, int | str]) -> _Work:
        run = ops.SqlRun(steps=[self._insert(), *steps], settings=settings)
        return self._chance.choice(["ann", "bob", "cyd"]), run

    def _single(self) -> list[ops.SqlStep]:
        return []

    def _many(self) -> list[ops.SqlStep]:
        return [ops.SqlStep(sql=_INSERT, rows=[self._row() for _ in range(5)])]

    def _failing(self) -> list[ops.SqlStep]:
        """What came before the error is kept."""
        return [self._again(_INSERT)]

    def ending(self) -> _Work:
        """A run that rolls back the whole transaction: it is applied again without its end."""
        return self._run([self._again(_INSERT.replace("INSERT", "INSERT OR ROLLBACK", 1))], {})

    def _removing(self) -> list[ops.SqlStep]:
        return [
            ops.SqlStep(sql="UPDATE item SET body = body || 'x' WHERE id % 3 = 0"),
            ops.SqlStep(sql="DELETE FROM part WHERE id % 7 = 1"),
            ops.SqlStep(sql="DELETE FROM item WHERE name NOT IN (SELECT item FROM part)"),
        ]

    def _table(self) -> list[ops.SqlStep]:
        return [
            ops.SqlStep(sql="CREATE TABLE IF NOT EXISTS more (x)"),
            ops.SqlStep(sql="INSERT INTO more SELECT body FROM item"),
            ops.SqlStep(sql="DROP TABLE more"),
        ]

    def several(self) -> list[_Work]:
        """Runs of one batch, under the same settings, or leases that share a sync."""
        settings: dict[str, int | str] = self._chance.choice([{}, {"foreign_keys": 1}])
        return [self.one(settings) for _ in range(self._chance.choice([1, 2, 4]))]


def _turns(bench: Bench, runs: _Runs, turns: int) -> None:
    for turn in range(turns):
        bench.do(*runs.several())
        bench.leases(*runs.several())
        bench.do(runs.ending())
        if turn % 2:
            bench.checkpoint(Action.TRUNCATE if turn % 4 == 1 else Action.PASSIVE)


def plain_file(bench: Bench) -> None:
    """Batches and leases, checkpoints, idle time, and another owner."""
    runs = _Runs(bench.seed + 19)
    bench.open()
    _turns(bench, runs, 6)
    bench.idle(5.0)
    bench.close()
    bench.open(anchored=False)
    bench.do(*runs.several())
    bench.close()


def plain_work(bench: Bench) -> None:
    """A bit of everything; then the fault ends, and one more change is tried."""
    runs = _Runs(bench.seed + 23)
    bench.open()
    _turns(bench, runs, 2)
    bench.idle(5.0)
    bench.do(*runs.several())
    bench.end_of_fault()
    bench.do(runs.one())
    bench.close()
