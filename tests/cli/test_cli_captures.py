"""What the commands that are used most show at 60, 80 and 120 columns, kept whole as files.

``WRITE_CAPTURES=1 pytest tests/cli/test_cli_captures.py`` writes the files of ``captures/`` again;
the difference is then read by a person.
"""

import io
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from support.actors import end_actors
from support.cli_home import DAY, NOW, Home, called, said
from support.terminal import terminal

from hermes_actor.cli import run
from hermes_actor.cli.actor.status import _lines as status_lines
from hermes_actor.cli.output.formatting import width
from hermes_actor.cli.output.live_view import render
from hermes_actor.cli.start.doctor import checks
from hermes_protocol.status import (
    ConnectionStatus,
    IndexStatus,
    Latency,
    LeaseStatus,
    QueueStatus,
    SQLiteStatus,
    Status,
)

CAPTURES = Path(__file__).with_name("captures")
COLUMNS = (60, 80, 120)
SHOWN_HOME = "/home/ann/agent-home"
"""Stands in the files for the home of the test, whose path has as many characters."""

COMMANDS = {
    "help": "--help",
    "help-list": "help sessions list",
    "sessions-list": "sessions list",
    "sessions-list-archived": "sessions list --archived",
    "sessions-show": "sessions show 20260301_101010_aaaaaa --no-messages",
    "sessions-stats": "sessions stats",
    "search": "search parser",
    "search-context": "search 解析器 --context",
    "resume": "resume 20260301_101010_aaaaaa --peek",
    "insights": "insights",
    "status": "status",
    "doctor": "doctor",
    "backups": "restore --list",
    "prune": "sessions prune --older-than 1 --dry-run",
    "wrong-command": "sesions",
    "no-session": "sessions show zzz",
    "no-store": "sessions list --db /nonexistent/folder/of/a/store/state.db",
}  # fmt: skip


class _Screen(io.StringIO):
    """Standard output on a terminal."""

    def isatty(self):
        return True


@pytest.fixture
def ann(clock, capsysbinary, monkeypatch):
    """A home whose path has a known length, with sessions of several kinds."""
    path = Path(tempfile.mkdtemp(prefix="hermes-", dir="/tmp"))
    assert len(str(path)) == len(SHOWN_HOME)
    for name, value in (
        ("HERMES_HOME", str(path)), ("TZ", "UTC"), ("NO_COLOR", "1"), ("LINES", "500"),
        ("XDG_STATE_HOME", str(path / "state")),
    ):  # fmt: skip
        monkeypatch.setenv(name, value)
    for name in ("HERMES_ACTOR_IDLE_EXIT", "HERMES_ACTOR_UPGRADE"):
        monkeypatch.delenv(name, raising=False)
    time.tzset()
    clock.at(NOW)
    made = Home(path, clock, capsysbinary, monkeypatch)
    fill(made)
    yield made
    end_actors(made.db_path)
    shutil.rmtree(path)
    monkeypatch.undo()
    time.tzset()


def fill(home):
    home.add(
        "20260301_101010_aaaaaa",
        "Why does the parser of the nightly build fail on files with more than one header?",
        called("read_file", "terminal"),
        said("tool", "line 1 of a very long answer of a tool, which nobody reads to its end " * 3,
             tool_name="terminal"),
        said("assistant", "The parser reads the **first** header only; the others are data to it."),
        started=9 * DAY, ended=9 * DAY - 600, title="The parser and its headers",
        model="example-model-large-2026-02", tokens={
            "input_tokens": 48_120, "output_tokens": 2_210, "estimated_cost_usd": 0.4123},
    )  # fmt: skip
    home.add(
        "20260222_200000_cccccccc", "解析器 为什么 失败? parser", said("assistant", "因为解析器只读一行。"),
        started=8 * DAY, source="telegram", title="日本語と絵文字 🚀 の長い題名がここにあります",
        model="小さなモデル",
    )  # fmt: skip
    home.add(
        "agent:main:telegram:group:-1001234567890:20260221_070000_dddd", "Remind me of the parser",
        started=9.5 * DAY, source="telegram", model="example-model-small",
        tokens={"input_tokens": 900, "output_tokens": 80, "estimated_cost_usd": 0.0012},
    )  # fmt: skip
    home.add(
        "20260215_120000_eeeeee", "An old plan", started=15 * DAY, ended=15 * DAY, title="Plan"
    )
    with home.store() as db:
        db.archive_session("20260215_120000_eeeeee")


@pytest.fixture
def fixed(monkeypatch):
    """Facts of this machine that doctor names."""
    monkeypatch.setattr(checks, "__version__", "0.1.0")
    monkeypatch.setattr(
        checks, "sys", SimpleNamespace(version="3.11.7 x", executable=sys.executable)
    )
    monkeypatch.setattr(checks, "sqlite3", SimpleNamespace(sqlite_version="3.40.1"))
    monkeypatch.setattr(checks, "wal_reset_safe", lambda: False)
    disk = SimpleNamespace(
        kind="ext4", mounted_at="/home", is_network=False, is_ephemeral=False, read_only=False
    )
    monkeypatch.setattr(checks, "file_system_of", lambda _: disk)
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 40))


