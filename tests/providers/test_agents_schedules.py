"""Schedules, runs, claims and the scheduler, on every provider. Numbers are rows of the matrix."""

import threading

import pytest
from support.agent_stores import START, open_agents, session

from hermes_actor import Scheduler
from hermes_actor.agent_store.scheduler import prompt_of
from hermes_actor.agents.times import after
from hermes_actor.errors import BadValue, Conflict, HermesActorError, NotFound
from hermes_protocol.agents import AgentsPatch


def once(store, schedule_id="s1", run_at=START, **fields):
    return store.schedules.create("once", "do it", run_at=run_at, schedule_id=schedule_id, **fields)


def every_minute(store, schedule_id="s1", **fields):
    return store.schedules.create(
        "cron", "do it", cron_expression="* * * * *", schedule_id=schedule_id, **fields
    )


def test_schedules_are_created(store):
    """42, 43, 46, 47, 48, 174."""
    made = once(store)
    assert (made["next_run_at"], made["status"], made["run_count"]) == (START, "active", 0)
    assert made["session_mode"] == {"kind": "dedicated"}
    assert made["delivery"] == {"kind": "silent"}
    cron = every_minute(store, "s2", session_mode="ephemeral", delivery={"session": "X"})
    assert "next_run_at" not in cron
    assert cron["session_mode"] == {"kind": "ephemeral"}
    assert cron["delivery"] == {"kind": "session", "sessionId": "X"}
    with pytest.raises(Conflict, match="Schedule exists already: s1"):
        once(store)
    unnamed = store.schedules.create("cron", "p", cron_expression="@daily")
    assert len(unnamed["schedule_id"]) == 8
    assert [one["schedule_id"] for one in store.schedules.list()][1:] == ["s2", "s1"]


@pytest.mark.parametrize(
    ("type_", "prompt", "fields"),
    [
        ("cron", "p", {}),  # 44
        ("once", "p", {}),  # 45
        ("cron", "p", {"cron_expression": "nonsense"}),  # 182
        ("cron", "p", {"cron_expression": "2026-01-01T00:00:00"}),
        ("cron", "p", {"cron_expression": "0 0 1 * +MON"}),
        ("once", "p", {"run_at": "soon"}),
        ("never", "p", {"run_at": START}),
        ("once", "", {"run_at": START}),
        ("once", "p", {"run_at": START, "session_mode": "shared"}),
        ("once", "p", {"run_at": START, "delivery": {"kind": "pigeon"}}),
    ],
)
def test_bad_schedules_are_refused(store, type_, prompt, fields):
    """44, 45, 182."""
    with pytest.raises(BadValue):
        store.schedules.create(type_, prompt, **fields)
    assert store.schedules.list() == []


def test_schedules_are_changed_and_deleted(store):
    """49 to 53, 177."""
    every_minute(store)
    store.schedules.set_next_run("s1", START)
    changed = store.schedules.update("s1", status="paused", session_mode="ephemeral")
    assert (changed["status"], changed["session_mode"]["kind"]) == ("paused", "ephemeral")
    assert changed["next_run_at"] == START
    assert "next_run_at" not in store.schedules.update("s1", cron_expression="@daily")
    assert store.schedules.update("s1", run_at=after(START, 5))["next_run_at"] == after(START, 5)
    with pytest.raises(BadValue):
        store.schedules.update("s1", cron_expression="nonsense")
    triggered = store.schedules.trigger("s1")
    assert (triggered["status"], triggered["run_count"]) == ("active", 0)
    assert store.schedules.due(triggered["next_run_at"])
    for call in (store.schedules.trigger, store.schedules.update):
        with pytest.raises(NotFound, match="Schedule not found: nope"):
            call("nope")
    store.schedules.start_run("s1", None, "p")
    assert store.schedules.delete("s1")
    assert not store.schedules.delete("s1")
    assert store.schedules.runs("s1") == []


def test_due_ones(store):
    """175."""
    once(store, "due")
    once(store, "future", run_at=after(START, 3600))
    once(store, "paused")
    store.schedules.update("paused", status="paused")
    every_minute(store, "unplanned")
    assert [one["schedule_id"] for one in store.schedules.due(START)] == ["due"]
    unplanned = [one["schedule_id"] for one in store.schedules.unplanned_cron()
                 if one["agent_id"] == store.agent_id]  # fmt: skip
    assert unplanned == ["unplanned"]


def test_runs_are_counted(store):
    """176."""
    every_minute(store)
    ok = store.schedules.mark_run("s1", after(START, 60))
    assert (ok["run_count"], ok["consecutive_errors"], ok["next_run_at"]) == (
        1,
        0,
        after(START, 60),
    )
    for n in (1, 2):
        bad = store.schedules.mark_run("s1", None, "boom")
        assert (bad["run_count"], bad["consecutive_errors"], bad["last_error"]) == (1, n, "boom")
    assert "last_error" not in store.schedules.mark_run("s1", None, "")


