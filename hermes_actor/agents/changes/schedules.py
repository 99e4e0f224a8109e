"""Changes of schedules that need the clock of the operation: plan, claim, renew, complete.

A claim is held by one worker until it expires. The next run is computed inside the transaction,
from the expression that is stored then.
"""

from __future__ import annotations

from typing import Any

from hermes_actor.agents import cron, verbs
from hermes_actor.agents.changes.registry import applies
from hermes_actor.agents.documents import loads
from hermes_actor.agents.rows import Row, Rows
from hermes_actor.agents.tables import TABLES
from hermes_actor.agents.times import parsed
from hermes_actor.agents.values import scope_of
from hermes_actor.errors import BadValue, Conflict
from hermes_protocol.agents import (
    AgentsClaim,
    AgentsComplete,
    AgentsPlan,
    AgentsRenew,
    Claimed,
    Completed,
    Planned,
)

__all__ = ["duration", "session_of"]

_SCHEDULES, _RUNS = TABLES["schedules"], TABLES["schedule_runs"]
_LEASE_EXPIRED = "lease expired"
_MOST_CLAIMS = 1_000
_PLANNED_AT_ONCE = 500
"""Rows of one operation: others must not wait for a long list."""


def session_of(schedule: Row, now: str) -> str:
    """Return the session in which a run of *schedule* happens."""
    mode = loads(schedule["session_mode"])
    base = f"schedule:{schedule['schedule_id']}"
    if isinstance(mode, dict) and mode.get("kind") == "ephemeral":
        return f"{base}:{now.replace(':', '-').replace('.', '-')}"
    return base


def duration(started_at: str, finished_at: str) -> int:
    """Return the milliseconds between two times; 0 if the clock was set back in between."""
    spent = (parsed(finished_at) - parsed(started_at)).total_seconds()
    return max(0, round(spent * 1000))


@applies(AgentsPlan)
def plan(rows: Rows, op: AgentsPlan) -> Planned:
    """Plan active cron schedules without a next run; park those that can never run."""
    planned = parked = 0
    waiting = rows.all(
        "SELECT agent_id, schedule_id, cron_expression, consecutive_errors FROM @schedules"
        " WHERE status = 'active' AND type = 'cron' AND next_run_at IS NULL"
        f" ORDER BY agent_id, schedule_id LIMIT {_PLANNED_AT_ONCE}{rows.skip_locked}"
    )
    for row in waiting:
        key, values = {"schedule_id": row["schedule_id"]}, {"updated_at": op.now}
        add: dict[str, int] = {}
        try:
            following = cron.following(row["cron_expression"] or "", op.now)
        except BadValue as error:
            values |= _parked(op.now, error)
            add = {"consecutive_errors": 1}
            parked += 1
        else:
            values |= {"next_run_at": following} if following else {"status": "failed"}
            planned, parked = planned + bool(following), parked + (not following)
        verbs.update(rows, _SCHEDULES, row["agent_id"], key, values, add)
    return Planned(planned=planned, parked=parked)


@applies(AgentsClaim)
def claim(rows: Rows, op: AgentsClaim) -> list[Claimed]:
    """Claim due schedules and start their runs; what an expired claim left is closed first."""
    values: dict[str, Any] = {"now": op.now}
    scope = "" if op.agent_id is None else " AND agent_id = :agent_id"
    if op.agent_id is not None:
        values |= scope_of(_SCHEDULES, op.agent_id)
    due = rows.all(
        "SELECT agent_id, schedule_id FROM @schedules WHERE status = 'active'"
        f" AND next_run_at <= :now{scope}"
        " AND (claimed_by IS NULL OR claim_expires_at <= :now)"
        " ORDER BY next_run_at, agent_id, schedule_id"
        f" LIMIT {max(0, min(op.limit, _MOST_CLAIMS))}{rows.skip_locked}",
        values,
    )
    claimed = []
    for row in due:
        try:
            claimed.append(_claim(rows, op, row["agent_id"], row["schedule_id"]))
        except BadValue as error:
            # Another program has written it. It must not keep the others from running.
            values = {"claimed_by": None, "claim_expires_at": None, **_parked(op.now, error)}
            key = {"schedule_id": row["schedule_id"]}
            verbs.update(rows, _SCHEDULES, row["agent_id"], key, values, {"consecutive_errors": 1})
    return claimed


def _parked(now: str, error: BadValue) -> Row:
    """Return what changes in a schedule that cannot run any more."""
    return {"status": "failed", "last_run_at": now, "last_error": str(error)}


def _claim(rows: Rows, op: AgentsClaim, agent_id: str, schedule_id: str) -> Claimed:
    key = {"schedule_id": schedule_id}
    _close_open_runs(rows, agent_id, schedule_id, op.now)
    held = {"claimed_by": op.worker, "claim_expires_at": op.expires_at}
    schedule = verbs.update(rows, _SCHEDULES, agent_id, key, held)
    assert schedule is not None
    run = {
        **key,
        "status": "running",
        "session_id": session_of(schedule, op.now),
        "prompt": schedule["prompt"],
        "started_at": op.now,
    }
    number = verbs.insert(rows, _RUNS, agent_id, run)
    made = verbs.find(rows, _RUNS, agent_id, number)
    assert made is not None
    return Claimed(schedule=schedule, run=made)


