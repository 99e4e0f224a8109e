"""Copies of a whole agent store: to another provider, verified, and from rows of any source."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from hermes_actor.agents.questions.pages import comparable, page
from hermes_actor.agents.rows import Row
from hermes_actor.agents.tables import TABLES, Table
from hermes_actor.errors import CannotMigrate, RequestError
from hermes_protocol.agents import AgentsCopy

if TYPE_CHECKING:
    from hermes_actor.agent_store.store import AgentStore

__all__ = ["Copied", "copy_rows", "move"]

_AT_ONCE = 200
_CHARACTERS_AT_ONCE = 2**20
"""Of one operation, unless a single row has more: others wait while it is applied (G13)."""
_BYTES_AT_ONCE = 2**23
"""Of the rows that are held in memory, unless a single row has more (G8)."""
Tell = Callable[[int, int], None]


class Copied(NamedTuple):
    """Rows of one table that are new, those that were there, and those left out with a reason."""

    new: int
    there: int
    left_out: list[str]


def _pages(store: AgentStore, table: Table) -> Iterator[list[Row]]:
    after = None
    while some := store.ask(page, table.name, after, _AT_ONCE, _BYTES_AT_ONCE):
        yield some
        after = [some[-1][name] for name in table.whole_key]


def move(source: AgentStore, target: AgentStore, tell: Tell) -> dict[str, int]:
    """Copy every row of *source* into the empty *target* and compare; return rows by table.

    The source is only read. Raises :class:`CannotMigrate` if the target has rows, or if the copy
    differs, because the source was changed meanwhile.
    """
    counts, filled = source.agents.counts(), target.agents.counts()
    if any(filled.values()):
        name = next(name for name, count in filled.items() if count)
        raise CannotMigrate(f"{target.port.address} has rows in {name}; choose an empty target")
    total, done = 2 * sum(counts.values()), 0
    for table in TABLES.values():
        for some in _batches(chain.from_iterable(_pages(source, table))):
            target.submit(AgentsCopy(table=table.name, rows=some))
            done += len(some)
            tell(done, total)
    for table in TABLES.values():
        done += _compare(source, target, table)
        tell(done, total)
    return counts


def _compare(source: AgentStore, target: AgentStore, table: Table) -> int:
    seen = 0
    ours, theirs = _rows(source, table), _rows(target, table)
    for row in ours:
        if next(theirs, None) != row:
            key = ", ".join(str(row[name]) for name in table.whole_key)
            raise CannotMigrate(
                f"{table.thing} {key} differs in the copy: the source was changed meanwhile. Stop"
                " the programs that write it, and copy into an empty target"
            )
        seen += 1
    if next(theirs, None) is not None:
        raise CannotMigrate(f"the copy has more rows in {table.name} than the source")
    return seen


def _rows(store: AgentStore, table: Table) -> Iterator[Row]:
    for some in _pages(store, table):
        yield from (comparable(table, row) for row in some)


def copy_rows(target: AgentStore, table: Table, rows: Iterable[Row]) -> Copied:
    """Insert *rows* that are missing; those that cannot be taken are left out with a reason."""
    new = there = 0
    left_out: list[str] = []
    for some in _batches(rows):
        try:
            added = target.submit(AgentsCopy(table=table.name, rows=some))
            new, there = new + added, there + len(some) - added
        except RequestError:
            for row in some:
                try:
                    added = target.submit(AgentsCopy(table=table.name, rows=[row]))
                    new, there = new + added, there + 1 - added
                except RequestError as error:
                    key = ", ".join(str(row.get(name)) for name in table.whole_key)
                    left_out.append(f"{key}: {error}")
    return Copied(new, there, left_out)


def _batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    some: list[Row] = []
    size = 0
    for row in rows:
        length = sum(len(value) for value in row.values() if isinstance(value, str))
        if some and (len(some) == _AT_ONCE or size + length > _CHARACTERS_AT_ONCE):
            yield some
            some, size = [], 0
        some.append(row)
        size += length
    if some:
        yield some