def test_history_of_runs(store, agents):
    """54, 178, 179, D8, D30."""
    every_minute(store)
    run = store.schedules.start_run("s1", "schedule:s1", "do it")
    agents.clock.move(1.5)
    done = store.schedules.finish_run(run["id"], "completed")
    assert 1500 <= done["duration_ms"] <= 1510
    with pytest.raises(Conflict):
        store.schedules.finish_run(run["id"], "failed", "late")
    with pytest.raises(NotFound, match="Run not found"):
        agents.new().schedules.finish_run(run["id"], "completed")
    with pytest.raises(BadValue):
        store.schedules.finish_run(run["id"], "skipped")
    for _ in range(24):
        last = store.schedules.start_run("s1", None, "do it")
    store.schedules.finish_run(last["id"], "failed", "boom")
    runs = store.schedules.runs("s1")
    assert len(runs) == 20
    assert (runs[0]["id"], runs[0]["status"], runs[0]["error"]) == (last["id"], "failed", "boom")
    with pytest.raises(NotFound):
        store.schedules.start_run("nope", None, "p")


# --- claims --------------------------------------------------------------------------------------


def test_claim_is_held_until_it_expires(store):
    """184."""
    once(store)
    (first,) = store.schedules.claim("w1", now=START, lease_seconds=60)
    assert (first["run"]["status"], first["run"]["session_id"]) == ("running", "schedule:s1")
    assert store.schedules.claim("w2", now=after(START, 59)) == []
    (second,) = store.schedules.claim("w2", now=after(START, 61))
    newest, oldest = store.schedules.runs("s1")
    assert (oldest["status"], oldest["error"]) == ("failed", "lease expired")
    assert newest["id"] == second["run"]["id"]
    with pytest.raises(Conflict, match="w1 does not hold the claim"):
        store.schedules.complete(store.agent_id, first["run"]["id"], "w1", "completed")
    assert not store.schedules.renew(store.agent_id, first["run"]["id"], "w1")
    done = store.schedules.complete(store.agent_id, second["run"]["id"], "w2", "completed")
    assert (done["schedule"]["status"], done["run"]["status"]) == ("completed", "completed")
    assert store.schedules.claim("w3", now=after(START, 9999)) == []


def test_renewed_claim_lasts(store):
    once(store)
    (one,) = store.schedules.claim("w1", now=START, lease_seconds=60)
    assert store.schedules.renew(
        store.agent_id, one["run"]["id"], "w1", now=after(START, 50), lease_seconds=60
    )
    assert store.schedules.claim("w2", now=after(START, 100)) == []


def test_two_workers_share_what_is_due(kind, tmp_path):
    """183."""
    with open_agents(kind, tmp_path / "agents.db") as all_:
        for n in range(50):
            once(all_.of(f"a{n % 5}"), f"s{n:02}")
        claimed = {"w1": [], "w2": []}

        def work(name):
            tries = 0
            while tries < 3:
                try:
                    found = all_.schedules.claim(name, now=START, limit=7)
                except HermesActorError as error:  # a race decided by the server
                    assert isinstance(error, Conflict)
                    continue
                claimed[name] += [(one["schedule"]["agent_id"], one["run"]["id"]) for one in found]
                tries = 0 if found else tries + 1

        threads = [threading.Thread(target=work, args=(name,)) for name in claimed]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        both = claimed["w1"] + claimed["w2"]
        assert len(both) == len(set(both)) == 50
        running = [row for row in all_.rows("schedule_runs") if row["status"] == "running"]
        assert len(running) == 50


def test_pause_after_failures_grows(store):
    """180."""
    every_minute(store)
    now, waits = START, []
    for _ in range(6):
        store.schedules.set_next_run("s1", now)
        (one,) = store.schedules.claim("w", now=now)
        done = store.schedules.complete(
            store.agent_id, one["run"]["id"], "w", "failed", "boom", now=now
        )
        waits.append(done["schedule"]["next_run_at"])
    assert waits == [after(START, n) for n in (60, 60, 300, 900, 3600, 3600)]
    assert done["schedule"]["consecutive_errors"] == 6


def test_clock_that_is_set_back_repeats_no_run(store):
    every_minute(store)
    due = after(START, 60)
    store.schedules.set_next_run("s1", due)
    (one,) = store.schedules.claim("w", now=after(due, 1))
    done = store.schedules.complete(
        store.agent_id, one["run"]["id"], "w", "completed", now=after(due, -30)
    )
    assert done["schedule"]["next_run_at"] == after(due, 60)
    assert done["run"]["duration_ms"] == 0
    # Its lease is over by the clock of the others, who see it only then.
    store.schedules.set_next_run("s1", due)
    (one,) = store.schedules.claim("w", now=due, lease_seconds=60)
    assert store.schedules.claim("back", now=after(due, -3600)) == []
    (again,) = store.schedules.claim("ahead", now=after(due, 3600), lease_seconds=60)
    with pytest.raises(Conflict):
        store.schedules.complete(store.agent_id, one["run"]["id"], "w", "completed", now=due)
    done = store.schedules.complete(
        store.agent_id, again["run"]["id"], "ahead", "failed", "boom", now=after(due, -30)
    )
    assert done["schedule"]["next_run_at"] == after(due, 60)


