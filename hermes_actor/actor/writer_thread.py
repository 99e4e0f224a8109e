"""The writer thread: opens the file, works for as long as the actor owns it, closes it.

One object is one period of ownership. The event loop starts it, learns from two events when the
file is open and when it is closed, and asks it to stop.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

from hermes_actor import limits
from hermes_actor.engine import jobs
from hermes_actor.engine.loop import serve
from hermes_actor.engine.writer import Writer
from hermes_actor.errors import HermesActorError
from hermes_actor.write_settings import rules_or_default
from hermes_protocol.features import SESSIONS
from hermes_protocol.status import Phase, PhaseReport

if TYPE_CHECKING:
    from hermes_actor.actor.interfaces import RunInLoop
    from hermes_actor.actor.mailbox import Mailbox
    from hermes_actor.actor.outbox import Unflushed
    from hermes_actor.actor.readiness import Readiness
    from hermes_actor.engine.change_log import ChangeLog
    from hermes_actor.engine.connection import WriteConnection
    from hermes_actor.paths import StorePaths

__all__ = ["WriterThread"]

_log = logging.getLogger("hermes_actor.actor")


class WriterThread:
    """The writer of one period of ownership, in a thread of its own."""

    def __init__(
        self,
        paths: StorePaths,
        mailbox: Mailbox,
        changes: ChangeLog,
        unflushed: Unflushed,
        readiness: Readiness,
        *,
        run_in_loop: RunInLoop,
        on_epoch: Callable[[int], None],
        measured: Callable[[int, float], None],
        rescues: bool = True,
        private_sql: bool = True,
        kind: str = SESSIONS,
    ) -> None:
        """*unflushed* is flushed after each batch; *readiness* is set when the file is open."""
        self.paths = paths
        self.writer: Writer | None = None
        self.failure: BaseException | None = None
        self.opened = trio.Event()
        self.closed = trio.Event()
        self._mailbox = mailbox
        self._changes = changes
        self._unflushed = unflushed
        self._readiness = readiness
        self._run_in_loop = run_in_loop
        self._on_epoch = on_epoch
        self._measured = measured
        self._rescues = rescues
        self._private_sql = private_sql
        self._kind = kind
        self._phase = PhaseReport(Phase.OPENING)
        # A daemon: if the event loop itself fails, the interpreter must not wait for a thread that
        # has no stop in its mailbox. In good order stop() joins it.
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)

    @property
    def phase(self) -> PhaseReport:
        """The state of the writer. Safe in any thread."""
        if self.failure is not None:
            return PhaseReport(Phase.BROKEN)
        if self.writer is None:
            return self._phase
        # Before "recovering": a damaged file may never recover, and people must see that.
        if self.writer.connection.health.damage is not None:
            return PhaseReport(Phase.DAMAGED)
        return PhaseReport(Phase.SERVING if self.writer.connection.recovered else Phase.RECOVERING)

    def start(self) -> None:
        """Begin to open the file, and return at once; see *opened* and *failure*."""
        self._thread.start()

    def leave_within(self, seconds: float) -> None:
        """Wait no longer than *seconds* for foreign locks, and interrupt long statements."""
        if self.writer is not None:
            self.writer.connection.leave_by = time.monotonic() + seconds

    async def stop(self) -> None:
        """Finish what was admitted, close the file, end the thread."""
        self._mailbox.put_last(jobs.Stop(lambda _outcome: None))
        # Not join() alone: it would hold up the event loop, which has answers to finish meanwhile.
        # After the event the thread has nothing left to do, so the join below takes no time.
        await self.closed.wait()
        self._thread.join()

    # --- in the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            writer = Writer(
                self.paths,
                others_wait=self._mailbox.waiting,
                on_epoch=self._on_epoch,
                on_phase=self._set_phase,
                changes=self._changes,
                timeout=limits.ACTOR_OPEN_BUSY_SECONDS,
                anchored=True,
                rescues=self._rescues,
                private_sql=self._private_sql,
                kind=self._kind,
                rules=rules_or_default(self.paths.db.parent),
            )
            self._set_phase(PhaseReport(Phase.RECOVERING))
            self._recover(writer)
            # In this order: phase and Welcome are read from *writer*, the starter connects as soon
            # as it hears of readiness, and *opened* lets the first clients in.
            self.writer = writer
            self._readiness.set()
            self._run_in_loop(self.opened.set)
            serve(
                writer,
                self._mailbox,
                sent=self._unflushed.flush,
                measured=self._measured,
                on_broken=lambda: self._stop_at_once(writer.connection),
                shares_syncs=True,
            )
        except BaseException as error:
            # BaseException: a SystemExit here would end this thread alone, without a trace. Noted
            # before the events below, because the event loop reads it when they wake it.
            self.failure = error
            _log.error("the writer of %s has stopped: %s", self.paths.db, error, exc_info=error)
        finally:
            # Whatever happened, the event loop must not wait for this thread.
            self._run_in_loop(self.opened.set)
            self._run_in_loop(self.closed.set)

    def _set_phase(self, phase: PhaseReport) -> None:
        self._phase = phase
        self._readiness.report_phase(phase)

    def _recover(self, writer: Writer) -> None:
        """Try start-up recovery before reporting ready. If a reader or a foreign lock blocks it,
        serve anyway: the first write tries again."""
        try:
            writer.recover(limits.RECOVER_AT_START_SECONDS)
        except HermesActorError as error:
            if writer.connection.broken is not None:
                self._readiness.fail(error)
                self._stop_at_once(writer.connection)
            raise

    def _stop_at_once(self, core: WriteConnection) -> None:
        """R2, R3, R5: acknowledge nothing, close nothing, end.

        Clients find or start the next actor and send again what has no answer; the receipts show
        what was executed.
        """
        _log.critical("ending at once with %d: %s", core.exit_code, core.broken)
        # _exit runs no handlers and flushes nothing, so the log first. It is chosen for that: an
        # orderly end would close SQLite, and closing checkpoints what may not be on the disk.
        logging.shutdown()
        os._exit(core.exit_code)
