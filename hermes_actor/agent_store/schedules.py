"""Schedules of an agent and their runs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from hermes_actor.agent_store.subject import Records, Subject, counted, given
from hermes_actor.agents import cron, ids, times
from hermes_actor.agents.changes.schedules import duration
from hermes_actor.agents.documents import dumps
from hermes_actor.agents.questions import fleet
from hermes_actor.agents.records import record
from hermes_actor.agents.rows import Row
from hermes_actor.agents.tables import TABLES
from hermes_actor.errors import BadValue
from hermes_protocol.agents import (
    AgentsClaim,
    AgentsComplete,
    AgentsPatch,
    AgentsPlan,
    AgentsPut,
    AgentsRenew,
)

__all__ = ["Schedules"]

_DUE = "status = 'active' AND next_run_at IS NOT NULL AND next_run_at <= :now"
_MODES = ("dedicated", "ephemeral")


def _mode(value: Any) -> str:
    kind = value.get("kind") if isinstance(value, Mapping) else value
    if kind not in _MODES:
        raise BadValue(f"a session mode is {' or '.join(_MODES)}, not {str(value)[:60]!r}")
    return dumps({"kind": kind})


def _delivery(value: Any) -> str:
    if value == "silent":
        value = {"kind": "silent"}
    if isinstance(value, Mapping) and set(value) == {"session"}:
        value = {"kind": "session", "sessionId": value["session"]}
    if not isinstance(value, Mapping) or value.get("kind") not in ("silent", "session"):
        raise BadValue(f"a delivery is silent or names a session; not {str(value)[:60]!r}")
    return dumps(dict(value))


class Schedules(Subject):
    """Schedules, in UTC."""

    table = "schedules"

    def _run(self, row: Mapping[str, Any]) -> Row:
        return record(TABLES["schedule_runs"], row)

    def create(
        self,
        type_: str,
        prompt: str,
        *,
        schedule_id: str | None = None,
        cron_expression: str | None = None,
        run_at: str | datetime | None = None,
        session_mode: Any = "dedicated",
        delivery: Any = "silent",
        policy: Row | None = None,
        created_by: str | None = None,
    ) -> Row:
        """Create a schedule: ``cron`` with an expression, or ``once`` at a time.

        Raises :class:`BadValue` for what cannot be understood, :class:`Conflict` for an id in use.
        """
        if type_ not in ("cron", "once"):
            raise BadValue(f"a schedule is 'cron' or 'once', not {str(type_)[:60]!r}")
        if not prompt:
            raise BadValue("a schedule needs a prompt")
        if type_ == "cron" and not cron_expression:
            raise BadValue("a cron schedule needs a cron expression")
        if type_ == "once" and run_at is None:
            raise BadValue("a one-shot schedule needs the time run_at")
        if cron_expression is not None:
            cron.check(cron_expression)
        now, at = self._now(), None if run_at is None else times.canonical(run_at)
        row = {
            "schedule_id": schedule_id or ids.schedule_id(), "type": type_,
            "cron_expression": cron_expression, "run_at": at, "prompt": prompt,
            "session_mode": _mode(session_mode), "delivery": _delivery(delivery),
            "policy": dumps(policy or {}), "created_by": created_by, "created_at": now,
            "updated_at": now, "next_run_at": at if type_ == "once" else None,
        }  # fmt: skip
        return self._stored(row, "insert")

    def get(self, schedule_id: str) -> Row | None:
        """Return a schedule, ``None`` if there is none."""
        return self._get({"schedule_id": schedule_id})

    def list(self, status: str | None = None) -> Records:
        """Return the schedules, the newest first."""
        return self._list(given(status=status))

    def list_all(self, status: str | None = None) -> Records:
        """Return the schedules of all agents."""
        if status is None:
            return self._all()
        return self._all("status = :status", {"status": status})

    def due(self, now: str | datetime | None = None) -> Records:
        """Return the schedules that are due, the earliest first."""
        return [one for one in self.all_due(now) if one["agent_id"] == self._agent]

    def all_due(self, now: str | datetime | None = None) -> Records:
        """Return the due schedules of all agents."""
        found = self._all(_DUE, {"now": self._now(now)})
        return sorted(found, key=lambda o: (o["next_run_at"], o["agent_id"], o["schedule_id"]))

    def unplanned_cron(self) -> Records:
        """Return the active cron schedules of all agents that have no next run."""
        return self._all("status = 'active' AND type = 'cron' AND next_run_at IS NULL")

    def update(
        self,
        schedule_id: str,
        *,
        status: str | None = None,
        cron_expression: str | None = None,
        run_at: str | datetime | None = None,
        prompt: str | None = None,
        session_mode: Any = None,
        delivery: Any = None,
        policy: Row | None = None,
    ) -> Row:
        """Change what is given; a new expression or time plans it again.

        Raises :class:`NotFound`, :class:`BadValue`.
        """
        values = given(status=status, prompt=prompt, updated_at=self._now())
        if cron_expression is not None:
            cron.check(cron_expression)
            values |= {"cron_expression": cron_expression, "next_run_at": None}
        if run_at is not None:
            values["run_at"] = values["next_run_at"] = times.canonical(run_at)
        if session_mode is not None:
            values["session_mode"] = _mode(session_mode)
        if delivery is not None:
            values["delivery"] = _delivery(delivery)
        if policy is not None:
            values["policy"] = dumps(policy)
        return self._patched({"schedule_id": schedule_id}, values)

    def delete(self, schedule_id: str) -> bool:
        """Delete a schedule with its runs; returns False if there was none."""
        return "schedules" in self._delete({"schedule_id": schedule_id})

    def mark_run(
        self, schedule_id: str, next_run_at: str | datetime | None, error: str | None = None
    ) -> Row:
        """Count a run, plan the next one, and keep the error if there was one."""
        now = self._now()
        following = None if next_run_at is None else times.canonical(next_run_at)
        values: Row = {"last_run_at": now, "updated_at": now, "next_run_at": following}
        if error:
            values["last_error"], add = error, {"consecutive_errors": 1}
        else:
            values |= {"last_error": None, "consecutive_errors": 0}
            add = {"run_count": 1}
        return self._patched({"schedule_id": schedule_id}, values, add=add)

    def set_next_run(self, schedule_id: str, next_run_at: str | datetime | None) -> None:
        """Set the next run."""
        following = None if next_run_at is None else times.canonical(next_run_at)
        values = {"next_run_at": following, "updated_at": self._now()}
        self._patched({"schedule_id": schedule_id}, values)

    def trigger(self, schedule_id: str) -> Row:
        """Make a schedule active and due now. Raises :class:`NotFound`."""
        now = self._now()
        values = {"status": "active", "next_run_at": now, "updated_at": now}
        return self._patched({"schedule_id": schedule_id}, values)

    # --- runs --------------------------------------------------------------------------------

    def start_run(self, schedule_id: str, session_id: str | None, prompt: str) -> Row:
        """Note the start of a run."""
        row: Row = {
            "schedule_id": schedule_id, "session_id": session_id, "prompt": prompt,
            "status": "running", "started_at": self._now(),
        }  # fmt: skip
        done = self._store.submit(AgentsPut(
            table="schedule_runs", rows=[row], agent_id=self._agent, returning=True,
        ))  # fmt: skip
        return self._run(done.rows[0])

    def finish_run(self, run_id: int, status: str, error: str | None = None) -> Row:
        """Note the end of a run. Raises :class:`Conflict` if it has ended already."""
        if status not in ("completed", "failed"):
            raise BadValue(f"a run ends completed or failed, not {str(status)[:60]!r}")
        found = self._store.ask(fleet.find_row, "schedule_runs", self._agent, {"id": run_id})
        now = self._now()
        spent = 0 if found is None else duration(found["started_at"], now)
        row = self._store.submit(AgentsPatch(
            table="schedule_runs", key={"id": run_id}, agent_id=self._agent,
            set={"status": status, "finished_at": now, "duration_ms": spent, "error": error},
            expect={"status": "running"},
        ))  # fmt: skip
        assert row is not None
        return self._run(row)

    def runs(self, schedule_id: str, limit: int = 20) -> Records:
        """Return the runs of a schedule, the newest first."""
        key = {"schedule_id": schedule_id}
        most = counted(limit, "limit")
        found = self._store.ask(fleet.list_rows, "schedule_runs", self._agent, key, most)
        return [self._run(row) for row in found]

    # --- claims ------------------------------------------------------------------------------

    def plan(self, now: str | datetime | None = None) -> Row:
        """Plan the cron schedules of all agents that have no next run."""
        done = self._store.submit(AgentsPlan(now=self._now(now)))
        return {"planned": done.planned, "parked": done.parked}

    def claim(
        self,
        worker: str,
        *,
        lease_seconds: float = 600,
        limit: int = 20,
        now: str | datetime | None = None,
    ) -> Records:
        """Claim due schedules, of the agent or, without one, of all; start their runs.

        Returns schedule and run of each. No other worker gets them until the lease is over.
        """
        start = self._now(now)
        claimed = self._store.submit(AgentsClaim(
            now=start, worker=worker, expires_at=times.after(start, lease_seconds),
            limit=counted(limit, "limit"), agent_id=self._store.agent_id,
        ))  # fmt: skip
        return [
            {"schedule": self._record(one.schedule), "run": self._run(one.run)} for one in claimed
        ]

    def renew(
        self,
        agent_id: str,
        run_id: int,
        worker: str,
        *,
        lease_seconds: float = 600,
        now: str | datetime | None = None,
    ) -> bool:
        """Extend a claim; returns False if the worker does not hold it any more."""
        start = self._now(now)
        return self._store.submit(AgentsRenew(
            agent_id=agent_id, run_id=run_id, worker=worker, now=start,
            expires_at=times.after(start, lease_seconds),
        ))  # fmt: skip

    def complete(
        self,
        agent_id: str,
        run_id: int,
        worker: str,
        status: str,
        error: str | None = None,
        *,
        now: str | datetime | None = None,
    ) -> Row:
        """End a claimed run and plan the next. Raises :class:`Conflict` if the claim was lost."""
        if status not in ("completed", "failed"):
            raise BadValue(f"a run ends completed or failed, not {str(status)[:60]!r}")
        done = self._store.submit(AgentsComplete(
            agent_id=agent_id, run_id=run_id, worker=worker, status=status,  # type: ignore[arg-type]
            error=error, now=self._now(now),
        ))  # fmt: skip
        return {"run": self._run(done.run), "schedule": self._record(done.schedule)}

    def put_off(self, run_id: int, worker: str, until: str) -> Row:
        """Forget a claimed run and make its schedule due later; no error is counted."""
        done = self._store.submit(AgentsComplete(
            agent_id=self._agent, run_id=run_id, worker=worker, status="postponed",
            now=self._now(), until=until,
        ))  # fmt: skip
        return self._record(done.schedule)
