"""A scheduler goes on beside schedules that other programs have broken, and odd commands."""

import os
import signal
import threading
from contextlib import closing

import pytest
from support.agent_stores import Agents, open_agents, session
from support.files import raw

from hermes_actor.agent_store.scheduler import CommandRun, Scheduler

SCHEDULE = {
    "agent_id": "a", "schedule_id": "s", "prompt": "hello", "delivery": {}, "policy": {},
}  # fmt: skip
RUN = {"id": 1, "session_id": "s1"}


@pytest.fixture
def agents(tmp_path):
    with closing(open_agents("embedded", tmp_path / "agents.db")) as shared:
        yield Agents(shared)


@pytest.fixture
def store(agents):
    """Two schedules that are due every minute, ``bad`` before ``good``."""
    store = agents.new()
    for name in ("bad", "good"):
        store.schedules.create(
            schedule_id=name, type_="cron", prompt="p", cron_expression="* * * * *"
        )
        session(store, f"schedule:{name}")
    store.schedules.plan()
    return store


def run_some(store, agents):
    """Return what a scheduler runs in three minutes, in its loop."""
    ran, looks = [], []

    def look(seconds):
        looks.append(seconds)
        agents.clock.move(60)
        return len(looks) > 3

    scheduler = Scheduler(store, lambda schedule, _run: ran.append(schedule["schedule_id"]))
    scheduler._stop.wait = look
    scheduler._stop.is_set = lambda: len(looks) > 3
    scheduler.loop()
    return ran


@pytest.mark.parametrize(
    "broken",
    [
        "session_mode = '[1]'",
        "prompt = x'ff00'",
        "cron_expression = 'garbage'",
        "cron_expression = 'garbage', next_run_at = NULL",
        "delivery = '[]'",
    ],
)
def test_broken_schedule_keeps_no_other_from_running(store, agents, tmp_path, broken):
    with raw(tmp_path / "agents.db") as conn:
        conn.execute(f"UPDATE schedules SET {broken} WHERE schedule_id = 'bad'")
    ran = run_some(store, agents)
    assert ran.count("good") >= 2
    if broken.startswith(("prompt", "cron")):
        # It says why it does not run, and is not claimed again and again.
        row = store.schedules.get("bad")
        assert row["status"] == "failed"
        assert row["last_error"]
        assert ran.count("bad") <= 1


def test_unexpected_error_of_a_look_does_not_end_the_loop(store, agents, monkeypatch, caplog):
    looks = []

    def plan():
        looks.append(1)
        raise ZeroDivisionError("injected")

    monkeypatch.setattr(store.schedules, "plan", plan)
    assert run_some(store, agents) == []
    assert len(looks) > 2
    assert "injected" in caplog.text


def test_command_is_judged_by_its_exit_code():
    reports = []

    def run(script, **more):
        CommandRun(["sh", "-c", script], reports.append)(SCHEDULE | more, RUN)

    run(r"printf '\377\n' >&2")
    run("cat", prompt="half \ud83d")
    run("true", prompt="x" * 5_000_000)
    with pytest.raises(RuntimeError, match=r"^no . model$"):
        run(r"echo first >&2; printf 'no \377 model\n' >&2; exit 3")
    with pytest.raises(RuntimeError, match="exit code 4"):
        run("exit 4")


def test_process_that_a_command_leaves_behind_is_not_waited_for(tmp_path):
    """It keeps the standard error open, for as long as it lives."""
    left = tmp_path / "pid"
    command = CommandRun(["sh", "-c", f"sleep 3600 & echo $! > {left}"], lambda _text: None)
    thread = threading.Thread(target=command, args=(SCHEDULE, RUN), daemon=True)
    thread.start()
    thread.join(60)
    try:
        assert not thread.is_alive()
    finally:
        os.kill(int(left.read_text()), signal.SIGKILL)
