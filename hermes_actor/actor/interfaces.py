"""The seams between the parts of an actor: the parts know these, and none knows the server.

``Resources`` are the objects that all connections share. ``Controls`` is what a client may ask for
besides changes, ``Ownership`` the present state of the file; the server implements both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import trio

    import hermes_protocol.messages as wire
    from hermes_actor.actor.byte_limiter import ByteLimiter
    from hermes_actor.actor.gate import Gate
    from hermes_actor.actor.handoff.coordinator import HandoffAttempt
    from hermes_actor.actor.mailbox import Mailbox
    from hermes_actor.actor.metrics import Metrics
    from hermes_actor.actor.outbox import Backlog, Outbox, Unflushed
    from hermes_actor.engine.writer import Writer
    from hermes_protocol.status import PhaseReport

__all__ = ["Controls", "Ownership", "Resources", "RunInLoop"]

RunInLoop = Callable[[Callable[[], None]], None]
"""Runs a function soon in the event loop; safe in any thread, also when the loop has ended."""


@dataclass(frozen=True, kw_only=True)
class Resources:
    """The objects that all connections of an actor share."""

    run_in_loop: RunInLoop
    mailbox: Mailbox
    limiter: ByteLimiter
    gate: Gate
    backlog: Backlog
    unflushed: Unflushed
    metrics: Metrics
    drain_seconds: float


# Protocols, and two of them: connections, hand-off and server would otherwise import one another in
# a circle, and a test can stand in for the one part that it needs.
class Controls(Protocol):
    """The actor as a client may ask for it. Event loop only."""

    @property
    def has_handed_over(self) -> bool:
        """True if a successor serves."""
        ...

    def status_json(self) -> str:
        """Return the status document."""
        ...

    def drain(self, reason: str) -> None:
        """Begin to end; harmless when that has begun."""
        ...

    def hand_off(self, request: wire.Handoff) -> HandoffAttempt:
        """Begin to hand over. Raises :class:`HandoffFailed` if that is not possible now."""
        ...

    async def follow(self, outbox: Outbox, after: int | None) -> None:
        """Send changes to *outbox* until cancelled."""
        ...


class Ownership(Protocol):
    """The present period of ownership. Event loop only."""

    @property
    def phase(self) -> PhaseReport:
        """The state of the actor, as clients and people see it."""
        ...

    @property
    def opened(self) -> trio.Event:
        """Set when the file is open, or when its opening has failed."""
        ...

    @property
    def writer(self) -> Writer | None:
        """The writer, once the file is open."""
        ...

    @property
    def failure(self) -> BaseException | None:
        """The reason why the writer has stopped by itself."""
        ...

    @property
    def predecessor_continues(self) -> bool:
        """True if the predecessor of this actor serves on if this one cannot."""
        ...
