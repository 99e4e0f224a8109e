"""Base of the subjects: the general operations on one table, for the scope of the store."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from inspect import isfunction
from typing import TYPE_CHECKING, Any, TypeAlias

from hermes_actor.agent_store.arguments import checked
from hermes_actor.agents import times
from hermes_actor.agents.questions import fleet
from hermes_actor.agents.records import record
from hermes_actor.agents.rows import Row
from hermes_actor.agents.tables import TABLES
from hermes_actor.agents.values import shown, whole_number
from hermes_actor.errors import BadValue
from hermes_protocol.agents import AgentsDelete, AgentsPatch, AgentsPut, PutResult

if TYPE_CHECKING:
    from hermes_actor.agent_store.store import AgentStore

__all__ = ["Names", "Numbers", "Records", "Subject", "clamped", "counted", "given", "mapping"]

# The subjects have a method ``list``, which hides the type of that name inside them.
Names: TypeAlias = list[str]
Numbers: TypeAlias = list[int]
Records: TypeAlias = list[Row]


def given(**values: Any) -> Row:
    """Return the values that are not ``None``."""
    return {name: value for name, value in values.items() if value is not None}


def clamped(limit: float) -> int:
    """Return *limit* as a whole number from 1 to 50. Raises :class:`BadValue`."""
    return max(1, min(50, counted(limit, "limit", None)))


def counted(value: Any, name: str, least: int | None = 0) -> int:
    """Return *value* as a whole number, at least *least*. Raises :class:`BadValue`."""
    try:
        number = int(value) if not isinstance(value, str) else None
    except (TypeError, ValueError, OverflowError):
        number = None
    if number is None:
        raise BadValue(f"{name} is a number, not {shown(value)}")
    whole_number(name, number)
    return number if least is None else max(least, number)


def mapping(value: Any, what: str) -> Mapping[str, Any]:
    """Return *value* if it is an object. Raises :class:`BadValue` that names it as *what*."""
    if not isinstance(value, Mapping):
        raise BadValue(f"{what} is an object, not {shown(value)}")
    return value


class Subject:
    """Methods about one table. The types of arguments are checked by their annotations."""

    def __init_subclass__(cls) -> None:
        for name, method in list(vars(cls).items()):
            if isfunction(method) and not name.startswith("_"):
                setattr(cls, name, checked(method))

    table: str

    def __init__(self, store: AgentStore) -> None:
        self._store = store

    @property
    def _scope(self) -> str | None:
        return self._store.agent_id if TABLES[self.table].scoped else None

    @property
    def _agent(self) -> str:
        """The agent of the store. Raises :class:`BadValue` if it has none."""
        if self._store.agent_id is None:
            raise BadValue("this store has no agent: open it with one, or use of()")
        return self._store.agent_id

    def _now(self, given: str | datetime | None = None) -> str:
        return self._store.now() if given is None else times.canonical(given)

    def _record(self, row: Mapping[str, Any]) -> Row:
        return record(TABLES[self.table], row)

    def _put(self, *rows: Row, mode: Any = "upsert", returning: bool = False) -> PutResult:
        return self._store.submit(
            AgentsPut(
                table=self.table,
                rows=list(rows),
                agent_id=self._scope,
                mode=mode,
                returning=returning,
            )
        )

    def _stored(self, row: Row, mode: Any = "upsert") -> Row:
        """Put a row and return it as it is stored."""
        return self._record(self._put(row, mode=mode, returning=True).rows[0])

    def _patch(
        self,
        key: Row,
        values: Row,
        *,
        add: dict[str, int] | None = None,
        expect: Row | None = None,
        missing: Any = "error",
    ) -> Row | None:
        found = self._store.submit(
            AgentsPatch(
                table=self.table,
                key=key,
                set=values,
                agent_id=self._scope,
                add=add or {},
                expect=expect or {},
                missing=missing,
            )
        )
        return None if found is None else self._record(found)

    def _patched(self, key: Row, values: Row, **options: Any) -> Row:
        """Change a row that must exist and return it."""
        found = self._patch(key, values, **options)
        assert found is not None
        return found

    def _delete(self, key: Row) -> dict[str, int]:
        return self._store.submit(AgentsDelete(table=self.table, key=key, agent_id=self._scope))

    def _row(self, key: Row) -> Row | None:
        """Return a row as it is stored."""
        return self._store.ask(fleet.find_row, self.table, self._scope, key)

    def _get(self, key: Row) -> Row | None:
        found = self._row(key)
        return None if found is None else self._record(found)

    def _rows(self, key: Row | None = None, limit: int | None = None) -> Records:
        if limit is not None:
            limit = counted(limit, "limit")
        return self._store.ask(fleet.list_rows, self.table, self._scope, key or {}, limit)

    def _list(self, key: Row | None = None, limit: int | None = None) -> Records:
        return [self._record(row) for row in self._rows(key, limit)]

    def _all(self, where: str = "1 = 1", values: Row | None = None) -> Records:
        """Return records of every agent, for an administrator."""
        return [
            self._record(row) for row in self._store.ask(fleet.all_of, self.table, where, values)
        ]