def _close_open_runs(rows: Rows, agent_id: str, schedule_id: str, now: str) -> None:
    for run in verbs.select(
        rows, _RUNS, agent_id, {"schedule_id": schedule_id, "status": "running"}
    ):
        _finish(rows, run, "failed", now, _LEASE_EXPIRED)


def _finish(rows: Rows, run: Row, status: str, now: str, error: str | None) -> Row:
    values = {
        "status": status,
        "finished_at": now,
        "duration_ms": duration(run["started_at"], now),
        "error": error,
    }
    done = verbs.update(rows, _RUNS, run["agent_id"], {"id": run["id"]}, values)
    assert done is not None
    return done


def _held(rows: Rows, agent_id: str, run_id: int, worker: str) -> tuple[Row, Row] | None:
    """Return run and schedule of a claim; ``None`` if the worker does not hold it any more."""
    run = verbs.find(rows, _RUNS, agent_id, {"id": run_id})
    if run is None:
        raise verbs.missing(_RUNS, {"id": run_id})
    schedule = verbs.find(
        rows, _SCHEDULES, agent_id, {"schedule_id": run["schedule_id"]}, lock=True
    )
    # Again, behind the lock: another worker may have closed it in between.
    run = verbs.find(rows, _RUNS, agent_id, {"id": run_id}, lock=True)
    if schedule is None or run is None:
        raise verbs.missing(_RUNS, {"id": run_id})
    if schedule["claimed_by"] != worker or run["status"] != "running":
        return None
    return run, schedule


@applies(AgentsRenew)
def renew(rows: Rows, op: AgentsRenew) -> bool:
    """Extend a claim that is still held."""
    held = _held(rows, op.agent_id, op.run_id, op.worker)
    if held is None:
        return False
    _, schedule = held
    key = {"schedule_id": schedule["schedule_id"]}
    verbs.update(rows, _SCHEDULES, op.agent_id, key, {"claim_expires_at": op.expires_at})
    return True


@applies(AgentsComplete)
def complete(rows: Rows, op: AgentsComplete) -> Completed:
    """End a run, count it, plan the next one and give the claim back."""
    held = _held(rows, op.agent_id, op.run_id, op.worker)
    if held is None:
        raise Conflict(f"worker {op.worker} does not hold the claim of run {op.run_id} any more")
    run, schedule = held
    key = {"schedule_id": schedule["schedule_id"]}
    if op.status == "postponed":
        verbs.delete(rows, _RUNS, op.agent_id, {"id": run["id"]})
        done = run
        values: Row = {"next_run_at": op.until, "updated_at": op.now}
        add: dict[str, int] = {}
    else:
        done = _finish(rows, run, op.status, op.now, op.error)
        values, add = _marked(schedule, op, _since(schedule, run, op.now))
    values |= {"claimed_by": None, "claim_expires_at": None}
    after = verbs.update(rows, _SCHEDULES, op.agent_id, key, values, add)
    assert after is not None
    return Completed(run=done, schedule=after)


def _since(schedule: Row, run: Row, now: str) -> str:
    """Return the time after which the next run is.

    That is *now*, but never before the time that the run was for: a clock that was set back would
    have it twice.
    """
    due = schedule["next_run_at"]
    return max(now, due) if due is not None and due <= run["started_at"] else now


def _marked(schedule: Row, op: AgentsComplete, since: str) -> tuple[Row, dict[str, int]]:
    """Return what changes in a schedule, and what is added to its counters."""
    try:
        return _planned_on(schedule, op, since)
    except BadValue as error:
        # Else it would begin once more whenever its claim ends.
        values = {"updated_at": op.now, "next_run_at": None, **_parked(op.now, error)}
        return values, {"consecutive_errors": 1}


def _planned_on(schedule: Row, op: AgentsComplete, since: str) -> tuple[Row, dict[str, int]]:
    failed = op.status == "failed"
    values: Row = {"last_run_at": op.now, "updated_at": op.now}
    if schedule["type"] == "once":
        values["next_run_at"] = None
        if schedule["status"] == "active":
            values["status"] = "failed" if failed else "completed"
    elif failed:
        values["next_run_at"] = cron.next_after_error(
            schedule["cron_expression"], since, schedule["consecutive_errors"]
        )
    else:
        values["next_run_at"] = cron.following(schedule["cron_expression"], since)
    if failed:
        values["last_error"] = op.error or "failed"
        return values, {"consecutive_errors": 1}
    values |= {"last_error": None, "consecutive_errors": 0}
    return values, {"run_count": 1}
