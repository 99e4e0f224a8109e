"""Settings of config.yaml reach the actor: option, environment, file, default, in that order."""

import os
import subprocess
import sys

import pytest
from support.actors import actors_of, folder_of, wait_no_actor

from hermes_actor import SessionDB
from hermes_actor.client.control import ask_status
from hermes_actor.errors import Unsupported
from hermes_actor.paths import resolve_paths


def settle(path, text):
    path.with_name("config.yaml").write_text(text)


def write_sql(path):
    db = SessionDB(path)
    try:
        db._conn.execute("UPDATE sessions SET title = 'x'")
    finally:
        db.close()


def test_private_sql_is_switched_off_by_the_file(path):
    settle(path, "actor:\n  private_sql: false\n")
    with pytest.raises(Unsupported):
        write_sql(path)


def test_the_environment_wins(path, monkeypatch):
    settle(path, "actor: {private_sql: off}\n")
    monkeypatch.setenv("HERMES_ACTOR_PRIVATE_SQL", "1")
    write_sql(path)


def test_idle_exit_of_the_file_ends_an_actor_that_was_started_on_demand(path, monkeypatch):
    monkeypatch.delenv("HERMES_ACTOR_IDLE_EXIT")
    settle(path, "actor: {idle_exit: 0.2}\n")
    SessionDB(path).close()
    assert actors_of(path)
    wait_no_actor(path)


def test_a_broken_file_costs_no_client_a_change(path):
    """Many programs share it; the actor goes on with the defaults and says so in its log."""
    settle(path, "actor:\n  private_sql: false\n bad\n")
    write_sql(path)
    assert ask_status(resolve_paths(path)).is_serving
    assert "config.yaml, line 3" in (folder_of(path) / "log").read_text()


def test_a_broken_file_is_reported_to_the_caller_of_the_command(path):
    settle(path, "actor: {drain_seconds: soon}\n")
    done = subprocess.run(
        [sys.executable, "-m", "hermes_actor", "serve", "--db", path],
        capture_output=True, text=True, timeout=60, env=os.environ,
    )  # fmt: skip
    assert done.returncode == 1
    assert "config.yaml: actor.drain_seconds must be a number, 0 or more, not 'soon'" in (
        done.stdout + done.stderr
    )


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("HERMES_ACTOR_IDLE_EXIT", "abc"),
        ("HERMES_ACTOR_DRAIN_SECONDS", "nan"),
        ("HERMES_ACTOR_PRIVATE_SQL", "perhaps"),
        ("HERMES_ACTOR_RESCUE", "2"),
        ("HERMES_ACTOR_UPGRADE", "sometimes"),
    ],
)
def test_nonsense_in_a_variable_costs_one_setting_and_no_change(path, monkeypatch, variable, value):
    settle(path, "actor: {idle_exit: 30}\n")
    monkeypatch.setenv(variable, value)
    write_sql(path)
    if variable != "HERMES_ACTOR_UPGRADE":  # clients read that one
        assert f"{variable} must be " in (folder_of(path) / "log").read_text()


def test_a_slip_of_another_program_takes_no_store_away(tmp_path, monkeypatch):
    """Only the section that says where the sessions are decides about it."""
    default = tmp_path / "state.db"
    monkeypatch.setattr("hermes_actor.session_db.DEFAULT_DB_PATH", default)
    if "hermes_actor.hermes_state" in sys.modules:  # its default counts where it is loaded
        monkeypatch.setattr("hermes_actor.hermes_state.DEFAULT_DB_PATH", default)
    elsewhere = tmp_path / "elsewhere.db"
    for text, file in [
        ("model: [1\n", tmp_path / "state.db"),
        (f"model: [1\nsessiondb:\n  dsn: sqlite:///{elsewhere}\n", elsewhere),
    ]:
        (tmp_path / "config.yaml").write_text(text)
        db = SessionDB()
        try:
            assert db.db_path == file
        finally:
            db.close()
