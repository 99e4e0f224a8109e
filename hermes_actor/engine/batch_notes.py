"""Notes of a batch about its requests, which are the same in each of its tries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Raw

from hermes_protocol.operations import SqlRun, SqlStatement

if TYPE_CHECKING:
    from hermes_actor.engine.guest_settings import Settings
    from hermes_actor.engine.jobs import Request
    from hermes_actor.errors import DeadlineExceeded
    from hermes_protocol.operations import Operation, SqlReply

__all__ = ["BatchNotes", "identity", "statements_of"]


class BatchNotes:
    """Notes about the requests of one batch, by :func:`identity`.

    They outlive its first try, the one with savepoints, and the requests one by one.
    """

    __slots__ = ("ended_by", "interrupted", "not_the_index", "settings")

    def __init__(self) -> None:
        self.interrupted: dict[int, DeadlineExceeded] = {}
        """Requests whose statement was interrupted: they are not tried again."""
        self.ended_by: dict[int, SqlReply] = {}
        """Runs whose last statement has ended the transaction, with their replies."""
        self.not_the_index: set[int] = set()
        """Runs with an error that the index is not to blame for."""
        self.settings: dict[int, Settings] = {}
        """Settings of runs that came in parts."""

    def clear(self) -> None:
        """Begin with another batch."""
        for notes in (self.interrupted, self.ended_by, self.not_the_index, self.settings):
            notes.clear()

    def settings_of(self, request: Request) -> Settings | None:
        """Return the settings that *request* needs; ``None``: those of the engine's own work."""
        if isinstance(request.operation, SqlRun):
            return request.operation.settings
        return self.settings.get(identity(request)) if self.settings else None


def statements_of(operation: Operation[Any] | Raw) -> list[str]:
    """Return the SQL that a guest has brought; nothing for any other operation."""
    if isinstance(operation, SqlRun):
        return [step.sql for step in operation.steps]
    return [operation.sql] if isinstance(operation, SqlStatement) else []


def identity(request: Request) -> int:
    """Return the same for a request as it came and as it was decoded, while its batch lasts."""
    return id(request if request.ticket is None else request.ticket)
