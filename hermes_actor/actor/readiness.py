"""Readiness: one event, reported to the process that waits for this actor and to its manager."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

from hermes_actor.actor.tasks import call

if TYPE_CHECKING:
    from hermes_actor.actor.sd_notify import ServiceManager
    from hermes_protocol.status import PhaseReport

__all__ = ["Readiness", "ReadyListener"]


class ReadyListener(Protocol):
    """The process that waits for this actor: a client, a predecessor, or a person."""

    def report_phase(self, phase: PhaseReport) -> None:
        """Report a phase of an opening that takes a while. May be called any number of times."""
        ...

    def report_serving(self) -> None:
        """Report that the actor serves. The last report."""
        ...

    def report_failed(self, error: BaseException) -> None:
        """Report that the actor will not serve, and why. The last report."""
        ...


class Readiness:
    """Set when the actor serves, or failed with the reason why it does not. Safe in any thread.

    An actor may begin to serve more than once, after a hand-off that failed. The service manager
    learns of each time; the listener, of the first outcome only. An error in either of them is
    logged and does not end the actor.
    """

    def __init__(self, manager: ServiceManager, listener: ReadyListener | None = None) -> None:
        self._manager = manager
        self._listener = listener

    def report_phase(self, phase: PhaseReport) -> None:
        """Report what takes long before the actor serves."""
        call(partial(self._manager.phase, phase.text))
        if self._listener is not None:
            call(partial(self._listener.report_phase, phase))

    def set(self) -> None:
        """Report that the actor serves."""
        # The manager first: a listener that waits for a hand-off may end `systemctl reload`.
        call(self._manager.ready)
        listener, self._listener = self._listener, None
        if listener is not None:
            call(listener.report_serving)

    def fail(self, error: BaseException) -> None:
        """Report that the actor does not serve, and why."""
        call(partial(self._manager.phase, f"cannot serve: {error}"))
        # Taken away before the call: the first outcome is the only one, also if the call fails.
        listener, self._listener = self._listener, None
        if listener is not None:
            call(partial(listener.report_failed, error))
