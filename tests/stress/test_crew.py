"""Rounds of the benchmarks: workers report what was acknowledged, and the check finds a lie."""

import crew
import pytest
import writer_table
from support.files import raw

WORKERS, SECONDS = 2, 0.5


@pytest.fixture(params=["ours", "pipeline"])
def round_(request, tmp_path):
    """A store, and what two workers wrote to it."""
    path = tmp_path / "state.db"
    with crew.actor_on(path) as db:
        writer_table.create_sessions(db, WORKERS)
        run = crew.write_together(request.param, path, tmp_path, WORKERS, SECONDS, "seed")
    return path, run


def test_round_is_reported_and_agrees_with_the_file(round_):
    path, run = round_
    assert crew.check(path, run) == []
    assert all(report.acked and report.latency for report in run.reports)
    assert [report.errors for report in run.reports] == [{}, {}]
    assert writer_table.round_of(run, SECONDS, []).rate > 0


def test_lost_and_unacknowledged_messages_are_found(round_):
    path, run = round_
    with raw(path) as conn:
        conn.execute("DELETE FROM messages WHERE id = ?", (run.reports[0].acked[0][1],))
    run.reports[1].acked.pop()
    run.reports[1].tokens += 1
    faults = "\n".join(crew.check(path, run))
    assert f"{crew.session_id(0)}: " in faults
    assert "lost [0]" in faults
    assert "counters say" in faults
    assert "updates of token counts acknowledged" in faults
    assert f"{crew.session_id(1)}: " in faults


def test_worker_that_fails_is_a_fault_and_not_a_report(tmp_path, monkeypatch):
    """It is noticed when it ends, and not after the time that it may take."""
    monkeypatch.setattr(crew, "READY_SECONDS", 3600.0)
    missing = tmp_path / "no folder" / "state.db"
    missing.parent.write_text("a file where a folder should be")
    with pytest.raises(TimeoutError, match="a worker does not come up"):
        crew.write_together("ours", missing, tmp_path, 1, SECONDS, "seed")
