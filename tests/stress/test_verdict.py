"""The whole way of a verdict, from clients to rules: who tampers with the file is found."""

import json
import random
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from harness import workload
from harness.sandbox import Sandbox
from harness.workload import run_clients

CHECK = Path(__file__).parents[2] / "stress" / "check_history.py"

LAST = "(SELECT MAX(id) FROM messages WHERE session_id = 'w0')"

TAMPERING = {
    "a message is gone": (f"DELETE FROM messages WHERE id = {LAST}", {"lost", "torn"}),
    "a receipt is gone": (
        "DELETE FROM hermes_actor_receipts WHERE commit_no = (SELECT commit_no FROM"
        " hermes_actor_receipts ORDER BY commit_no DESC LIMIT 1 OFFSET 3)",
        {"gap", "torn"},
    ),
    "a text is another": (
        f"UPDATE messages SET content = content || 'y' WHERE id = {LAST}",
        {"altered"},
    ),
    "a message is there twice": (
        "INSERT INTO messages (session_id, role, content, timestamp)"
        f" SELECT session_id, role, content, timestamp FROM messages WHERE id = {LAST}",
        {"doubled", "torn"},
    ),
    "a message of nobody is there": (
        "INSERT INTO messages (session_id, role, content, timestamp)"
        " VALUES ('w0', 'user', 'w0 99999 x', 1.0)",
        {"phantom"},
    ),
    "a counter does not fit": (
        "UPDATE sessions SET message_count = message_count + 1 WHERE id = 'w0'",
        {"structure"},
    ),
}


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory):
    """A store with its history, which no process uses any more."""
    sandbox = Sandbox(tmp_path_factory.mktemp("verdict") / "sandbox")
    with (
        sandbox.open(),
        run_clients(sandbox, random.Random(1), writers=2, readers=1, depth=4, large=0.01) as load,
    ):
        load.goes_on(100)
    return sandbox


def verdict(sandbox, database):
    words = [sys.executable, CHECK, sandbox.folder / "history", database, "--json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    return done.returncode, json.loads(done.stdout)


def test_history_without_fault(sandbox):
    code, found = verdict(sandbox, sandbox.path)
    assert (code, found["violations"], found["refusals"]) == (0, [], [])
    assert found["counts"]["acknowledged"] == found["counts"]["rows"] >= 90
    assert found["counts"]["reads"] > 0
    assert found["sqlite"] != sqlite3.sqlite_version


@pytest.mark.parametrize("what", TAMPERING)
def test_tampering_is_found(sandbox, tmp_path, what):
    sql, rules = TAMPERING[what]
    copy = tmp_path / "state.db"
    shutil.copy(sandbox.path, copy)
    with closing(sqlite3.connect(copy, isolation_level=None)) as conn:
        assert conn.execute(sql).rowcount == 1
    code, found = verdict(sandbox, copy)
    assert code == 1
    assert {text.partition(":")[0] for text in found["violations"]} >= rules


def test_file_that_is_none_is_found(sandbox, tmp_path):
    (tmp_path / "state.db").write_bytes(b"no database" * 1000)
    code, found = verdict(sandbox, tmp_path / "state.db")
    assert code == 1
    assert any("cannot be read" in text for text in found["violations"])


@pytest.mark.parametrize(
    ("text", "is_known"),
    [
        ("q0 7 at 12.5 OutcomeUnknown: request 7 …; its receipt has been swept", True),
        ("q0 7 at 20.5 OutcomeUnknown: request 7 …; its receipt has been swept", False),
        ("q0 7 at 4.5 OutcomeUnknown: request 7 …; its receipt has been swept", False),
        ("q0 7 at 12.5 OutcomeUnknown: the connection was lost", False),
    ],
)
def test_outcome_is_unknown_only_to_who_writes_in_a_hand_off(tmp_path, text, is_known):
    sandbox = SimpleNamespace(folder=tmp_path)
    (tmp_path / "events").write_text("1.0 a note\n10.0 12.0 hand_off\n18.0 19.0 kill\n")
    assert workload._was_under_way(sandbox, text) == is_known