def test_clock_that_is_far_ahead_parks_nothing(store):
    """A worker that lives in 2099 until its clock is corrected, with the run still to end."""
    every_minute(store)
    store.schedules.set_next_run("s1", START)
    (one,) = store.schedules.claim("w", now="2099-01-01T00:00:00.000Z")
    done = store.schedules.complete(store.agent_id, one["run"]["id"], "w", "completed",
                                    now=after(START, 5))  # fmt: skip
    assert done["schedule"]["next_run_at"] == after(START, 60)


def test_failed_one_shot_is_parked(store):
    """D21."""
    once(store)
    (one,) = store.schedules.claim("w", now=START)
    done = store.schedules.complete(store.agent_id, one["run"]["id"], "w", "failed", "boom")
    assert (done["schedule"]["status"], done["schedule"]["last_error"]) == ("failed", "boom")


def test_pausing_and_deleting_between_claim_and_end(store):
    every_minute(store, "paused")
    every_minute(store, "deleted")
    for name in ("paused", "deleted"):
        store.schedules.set_next_run(name, START)
    runs = {
        one["schedule"]["schedule_id"]: one["run"]["id"]
        for one in store.schedules.claim("w", now=START)
    }
    store.schedules.update("paused", status="paused")
    store.schedules.delete("deleted")
    done = store.schedules.complete(store.agent_id, runs["paused"], "w", "completed", now=START)
    assert (done["schedule"]["status"], done["schedule"]["next_run_at"]) == (
        "paused",
        after(START, 60),
    )
    with pytest.raises(NotFound):
        store.schedules.complete(store.agent_id, runs["deleted"], "w", "completed")
    assert store.schedules.get("deleted") is None


def test_expressions_of_other_programs_are_parked(store):
    """182; parked at the first look."""
    every_minute(store, "bad")
    every_minute(store, "past")
    for name, expression in (("bad", "nonsense"), ("past", "0 0 0 1 1 * 2020")):
        store.submit(AgentsPatch(
            table="schedules", key={"schedule_id": name}, set={"cron_expression": expression},
            agent_id=store.agent_id,
        ))  # fmt: skip
    store.schedules.plan()
    bad, past = store.schedules.get("bad"), store.schedules.get("past")
    assert bad["status"] == past["status"] == "failed"
    assert bad["last_error"].startswith("invalid cron expression")
    assert bad["consecutive_errors"] == 1


# --- the scheduler -------------------------------------------------------------------------------


def test_scheduler_runs_what_is_due(store, agents):
    """28 to 38."""
    ran = []

    def run_it(schedule, run):
        ran.append((schedule, run))
        assert Scheduler(store, print, worker="another").tick() == 0  # it is running

    scheduler = Scheduler(store, run_it, worker="w")
    assert scheduler.tick() == 0
    session(store, "schedule:one")
    session(store, "schedule:many")
    once(store, "one", delivery={"session": "target"}, created_by="u1")
    every_minute(store, "many")
    agents.clock.move(1)
    assert scheduler.tick() == 1
    ((schedule, run),) = ran
    assert (run["session_id"], schedule["created_by"]) == ("schedule:one", "u1")
    assert "session_send" in prompt_of(schedule)
    assert "target" in prompt_of(schedule)
    assert store.schedules.get("one")["status"] == "completed"
    assert store.sessions.get("schedule:one")["status"] == "inactive"
    agents.clock.move(60)
    assert scheduler.tick() == 1
    assert store.schedules.get("many")["run_count"] == 1
    assert store.sessions.get("schedule:many")["status"] == "idle"
    assert scheduler.tick() == 0


def test_scheduler_keeps_the_error_of_a_run(store, agents):
    """33."""

    def fail(schedule, run):
        raise RuntimeError("no model")

    every_minute(store)
    scheduler = Scheduler(store, fail)
    scheduler.tick()
    agents.clock.move(60)
    assert scheduler.tick() == 1
    assert store.schedules.get("s1")["last_error"] == "no model"
    assert store.schedules.runs("s1")[0]["status"] == "failed"


def test_scheduler_waits_for_a_disabled_agent(store, agents):
    """181."""
    store.agents.create("/w", status="disabled")
    once(store)
    agents.clock.move(1)
    ran = []
    assert Scheduler(store, lambda *both: ran.append(both)).tick() == 1
    found = store.schedules.get("s1")
    assert ran == store.schedules.runs("s1") == []
    assert (found["consecutive_errors"], found["status"]) == (0, "active")
    assert found["next_run_at"] > after(agents.clock.time, 290)


def test_loop_survives_a_failed_look(store, monkeypatch, caplog):
    """39."""
    scheduler = Scheduler(store, lambda *_: None, tick_seconds=0.01)
    seen = []

    def tick():
        seen.append(1)
        if len(seen) == 3:
            scheduler.stop()
        raise Conflict("no database")

    monkeypatch.setattr(scheduler, "tick", tick)
    scheduler.loop()
    assert len(seen) == 3
    assert "no database" in caplog.text


def test_workers_have_names_of_their_own(store):
    assert Scheduler(store, print).worker != Scheduler(store, print).worker
