"""Many rows, or many statements, in as few requests as possible."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, Self

from hermes_actor.dbapi.parameters import Bound, bind, many, size_of
from hermes_actor.dbapi.statements import one_by_one, words
from hermes_protocol.operations import SqlStep

__all__ = ["TriedRows", "chunks", "count_together", "one_each"]

_CHUNK_ROWS = 5_000
_CHUNK_BYTES = 512 * 1024
_CHUNK_STEPS = 500


class TriedRows:
    """Rows of ``executemany``, one by one; remembers the last one that was taken."""

    def __init__(self, rows: Iterable[Any]) -> None:
        self._rows = iter(rows)
        self.last: Any = ()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        self.last = next(self._rows)
        return self.last


def chunks(sql: str, rows: Iterator[Any]) -> Iterator[SqlStep]:
    """Yield steps for *rows*, each of one form of parameters and not too large.

    If making the rows fails, those before are yielded first: they would have been executed.
    """
    chunk: list[Bound] = []
    size = 0
    try:
        for row in rows:
            bound = bind(row, sql)
            is_full = len(chunk) >= _CHUNK_ROWS or size >= _CHUNK_BYTES
            if chunk and (is_full or type(chunk[0]) is not type(bound)):
                full, chunk, size = chunk, [], 0
                yield many(sql, full)
            chunk.append(bound)
            values = bound.values() if isinstance(bound, dict) else bound
            size += sum(size_of(value) for value in values)
    except Exception:
        if chunk:
            yield many(sql, chunk)
        raise
    if chunk:
        yield many(sql, chunk)


def one_each(steps: list[SqlStep]) -> list[SqlStep]:
    """Return a step for each time that a statement of *steps* runs."""
    single: list[SqlStep] = []
    for one in steps:
        if one.rows is not None:
            single += [SqlStep(sql=one.sql, parameters=row) for row in one.rows]
        elif one.named_rows is not None:
            single += [SqlStep(sql=one.sql, named=row) for row in one.named_rows]
        else:
            single.append(one)
    return single


def count_together(statements: list[str], start: int) -> int:
    """Return how many statements from *start* can be sent in one request; at least 1."""
    together = size = 0
    for sql in itertools.islice(statements, start, None):
        size += len(sql)
        if one_by_one(*words(sql)) or together == _CHUNK_STEPS or size > _CHUNK_BYTES:
            break
        together += 1
    return max(1, together)
