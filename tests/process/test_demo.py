"""The demonstration: its verdict is right, it fits a terminal, and nothing of it is left behind."""

import contextlib
import io
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from support import peer
from support.actors import wait_for
from support.terminal import terminal

from hermes_actor import SessionDB
from hermes_actor.cli import run
from hermes_actor.cli.start.demo import _views as views
from hermes_actor.testing import plain as plain_stage
from hermes_actor.testing import scenario as stage
from hermes_actor.testing.history import Write
from hermes_actor.testing.load import Event
from hermes_actor.testing.records import SOURCE, Recorded, checksum
from hermes_actor.testing.writer_pool import History, Look, WriterPool, check

COMMAND = [sys.executable, "-m", "hermes_actor", "demo"]


def processes_of(home):
    """Every process that was started with a path in *home*."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            command = (entry / "cmdline").read_bytes()
            if os.fsencode(home) in command:
                found.append((int(entry.name), command))
    return found


@pytest.mark.slow
def test_whole_show_has_a_clean_verdict_and_leaves_nothing():
    done = subprocess.run(
        [*COMMAND, "--seconds", "6", "--writers", "3", "--seed", "1", "--json"],
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["good"]
    assert found["faults"] == []
    assert found["acknowledged"] == found["present"] > 50
    zeros = ("lost", "doubled", "out_of_order", "failed", "unseen")
    assert [found[name] for name in zeros] == [0] * 5
    assert (found["kills"], found["terms"], found["rolled_back"]) == (2, 1, 1)
    assert found["handoffs"] >= 1
    assert found["compared"] > found["acknowledged"]
    assert found["longest_pause_ms"] >= max(event["longest_ms"] for event in found["events"])
    assert not Path(found["home"]).exists()
    assert processes_of(found["home"]) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_show_leaves_nothing(number):
    with subprocess.Popen(
        [*COMMAND, "--writers", "2"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        first = process.stdout.readline()
        (home,) = re.findall(r" in (\S+)", first)
        # Later than that a hand-off is under way.
        assert "writes" in process.stdout.readline()
        assert processes_of(home)
        process.send_signal(number)
        told, _ = process.communicate(timeout=60)
    # By the signal, as its parent expects; Ctrl-C has a code of its own.
    assert process.returncode == (130 if number is signal.SIGINT else -number), told
    assert "Traceback" not in told
    assert not Path(home).exists()
    wait_for(lambda: not processes_of(home), timeout=60)


# --- the check -------------------------------------------------------------------------------


def record(number, ident, text):
    payload = checksum(f"w {number} {text}")
    return Write("w", number, payload, 0.0, 0.1, "ok", ident, ident)


def recorded(writes, refusals=()):
    return Recorded(writes, [], [], [], list(refusals))


@pytest.fixture
def kept(tmp_path):
    """A store with what one writer has written, and its records."""
    path = tmp_path / "state.db"
    db = SessionDB(path, mode="embedded")
    db.create_session("w", SOURCE)
    records = [record(n, db.append_message("w", "user", f"w {n} a"), "a") for n in range(4)]
    yield db, path, records
    db.close()


def test_check_finds_nothing_wrong_in_a_good_history(kept):
    _, path, records = kept
    assert check(path, recorded(records)) == History(4, 4, 0, 0, 0, 0, [])


def test_check_finds_what_was_lost(kept):
    _, path, records = kept
    told = [*records, record(4, 999, "a")]
    assert check(path, recorded(told)) == History(5, 4, 1, 0, 0, 0, [])


def test_check_finds_what_has_another_text_or_another_place(kept):
    _, path, records = kept
    told = [records[0], record(1, records[1].result, "b"), records[2], record(3, 999, "a")]
    assert check(path, recorded(told)).lost == 2


def test_check_finds_what_is_doubled(kept):
    db, path, records = kept
    db.append_message("w", "user", "w 1 a")
    assert check(path, recorded(records)) == History(4, 5, 0, 1, 0, 0, [])


def test_check_finds_what_is_out_of_order(kept):
    db, path, records = kept
    one, other = records[1].result, records[2].result
    db._conn.execute("UPDATE messages SET content = 'w 2 a' WHERE id = ?", (one,))
    db._conn.execute("UPDATE messages SET content = 'w 1 a' WHERE id = ?", (other,))
    told = [records[0], record(1, other, "a"), record(2, one, "a"), records[3]]
    assert check(path, recorded(told)) == History(4, 4, 0, 0, 1, 0, [])


def test_check_finds_a_message_that_no_writer_sent(kept):
    db, path, records = kept
    db.append_message("w", "user", "w 4 a")
    assert check(path, recorded(records)).faults == [
        "1 messages are there that no writer has an answer for"
    ]


def test_failed_write_may_be_there_or_not_and_is_a_fault(kept):
    _, path, records = kept
    unknown = Write("w", 3, None, 0.0, 0.1, "unknown")
    absent = Write("w", 4, None, 0.0, 0.1, "failed")
    refusals = ["OutcomeUnknown: x", "Busy: y"]
    found = check(path, recorded([*records[:3], unknown, absent], refusals))
    assert found[:6] == (3, 4, 0, 0, 0, 2)
    assert found.faults == ["a write has failed: OutcomeUnknown: x", "a write has failed: Busy: y"]


# --- the command -----------------------------------------------------------------------------

GOOD = History(10, 10, 0, 0, 0, 0, [])


def events(**longest):
    kinds = ("handoff", "kill", "kill", "term", "broken")
    return [Event(kind, kind, 1.0 + n, 1.5 + n, "1 → 2") for n, kind in enumerate(kinds)]


class Played:
    """A show that is over."""

    history = GOOD
    title = "hermes-actor"
    serving = "pid 4711 serves"

    def __init__(self, seconds, writers, readers, seed, rough=False):
        self.seconds, self.writers, self.readers, self.seed = seconds, writers, readers, seed
        self.rough = rough
        self.pool = SimpleNamespace(looks=[Look(10, [], 0.0, 0.002)])
        self.events, self.faults, self.home = events(), [], Path("the home")
        self.acknowledged, self.failed, self.longest, self.began, self.elapsed = 10, 0, 0.5, 1.0, 9
        self.running, self.now, self.keep = False, None, False
        Played.last = self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def start(self):
        pass

    def finish(self):
        return self.history

    def done(self, kind):
        return sum(event.kind == kind for event in self.events)


@pytest.fixture
def played(monkeypatch):
    monkeypatch.setattr(stage, "Scenario", Played)
    return lambda **values: [monkeypatch.setattr(Played, *item) for item in values.items()]


def test_good_verdict(played, capsys):
    assert run(["demo"]) == 0
    told = capsys.readouterr().out
    assert "acknowledged   10 writes of 8 processes\n" in told
    assert told.endswith("Nothing was lost, duplicated or reordered, and every write succeeded.\n")
    assert not Played.last.keep


@pytest.mark.parametrize(
    "history",
    [
        GOOD._replace(lost=1),
        GOOD._replace(doubled=1),
        GOOD._replace(out_of_order=1),
        GOOD._replace(failed=1),
        GOOD._replace(present=9),
        GOOD._replace(faults=["quick_check: broken"]),
        History(0, 0, 0, 0, 0, 0, []),
    ],
)
def test_bad_verdict_keeps_the_home_and_says_where(history, played, capsys):
    played(history=history)
    assert run(["demo"]) == 1
    assert "The demo failed. Its files are kept in the home" in capsys.readouterr().out
    assert Played.last.keep


def test_planned_event_that_did_not_happen_is_a_bad_verdict(played, capsys):
    played(done=lambda self, kind: 1)
    assert run(["demo", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["faults"]


def test_read_that_missed_something_is_a_bad_verdict(played, monkeypatch, capsys):
    looks = [Look(10, ["writer-1 3 x"], 0.0, 0.002)]
    start = lambda self: setattr(self.pool, "looks", looks)  # noqa: E731
    monkeypatch.setattr(Played, "start", start)
    assert run(["demo"]) == 1
    assert "WRONG a reader did not see writer-1 3 x" in capsys.readouterr().out


class PlayedPlain(Played):
    """The half on plain sqlite3, in which writes failed."""

    title, note = "plain sqlite3", "Why this one."

    def __init__(self, *values, **named):
        super().__init__(*values, **named)
        refusals = ["Refused: database is locked"] * 3 + ["Refused: disk I/O error"]
        self.pool.recorded = Recorded([], [], [], [], refusals)
        self.longest = 5.05
        self.events = [Event("suspend", "a writer suspended", 2.0, 8.0, "12, x", longest=5.04)]

    def finish(self):
        return History(90, 90, 0, 0, 0, 4, ["a write has failed: Refused: database is locked"])


def test_comparison_shows_both_halves_and_judges_ours(played, monkeypatch, capsys):
    monkeypatch.setattr(plain_stage, "plain_load", lambda: PlayedPlain)
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["demo", "--compare"]) == 0
    assert Played.last.rough
    shown = capsys.readouterr().out.splitlines()
    table = shown[shown.index(next(line for line in shown if "─" in line)) - 1 :]
    assert table == [
        "                  plain sqlite3           hermes-actor",
        "─" * 78,
        "acknowledged      90 writes               10 writes",
        "failed writes     4                       0",
        "longest pause     5,050 ms                500 ms",
        "lost              0                       0",
        "duplicated        0                       0",
        "out of order      0                       0",
        "writer suspended  others waited 5,040 ms  -",
        "besides           nothing                 1 hand-off, 3 kills, 1 broken update",
        "Why this one.",
        "plain sqlite3: 3 writes failed: database is locked; 1 write failed: disk I/O"
        " error; one write waited 5.0 s.",
        "hermes-actor: Nothing was lost, duplicated or reordered, and every write succeeded.",
    ]  # fmt: skip
    played(history=GOOD._replace(lost=1))
    assert run(["demo", "--compare", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["good"]
    assert not found["plain"]["good"]
    assert found["plain"]["errors"] == {"database is locked": 3, "disk I/O error": 1}


PEER_INSTALLED = {"PYTHONPATH": str(peer.FOLDER)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "title"), [({}, "plain sqlite3"), (PEER_INSTALLED, "hermes-agent 0.14.0")]
)
def test_whole_comparison_puts_the_same_load_on_both(environment, title):
    done = subprocess.run(
        [*COMMAND, "--compare", "--seconds", "5", "--writers", "3", "--json"],
        capture_output=True,
        text=True,
        timeout=110,
        env=os.environ | environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    ours = json.loads(done.stdout)
    plain = ours["plain"]
    assert plain["title"] == title
    assert ("is installed here" in plain["note"]) == bool(environment)
    for found in (ours, plain):
        assert found["acknowledged"] == found["present"] > 10
        assert [event["what"] for event in found["events"]].count("a writer suspended") == 1
        assert found["lost"] == found["doubled"] == found["unseen"] == 0
        assert not Path(found["home"]).exists()
        assert processes_of(found["home"]) == []
    # A suspended process of ours holds nothing; of the others one may have been in a transaction.
    (event,) = [event for event in ours["events"] if event["kind"] == "suspend"]
    assert event["outcome"].endswith("which holds no lock")
    assert (ours["kills"], ours["terms"], ours["rolled_back"]) == (2, 1, 1)


WHICH = "from hermes_actor.testing.plain import plain_load; print(plain_load().__name__)"
DROP_IN = "import sys, hermes_actor.hermes_state as one; sys.modules['hermes_state'] = one; "


@pytest.mark.parametrize(
    ("before", "environment", "chosen"),
    [
        ("", {}, "PlainLoad"),
        ("", PEER_INSTALLED, "ReleasedLoad"),
        # The drop-in would compare us with ourselves.
        (DROP_IN, PEER_INSTALLED, "PlainLoad"),
    ],
)
def test_the_half_without_an_actor_is_what_is_installed(before, environment, chosen):
    done = subprocess.run(
        [sys.executable, "-c", before + WHICH],
        capture_output=True, text=True, timeout=110, env=os.environ | environment,
    )  # fmt: skip
    assert done.stdout == f"{chosen}\n", done.stderr


def test_a_module_of_that_name_without_the_package_is_not_taken_for_it(tmp_path):
    (tmp_path / "hermes_state.py").write_text("raise SystemExit('it was imported')")
    done = subprocess.run(
        [sys.executable, "-c", WHICH],
        capture_output=True, text=True, timeout=110, env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert done.stdout == "PlainLoad\n", done.stderr


def test_a_refused_write_is_rolled_back_and_recorded_as_refused(tmp_path):
    path = tmp_path / "state.db"
    SessionDB(path, mode="embedded").close()
    with (
        WriterPool(path, tmp_path / "records") as pool,
        contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other,
    ):
        pool.add(1, plain_stage.PlainLoad.work, pause=0.001)
        pool.start()
        other.execute("BEGIN IMMEDIATE")
        pool.go()
        wait_for(lambda: pool.recorded.refusals, timeout=60)
        other.execute("ROLLBACK")
        wait_for(lambda: pool.acknowledged()["writer-0"] >= 3, timeout=60)
    found = check(path, pool.recorded)
    assert pool.recorded.refusals[0].endswith(" Refused: database is locked")
    assert found.acknowledged == found.present >= 3
    assert found.failed >= 1


def test_events_stay_on_the_screen_and_the_terminal_is_clean(tmp_path):
    words = ("demo", "--seconds", "5", "--writers", "2")
    with terminal(tmp_path, *words, columns=80, lines=50) as screen:
        screen.wait_for("hand-off 1")
        shown = screen.wait_for("[exit 0]", timeout=110)
    assert "every write succeeded" in shown
    for what in ("hand-off 1 ", "SIGTERM ", "broken update ", "kill -9 in a hand-off "):
        assert what in shown
    assert not set("╭│╰") & set(shown)


def test_panel_fits_a_small_terminal():
    shown = []
    picture = views._Picture(shown.append)
    show = Played(15, 64, 2, 0)
    show.events = [
        Event("kill", "kill -9 in a hand-off", 1.0, 2.0, "4194303 → 4194304, which took back")
    ] * 40
    show.acknowledged, show.longest, show.now = 12_345_678, 12.3456, show.events[-1]
    for show.elapsed in (0.1, 5.0, 20.0):
        picture.draw(show, 1000)
    console = Console(file=io.StringIO(), width=80, height=24)
    console.print(shown[-1])
    lines = console.file.getvalue().splitlines()
    assert len(lines) < 24
    assert max(map(len, lines)) <= 80
    assert any("which took" in line for line in lines)


def test_event_knows_the_longest_write_that_met_it():
    event = Event("kill", "kill -9", 10.0, 11.0)
    for began, ended in ((8.0, 9.9), (9.8, 10.1), (10.9, 11.5), (11.1, 19.0)):
        event.met(Write("w", 0, None, began, ended, "ok"))
    assert event.longest == pytest.approx(0.6)
