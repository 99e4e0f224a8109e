"""The way from a SessionDB to the one writer, whoever runs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from hermes_protocol.operations import Operation, SqlResult, SqlStatement

__all__ = ["Answer", "Lease", "WriterPort"]

R = TypeVar("R")


class Lease(Protocol):
    """One interactive transaction of the writer. Ends by commit or rollback, or by its limits."""

    def execute(self, statement: SqlStatement) -> SqlResult: ...

    def commit(self) -> None: ...

    def rollback(self) -> None: ...


class Answer(Protocol):
    """The answer to one operation, when it comes."""

    def done(self) -> bool: ...

    def result(self) -> Any:
        """Wait for it: the result, or the error raised."""
        ...


class WriterPort(Protocol):
    """What a SessionDB needs of a writer. Safe to use from any thread."""

    def submit(self, operation: Operation[R], patience: float) -> R:
        """Have *operation* applied; its result once it is committed and synced."""
        ...

    def send(self, operations: Sequence[Operation[Any]], patience: float) -> list[Answer]:
        """Send several operations, in order, without waiting for any."""
        ...

    def catch_up(self, through: int, patience: float) -> None:
        """Return when both full-text indexes cover all messages up to *through*."""
        ...

    def lease(self, patience: float) -> Lease:
        """Begin an interactive transaction. Raises when this thread already holds one."""
        ...

    def release(self) -> None:
        """This user of the port is done."""
        ...

    def statistics(self) -> dict[str, Any]: ...
