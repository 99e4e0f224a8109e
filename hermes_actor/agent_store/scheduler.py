"""The scheduler: a loop that claims due schedules, runs them, and reports their end."""

from __future__ import annotations

import logging
import os
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hermes_actor.agents.rows import Row
from hermes_actor.agents.times import after
from hermes_actor.errors import Conflict, HermesActorError, NotFound

if TYPE_CHECKING:
    from hermes_actor.agent_store.store import AgentStore

__all__ = ["CommandRun", "Scheduler", "prompt_of"]

_log = logging.getLogger("hermes_actor.scheduler")

TICK_SECONDS = 10.0
_LAST_BYTES = 64 * 1024
"""Bytes of the standard error of a command among which its last line is looked for."""
_DISABLED_PAUSE_SECONDS = 300


def prompt_of(schedule: Row) -> str:
    """Return the prompt for a run, with the way on which its result is to be delivered."""
    delivery = schedule["delivery"]
    if delivery.get("kind") != "session":
        return str(schedule["prompt"])
    return (
        f"{schedule['prompt']}\n\nWhen you are done, pass the result on with the tool session_send"
        f" to the session {delivery.get('sessionId')}."
    )


class CommandRun:
    """Runs a schedule with a command: the prompt on its standard input, ids in its environment.

    Raises ``RuntimeError`` with the last line of its standard error if it exits with another code
    than 0, and ``TimeoutError`` after ``policy.timeout_seconds``.
    """

    def __init__(self, command: Sequence[str], report: Callable[[str], object]) -> None:
        self._command, self._report = list(command), report

    def __call__(self, schedule: Row, run: Row) -> None:
        name = f"{schedule['agent_id']}/{schedule['schedule_id']} run {run['id']}"
        try:
            self._call(schedule, run)
        except Exception as error:
            self._report(f"{name} failed: {error}")
            raise
        self._report(f"{name} completed")

    def _call(self, schedule: Row, run: Row) -> None:
        ids = {"HERMES_AGENT_ID": schedule["agent_id"], "HERMES_RUN_ID": str(run["id"]),
               "HERMES_SCHEDULE_ID": schedule["schedule_id"],
               "HERMES_SESSION_ID": run["session_id"]}  # fmt: skip
        limit = schedule["policy"].get("timeout_seconds")
        # Files and not pipes: what the command leaves running may keep a pipe open for ever, and
        # what it writes there would be kept in memory.
        with tempfile.TemporaryFile() as prompt, tempfile.TemporaryFile() as said:
            prompt.write(prompt_of(schedule).encode("utf-8", "replace"))
            prompt.seek(0)
            try:
                done = subprocess.run(
                    self._command, stdin=prompt, stderr=said, env={**os.environ, **ids},
                    timeout=limit, check=False,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                raise TimeoutError(f"the command took longer than {limit} s") from None
            if done.returncode:
                said.seek(max(0, said.seek(0, os.SEEK_END) - _LAST_BYTES))
                lines = said.read().decode("utf-8", "replace").strip().splitlines()
                raise RuntimeError(lines[-1] if lines else f"exit code {done.returncode}")


class Scheduler:
    """Runs due schedules one after the other; several schedulers share the work by claims.

    Args:
        store: The store; with an agent its schedules alone, without one those of all.
        run: Called with schedule and run; what it raises is the error of the run. It runs in the
            thread of :meth:`tick`.
        worker: A name that no other scheduler has.
        lease_seconds: A claim that is not renewed for so long goes to another worker; it is
            renewed at half of it.
    """

    def __init__(
        self,
        store: AgentStore,
        run: Callable[[Row, Row], object],
        *,
        worker: str | None = None,
        lease_seconds: float = 600,
        tick_seconds: float = TICK_SECONDS,
    ) -> None:
        self._store, self._run = store, run
        self.worker = worker or f"worker-{os.getpid()}-{os.urandom(3).hex()}"
        self._lease, self._tick = lease_seconds, tick_seconds
        self._stop = threading.Event()

    def stop(self) -> None:
        """Have :meth:`loop` return after the run that is under way. Safe from any thread."""
        self._stop.set()

    def loop(self) -> None:
        """Tick at once and then every ten seconds, until :meth:`stop`. Errors are logged."""
        while not self._stop.is_set():
            try:
                self.tick()
            except HermesActorError as error:
                _log.warning("the scheduler could not look for due schedules: %s", error)
            except Exception:
                # A row of another program, or a fault of ours: no scheduler would be worse.
                _log.exception("the scheduler could not look for due schedules")
            self._stop.wait(self._tick)

    def tick(self) -> int:
        """Plan what is unplanned and run what is due; returns the number of runs."""
        self._store.schedules.plan()
        done = 0
        # One at a time: a claim that waits behind a long run would expire.
        while not self._stop.is_set():
            claimed = self._store.schedules.claim(self.worker, lease_seconds=self._lease, limit=1)
            if not claimed:
                break
            schedule, run = claimed[0]["schedule"], claimed[0]["run"]
            try:
                self._execute(schedule, run)
            except Exception:
                # It keeps no other schedule from running; its claim ends by itself.
                _log.exception("run %s of %s has failed", run["id"], schedule["schedule_id"])
            done += 1
        return done

    def _execute(self, schedule: Row, run: Row) -> None:
        if self._postponed(schedule, run):
            return
        finished = threading.Event()
        keeper = threading.Thread(target=self._keep, args=(run, finished), daemon=True)
        keeper.start()
        error = None
        try:
            self._run(schedule, run)
        except Exception as failure:
            error = str(failure) or type(failure).__name__
        finally:
            finished.set()
            keeper.join()
        self._complete(schedule, run, error)

    def _postponed(self, schedule: Row, run: Row) -> bool:
        """Put a schedule of a disabled agent off, without an error and without a run."""
        store = self._store.of(schedule["agent_id"])
        agent = store.agents.get()
        if agent is None or agent["status"] != "disabled":
            return False
        later = after(store.now(), _DISABLED_PAUSE_SECONDS)
        store.schedules.put_off(run["id"], self.worker, later)
        return True

    def _keep(self, run: Row, finished: threading.Event) -> None:
        while not finished.wait(self._lease / 2):
            try:
                held = self._store.schedules.renew(
                    run["agent_id"], run["id"], self.worker, lease_seconds=self._lease
                )
            except HermesActorError as error:
                _log.warning("the claim of run %s could not be renewed: %s", run["id"], error)
                continue
            if not held:
                return

    def _complete(self, schedule: Row, run: Row, error: str | None) -> None:
        status = "completed" if error is None else "failed"
        store = self._store.of(schedule["agent_id"])
        try:
            store.schedules.complete(run["agent_id"], run["id"], self.worker, status, error)
        except (Conflict, NotFound) as lost:
            _log.warning("run %s ended without its claim: %s", run["id"], lost)
            return
        ephemeral = schedule["session_mode"].get("kind") == "ephemeral"
        if schedule["type"] == "once" or ephemeral:
            store.sessions.set_status(run["session_id"], "inactive")