def typed(home, monkeypatch, columns, *words):
    """Return what a terminal of so many columns shows after a command."""
    monkeypatch.setenv("COLUMNS", str(columns))
    results, errors = _Screen(), _Screen()
    monkeypatch.setattr(sys, "stdout", results)
    monkeypatch.setattr(sys, "stderr", errors)
    code = run(words)
    # Beside results, standard error has the progress, which is gone from the screen at the end.
    return shown(results.getvalue() or errors.getvalue(), home.path) + f"[exit {code}]\n"


def shown(text, home):
    """Return *text* with the home of the documents."""
    text = text.replace(str(home), SHOWN_HOME)
    return "".join(f"{line.rstrip()}\n" for line in text.rstrip("\n").split("\n"))


def compare(name, pictures):
    """Compare pictures by their width with the file of that name; each fits its width."""
    whole = "".join(f"======== {columns} columns\n{text}" for columns, text in pictures.items())
    file = CAPTURES / f"{name}.txt"
    if os.environ.get("WRITE_CAPTURES"):
        file.write_text(whole)
    for columns, text in pictures.items():
        for line in text.splitlines():
            # A path is never cut: a person copies it.
            assert width(line) <= columns or ("/" in line.strip() and " " not in line.strip()), line
    changed = "if the new output is right: WRITE_CAPTURES=1 pytest tests/cli/test_cli_captures.py"
    assert whole == file.read_text(), changed


@pytest.mark.parametrize("name", COMMANDS)
def test_command(ann, fixed, monkeypatch, name):
    words = COMMANDS[name].split()
    compare(name, {columns: typed(ann, monkeypatch, columns, *words) for columns in COLUMNS})


def test_doctor_with_much_to_say(ann, fixed, monkeypatch):
    (ann.path / "config.yaml").write_text("actor: {idle_exit: soon, upgrad: auto}\n")
    (ann.path / "state.db").chmod(0o644)
    ann.path.chmod(0o755)
    orphan = ann.path / "state.db.orphan-wal.7"
    orphan.write_bytes(b"x" * 5000)
    orphan.chmod(0o600)
    (ann.path / "state.db.damaged-20260222-200000").write_bytes(b"x")
    pictures = {}
    for columns in COLUMNS:
        # A reader makes -wal and -shm; that of the whole check, while the other checks look.
        for suffix in ("-wal", "-shm"):
            (ann.path / f"state.db{suffix}").unlink(missing_ok=True)
        pictures[columns] = typed(ann, monkeypatch, columns, "doctor", "--quick")
    compare("doctor-much", pictures)


STATUS = Status(
    pid=4711, version="0.1.0", phase_text="serving", uptime_s=93_784.2,
    database=f"{SHOWN_HOME}/state.db", sqlite=SQLiteStatus(version="3.40.1", wal_reset="possible beside a foreign writer"), python="3.11.7",
    queue=QueueStatus(count=12, bytes=48_000, oldest_age_s=0.002), batches=318_442,
    batch_sizes={"1": 300_000, "2-4": 12_000, "5-16": 6_000, "17-64": 442}, writes=402_118,
    commit_latency=Latency(count=318_442, p50_ms=1.281, p99_ms=6.487, max_ms=88.1),
    total_latency=Latency(count=402_118, p50_ms=1.922, p99_ms=9.731, max_ms=121.9), epoch=17,
    checkpoints={"passive.complete": 310, "passive.partial": 3, "truncate.complete": 4}, wal_frames=1_204,
    index=IndexStatus(watermark=402_000, newest=402_118, lag=118),
    degraded=["programs beside the actor have committed 3 times; pid 812 (sqlite3) has the file open"],
    connections=[
        ConnectionStatus(name="hermes gateway run --all-platforms", pid=811, requests=301_113),
        ConnectionStatus(name="予定の番人", pid=90_210, requests=9_020),
        *(ConnectionStatus(name=f"cron-{n}", pid=1000 + n, requests=10 + n) for n in range(9)),
    ],
    lease=LeaseStatus(name="kanban", pid=812, since=NOW - 2.5, statements=14),
)  # fmt: skip


def test_status_of_an_actor_that_serves(monkeypatch, clock):
    clock.at(NOW)
    monkeypatch.setattr(sys, "stdout", _Screen())
    pictures = {}
    for columns in COLUMNS:
        monkeypatch.setenv("COLUMNS", str(columns))
        pictures[columns] = "".join(f"{line}\n" for line in status_lines(STATUS))
    compare("status-serving", pictures)


def test_top(clock):
    clock.at(NOW)
    pictures = {}
    for columns in COLUMNS:
        console = Console(file=io.StringIO(), width=columns, height=40)
        console.print(render(STATUS, 812.4, hint="q quits, Space pauses", curve="▁▂▃▅█" * 12))
        pictures[columns] = shown(console.file.getvalue(), Path("/nonexistent"))
    compare("top", pictures)


def test_browse(ann):
    pictures = {}
    for columns in COLUMNS:
        folder = ann.path / str(columns)
        folder.mkdir()
        with terminal(folder, "sessions", "browse", columns=columns, TZ="UTC") as screen:
            pictures[columns] = shown(screen.wait_for("3 sessions"), ann.path)
            screen.press("Escape")
            screen.wait_for("Cancelled.")
    compare("browse", pictures)


def test_every_file_of_captures_belongs_to_a_test():
    names = {path.stem for path in CAPTURES.iterdir()}
    assert names == {*COMMANDS, "doctor-much", "status-serving", "top", "browse"}
