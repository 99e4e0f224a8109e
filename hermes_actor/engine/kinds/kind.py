"""The seam between the common engine and what one kind of file needs beyond it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from hermes_actor import limits
from hermes_actor.engine.authorizer import GuestRules
from hermes_actor.errors import NotAllowed
from hermes_protocol.messages import Changed

if TYPE_CHECKING:
    from hermes_actor.engine.checkpoint import Checkpointer
    from hermes_actor.engine.connection import WriteConnection
    from hermes_actor.engine.index.base import Index
    from hermes_actor.engine.startup.open_database import Opening
    from hermes_actor.sqlite import Connection
    from hermes_protocol.operations import Operation

__all__ = ["Kind", "LeaseLimits"]


class LeaseLimits(NamedTuple):
    """Times of an interactive transaction, in seconds."""

    total: float
    idle: float
    """Longest pause between two of its statements."""
    beside_others: float | None
    """Longest time while others wait to write; ``None``: they wait for as long as it may take."""

    def lasting(self, seconds: float, pause: float | None = None) -> LeaseLimits:
        """Return the limits of a long transaction, which may pause for as long as it lasts.

        With *pause* it is a migration, and may pause for that. Raises :class:`NotAllowed` for any
        other one where others must not wait for so long.
        """
        if pause is None and self.beside_others is not None:
            raise NotAllowed(
                f"a transaction on this kind of file may take {self.total:g} s: others wait"
            )
        longest = min(seconds, limits.LONG_LEASE_SECONDS)
        if longest <= 0:
            return self
        idle = longest if pause is None else min(pause, limits.MIGRATION_PAUSE_SECONDS)
        return LeaseLimits(longest, idle, beside_others=None)


class Kind(ABC):
    """One kind of file. It has no state of its own: everything is in the file."""

    name: str
    """The word in the file, on the wire and on the command line."""
    format: int
    """The number in the file by which an older build learns that it cannot own it."""
    own_sql: str
    """Creates the tables of ours that are missing."""
    newest_table: str
    """The table that *own_sql* got last: a file that has it has all of them."""
    settings: ClassVar[Mapping[str, int | str]]
    """Pragmas of the write connection that differ from SQLite's defaults, for the engine's work."""
    guests: GuestRules

    @property
    @abstractmethod
    def leases(self) -> LeaseLimits:
        """The limits of an interactive transaction."""

    @abstractmethod
    def prepare(self, opening: Opening) -> None:
        """Bring the schema up to date and set the journal mode. Raises errors of SQLite."""

    @abstractmethod
    def read_schema(self, conn: Connection) -> None:
        """Read what the kind must know of the schema, in a transaction that has just begun."""

    @abstractmethod
    def apply(self, conn: Connection, operation: Operation[Any]) -> Any:
        """Apply *operation* inside the open transaction and return its result.

        Raises a :class:`RequestError` or an ``sqlite3.Error``; the caller then undoes what the
        operation did so far.
        """

    def change_of(self, operation: Operation[Any], commit_no: int) -> Changed:
        """Return the notification of an applied operation, for subscribers."""
        return Changed(commit_no=commit_no, op=str(operation.__struct_config__.tag))

    @abstractmethod
    def index(
        self,
        connection: WriteConnection,
        checkpointer: Checkpointer,
        others_wait: Callable[[], bool],
    ) -> Index:
        """Return the indexes of ours in the file, with the work on them."""
