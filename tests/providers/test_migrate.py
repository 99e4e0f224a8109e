"""Moving stores between providers, through the command: everything arrives, once, as it was."""

import contextlib
import io
import json
import os
import re
import signal
import sqlite3
import stat
import subprocess
import sys
import textwrap
import threading
from functools import partial
from pathlib import Path

import psycopg
import pytest
from rich.console import Console
from support import servers
from support.fake_builds import command
from support.files import query
from support.processes import SCRIPTS

from hermes_actor import SessionDB
from hermes_actor.cli import run
from hermes_actor.cli.move import migrate as cli
from hermes_actor.cli.output import console as output
from hermes_actor.providers.migration import endpoint
from hermes_actor.providers.postgresql import PostgreSQLSessionDBProvider
from hermes_actor.providers.sql import transfer
from hermes_actor.providers.sql.postgresql import bulk
from hermes_actor.store.raw_rows import columns_of

BIG = "ж" * 1_000_000  # 2 MB


def fill(db, messages=30):
    """A store with all that can be in one."""
    db.create_session("root", "cli", model="m", system_prompt="be brief")
    db.set_session_title("root", "Plan")
    db.end_session("root", "compression")
    db.create_session("child", "telegram", user_id="u", parent_session_id="root")
    db.set_session_title("child", "Plan #2")
    db.create_session("empty", "cron")
    db.update_token_counts("child", 10, 20, estimated_cost_usd=0.125)
    for number in range(messages):
        db.append_message("child", "user", f"line {number}\n\ttab \\ and \\N and 北京大学 \r end")
    db.append_message("root", "user", None)
    db.append_message("root", "user", "")
    db.append_message("root", "assistant", "nul \x00 inside, \x1a escape", tool_calls=[{"id": "c"}])
    db.append_message("root", "tool", b"\x00\xff", tool_name="", reasoning="")
    db.append_message("root", "user", [{"type": "text", "text": "structured \ud800 lone"}])
    db.append_message("root", "user", BIG)
    db.replace_messages("empty", [{"role": "user", "content": "old"}])
    db.clear_messages("empty")
    db.set_meta("key", "value")
    db.set_meta("nothing", None)
    db.enable_telegram_topic_mode(chat_id=1, user_id=2, has_topics_enabled=True)
    db.bind_telegram_topic(
        chat_id=1, thread_id=3, user_id=2, session_key="k", session_id="child"
    )  # fmt: skip


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "source" / "state.db"
    with contextlib.closing(SessionDB(path, mode="embedded")) as db:
        fill(db)
        db.archive_session("empty")
        db.queue_title("later", "Kept for later")
    return path


def embedded(path):
    return f"sqlite:///{path}?mode=embedded"


def exported(url):
    """The export of all sessions, as bytes."""
    with contextlib.closing(SessionDB(url)) as db:
        return json.dumps(db.export_all(), default=repr).encode()


@pytest.fixture
def migrate(capsys):
    """The command, in this process."""

    def call(source, target, *words, code=0):
        given = embedded(source) if isinstance(source, Path) else source
        to = embedded(target) if isinstance(target, Path) else target
        ended = run(["migrate", "--from", given, "--to", to, "--yes", "--json", *map(str, words)])
        out, err = capsys.readouterr()
        assert ended == code, err
        return json.loads(out) if code == 0 else err + out

    return call


def rows(path):
    """Everything in a file that is not the writer's own."""
    tables = columns_of()
    return {table: query(path, f"SELECT * FROM {table} ORDER BY 1, 2") for table in tables}


@pytest.mark.parametrize("kind", ["postgresql", "mysql"])
def test_round_trip_gives_the_same_export_byte_for_byte(kind, source, tmp_path):
    url, back, report = servers.new_store(kind), tmp_path / "back.db", tmp_path / "report.json"
    before = exported(embedded(source))
    there = command("migrate", "--from", source, "--to", url, "--report", report)
    assert there.returncode == 0, there.stderr
    assert there.stdout.startswith("Migrated 3 sessions, 36 messages in ")
    assert exported(url) == before
    returned = command("sessiondb", "migrate", "--from", url, "--to", back, "--yes")
    assert returned.returncode == 0, returned.stderr
    assert returned.stdout.startswith("Migrated 3 sessions, 36 messages, 36 FTS entries in ")
    told = [command("sessions", "export", "-", "--db", path).stdout for path in (source, back)]
    assert told[0] == told[1] != ""
    assert rows(back) == rows(source)
    # No number of a message is ever given twice, not even one that only the source has given.
    sequence = "SELECT seq FROM sqlite_sequence WHERE name = 'messages'"
    assert query(back, sequence) == query(source, sequence)
    document = json.loads(report.read_text())
    assert stat.S_IMODE(report.stat().st_mode) == 0o600
    assert document["verified"] is True
    assert {one["source"] == one["target"] for one in document["checksums"].values()} == {True}
    assert document["checksums"]["root"]["messages"] == 6
    assert document["tables"]["hermes_actor_titles"] == 1


@pytest.mark.parametrize("kind", ["postgresql", "mysql"])
def test_what_was_moved_is_found_and_goes_on(kind, source, migrate):
    url = servers.new_store(kind)
    migrate(source, url)
    with contextlib.closing(SessionDB(url)) as db:
        assert len(db.search_messages("line", limit=50)) == 30
        assert len(db.search_messages("北京大学", limit=50)) == 30
        newest = db.append_message("child", "user", "more")
        assert newest > query(source, "SELECT seq FROM sqlite_sequence")[0][0]
        db.create_session("new", "cli", parent_session_id="child")
        with pytest.raises(ValueError, match="already in use"):
            db.set_session_title("new", "Plan")


def test_from_one_server_to_another(source, migrate):
    one, other = servers.new_store("postgresql"), servers.new_store("mysql")
    migrate(source, one)
    done = migrate(one, other)
    assert (done["sessions"], done["messages"]) == (3, 36)
    assert exported(one) == exported(other)


def test_dry_run_makes_nothing(source, tmp_path, migrate):
    target = tmp_path / "none.db"
    told = migrate(source, target, "--dry-run")
    assert (told["sessions"], told["messages"], told["target"]["state"]) == (3, 36, "missing")
    assert not target.exists()
    url = servers.new_store("postgresql")
    assert migrate(source, url, "--dry-run")["target"]["state"] == "missing"
    migrate(source, url)
    told = migrate(source, url, "--dry-run")["target"]
    assert told == {"state": "begun", "sessions": 3, "messages": 36}


# --- again ---------------------------------------------------------------------------------------


@pytest.fixture(params=["file", "postgresql", "mysql"])
def target(request, tmp_path):
    if request.param == "file":
        (tmp_path / "target").mkdir()
        return tmp_path / "target" / "state.db"
    return servers.new_store(request.param)


def address(target):
    return embedded(target) if isinstance(target, Path) else target


def test_twice_copies_nothing_the_second_time(source, target, migrate):
    first = migrate(source, target)
    again = migrate(source, target)
    assert first["copied"] == {"sessions": 3, "messages": 36}
    assert again["copied"] == {"sessions": 0, "messages": 0}
    assert first["checksum"] == again["checksum"]


def test_what_the_source_got_since_is_taken_along(source, target, migrate):
    migrate(source, target)
    with contextlib.closing(SessionDB(source, mode="embedded")) as db:
        db.append_message("child", "user", "a new line")
        db.replace_messages("root", [{"role": "user", "content": "another text"}])
        # A title goes from one session to another.
        db.set_session_title("child", "Something else")
        db.create_session("new", "cli", parent_session_id="child")
        db.set_session_title("new", "Plan #2")
        db.set_meta("key", "other value")
        db.delete_session("empty")
        db.queue_title("later", None)
    done = migrate(source, target)
    # The new one, and that of the session which was replaced: first as new, then with all of it.
    assert done["copied"]["messages"] == 3
    assert done["removed_sessions"] == 1
    assert exported(address(target)) == exported(embedded(source))
    with contextlib.closing(SessionDB(address(target))) as db:
        assert db.get_meta("key") == "other value"
        assert [hit["session_id"] for hit in db.search_messages("another")] == ["root"]
        assert db.search_messages("inside") == []
    if isinstance(target, Path):
        assert rows(target) == rows(source)


def test_a_change_below_the_bookmark_is_found_and_copied_again(source, target, migrate):
    migrate(source, target)
    with contextlib.closing(sqlite3.connect(source)) as conn, conn:
        conn.execute("UPDATE messages SET content = 'changed afterwards' WHERE id = 3")
    done = migrate(source, target)
    assert done["copied"]["messages"] == 30  # of the one session that differs
    assert exported(address(target)) == exported(embedded(source))
    with contextlib.closing(SessionDB(address(target))) as db:
        assert len(db.search_messages("afterwards")) == 1
        assert len(db.search_messages("line", limit=50)) == 29


KILLED = """
    import os, signal, sys
    from hermes_actor.providers.migration import endpoint
    endpoint._PART_ROWS = 7
    flush, left = endpoint.BatchWriter.flush, int(sys.argv[1])

    def flush_and_die(self, bookmark=None):
        global left
        flush(self, bookmark)
        left -= self._table == "messages"
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    endpoint.BatchWriter.flush = flush_and_die
    from hermes_actor.cli import run
    sys.exit(run(sys.argv[2:]))
"""


def killed_after(parts, source, to):
    words = ["migrate", "--from", embedded(source), "--to", address(to), "--yes"]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(KILLED), str(parts), *words],
        env={**os.environ, "PYTHONPATH": str(SCRIPTS)}, capture_output=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr


def test_killed_in_the_middle_it_goes_on(source, target, migrate, monkeypatch):
    # The first part is acknowledged when the third is sent.
    killed_after(4, source, target)
    told = migrate(source, target, "--dry-run")["target"]
    assert told["state"] == "begun"
    assert 0 < told["messages"] < 36
    killed_after(2, source, target)
    with contextlib.closing(SessionDB(source, mode="embedded")) as db:
        db.append_message("child", "user", "meanwhile")
    monkeypatch.setattr(endpoint, "_PART_ROWS", 5)
    done = migrate(source, target)
    assert done["resumed"] is True
    assert done["messages"] == 37
    assert 0 < done["copied"]["messages"] < 37
    assert exported(address(target)) == exported(embedded(source))
    with contextlib.closing(SessionDB(address(target))) as db:
        assert len(db.search_messages("line", limit=50)) == 30


def test_interrupted_between_column_and_indexes_it_goes_on(source, migrate, monkeypatch):
    url = servers.new_store("postgresql")

    def interrupt(conn, index):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(bulk, "make_index", interrupt)
        assert "Interrupted; run the same command again" in migrate(source, url, code=130)
    done = migrate(source, url)
    assert (done["resumed"], done["copied"]["messages"]) == (True, 0)
    assert search_indexes(url) == 3
    with contextlib.closing(SessionDB(url)) as db:
        assert len(db.search_messages("line", limit=50)) == 30


def search_indexes(url):
    with psycopg.connect(url) as conn:
        return conn.execute(
            "SELECT count(*) FROM pg_indexes WHERE schemaname = current_schema()"
            " AND indexdef LIKE '% USING gin %'"
        ).fetchone()[0]


def test_indexes_are_built_with_one_connection_too():
    url = servers.new_store("postgresql")
    settings = {"pool_size": 1, "connect_timeout": 0.1}
    with contextlib.closing(PostgreSQLSessionDBProvider(url, settings=settings)) as db:
        transfer.drop_search(db._port.database)
        assert search_indexes(url) == 0
        transfer.build_search(db._port.database)
    assert search_indexes(url) == 3


def test_who_writes_to_an_unfinished_target_is_not_overwritten(source, target, migrate):
    killed_after(4, source, target)
    with contextlib.closing(SessionDB(address(target))) as db:
        db.append_message("child", "user", "too early")
    assert "changed since it was filled" in migrate(source, target, code=1)
    with contextlib.closing(SessionDB(address(target))) as db:
        assert db.get_messages("child")[-1]["content"] == "too early"


# --- refused -------------------------------------------------------------------------------------


def test_a_target_with_something_in_it_is_left_alone(source, target, migrate):
    with contextlib.closing(SessionDB(address(target))) as db:
        db.create_session("mine", "cli")
        db.append_message("mine", "user", "here first")
    before = exported(address(target))
    for words in ((), ("--dry-run",)):
        assert "the target is not empty" in migrate(source, target, *words, code=1)
    assert exported(address(target)) == before


def test_a_target_that_was_changed_since_is_left_alone(source, target, migrate):
    migrate(source, target)
    with contextlib.closing(SessionDB(address(target))) as db:
        db.set_session_title("root", "Renamed here")
    assert "changed since it was filled" in migrate(source, target, code=1)
    with contextlib.closing(SessionDB(address(target))) as db:
        assert db.get_session_title("root") == "Renamed here"
        db.append_message("child", "user", "written here")
    assert "changed since it was filled" in migrate(source, target, code=1)


def test_a_target_of_another_source_is_left_alone(source, tmp_path, target, migrate):
    other = tmp_path / "other.db"
    with contextlib.closing(SessionDB(other, mode="embedded")) as db:
        db.create_session("else", "cli")
    migrate(other, target)
    before = exported(address(target))
    assert "filled from another store" in migrate(source, target, code=1)
    assert exported(address(target)) == before


def test_onto_itself_and_from_nowhere(source, tmp_path, migrate):
    assert "the same store" in migrate(source, source, code=1)
    assert "there is no store at" in migrate(tmp_path / "no.db", tmp_path / "x.db", code=1)
    assert not (tmp_path / "no.db").exists()
    report = tmp_path / "no folder" / "report.json"
    assert "cannot write" in migrate(source, tmp_path / "x.db", "--report", report, code=1)
    assert not (tmp_path / "x.db").exists()


def test_what_only_a_newer_file_has_a_place_for_is_not_dropped(source, tmp_path, migrate):
    with contextlib.closing(sqlite3.connect(source)) as conn, conn:
        conn.execute("ALTER TABLE messages ADD COLUMN active INTEGER DEFAULT 1")
    migrate(source, tmp_path / "all-default.db")
    with contextlib.closing(sqlite3.connect(source)) as conn, conn:
        conn.execute("UPDATE messages SET active = 0 WHERE id = 3")
    assert "messages.active" in migrate(source, tmp_path / "target.db", code=1)


def test_what_leads_nowhere_is_named(source, target, tmp_path, migrate):
    with contextlib.closing(sqlite3.connect(source)) as conn, conn:
        conn.execute("UPDATE sessions SET parent_session_id = 'gone' WHERE id = 'empty'")
        conn.execute(
            "INSERT INTO messages (session_id, role, timestamp) VALUES ('nobody', 'user', 1.0)"
        )
        (orphan,) = conn.execute("SELECT MAX(id) FROM messages").fetchone()
    done = migrate(source, target)
    assert (done["detached"], done["left_out_messages"]) == (["empty"], [orphan])
    with contextlib.closing(SessionDB(address(target))) as db:
        assert db.get_session("empty")["parent_session_id"] is None
        assert db.message_count() == 36
    assert migrate(source, target)["copied"] == {"sessions": 0, "messages": 0}


def test_number_that_a_server_cannot_keep_is_reported(source, tmp_path, migrate):
    with contextlib.closing(sqlite3.connect(source)) as conn, conn:
        conn.execute("UPDATE sessions SET input_tokens = 1e19 WHERE id = 'empty'")
    told = migrate(source, servers.new_store("postgresql"), code=1)
    assert "sessions" in told
    assert "PostgreSQL cannot keep" in told


def test_two_runs_at_once_do_not_mix(source, target, migrate, monkeypatch):
    """The later one goes on; the earlier one is refused at its next part."""
    monkeypatch.setattr(endpoint, "_PART_ROWS", 7)
    flush, nested = endpoint.BatchWriter.flush, []

    def flush_and_meet(self, bookmark=None):
        flush(self, bookmark)
        if self._table == "messages" and not nested:
            nested.append(True)
            for answer in self._sent:  # what the other run finds must not change under it
                answer.result()
            assert migrate(source, target)["messages"] == 36

    monkeypatch.setattr(endpoint.BatchWriter, "flush", flush_and_meet)
    assert "another migration into this store has begun" in migrate(source, target, code=1)
    assert exported(address(target)) == exported(embedded(source))


def test_passwords_are_not_shown(source, tmp_path):
    url = "postgresql://agent:hunter2@127.0.0.1:1/agents"
    report = tmp_path / "report.json"
    done = command("migrate", "--from", source, "--to", url, "--report", report)
    assert done.returncode == 1
    assert "Error: the server does not answer" in done.stderr
    assert "hunter2" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


# --- as people use it ----------------------------------------------------------------------------


def test_the_source_is_the_store_of_the_home(source, tmp_path):
    """The file there, or what ``sessiondb`` in its settings says."""
    home, moved, back = source.parent, tmp_path / "moved.db", tmp_path / "back.db"
    done = command("migrate", "--to", moved, "--yes", "--json", HERMES_HOME=str(home))
    assert json.loads(done.stdout)["from"] == str(source)
    (home / "config.yaml").write_text("sessiondb: {dsn: 'sqlite:///${MOVED}'}")
    words = ("migrate", "--to", back, "--yes", "--json")
    done = command(*words, HERMES_HOME=str(home), MOVED=str(moved))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["from"] == str(moved)
    assert rows(back) == rows(source)


def test_while_a_client_writes(source, target, migrate):
    """What was there at the beginning arrives; the rest is taken along when it is quiet."""
    writing, written = threading.Event(), []

    def write():
        with contextlib.closing(SessionDB(source, mode="embedded")) as db:
            while not writing.is_set():
                session = f"live-{len(written) // 5}"
                db.ensure_session(session, "cli")
                written.append(db.append_message(session, "user", f"said {len(written)}"))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        first = migrate(source, target)
    finally:
        writing.set()
        writer.join()
    assert first["messages"] >= 36
    migrate(source, target)
    assert exported(address(target)) == exported(embedded(source))


MEASURED = """
    import resource, sys
    from hermes_actor.cli import run
    code = run(sys.argv[1:])
    # In KiB on Linux, in bytes on macOS.
    unit = 2**20 if sys.platform == "darwin" else 2**10
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // unit)
    sys.exit(code)
"""


@pytest.mark.parametrize("kind", ["postgresql", "mysql"])
def test_memory_does_not_grow_with_the_store(kind, tmp_path):
    """Four times as many messages of a megabyte, and about the same memory, on both ways.

    Some of it is words for the indexes, each of which is new to them.
    """
    most = {}
    for count in (10, 40):
        path = tmp_path / f"{count}.db"
        with contextlib.closing(SessionDB(path, mode="embedded")) as db:
            db.create_session("s", "cli")
            for _ in range(count):
                words = os.urandom(10_000).hex(" ", 6)
                db.append_message("s", "assistant", words, reasoning=os.urandom(490_000).hex())
        url, back = servers.new_store(kind), tmp_path / f"back-{count}.db"
        for one, other in ((embedded(path), url), (url, back)):
            to = embedded(other) if isinstance(other, Path) else other
            done = subprocess.run(
                [sys.executable, "-c", textwrap.dedent(MEASURED), "migrate", "--from", one,
                 "--to", to, "--yes"], capture_output=True, text=True, timeout=100,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            most.setdefault(other is back, []).append(int(done.stdout.splitlines()[-1]))
    for little, much in most.values():
        assert much - little < 20, f"{most} MiB"


def test_on_a_terminal_a_bar_tells_how_fast_it_goes(monkeypatch):
    screen = io.StringIO()
    on_screen = partial(Console, file=screen, force_terminal=True, width=100)
    monkeypatch.setattr("rich.console.Console", lambda stderr: on_screen())
    with output._bar("copying") as tell:
        for done in (100, 200, 300):
            tell(done, 1000)
    assert re.search(r"copying.*300/1000.*[\d,]+/s", screen.getvalue())


def test_elsewhere_a_line_tells_how_fast_it_goes(monkeypatch):
    lines = []
    monkeypatch.setattr(
        output, "waiting", lambda words: lines.append(words) or contextlib.nullcontext()
    )
    with cli._progress() as tell:
        tell("copying", 250, 1000)
        (words,) = lines
        assert re.fullmatch(r"copying, 20 %, [\d,]+/s, \d+ s left", first := words())
        # Reported again only when there is news.
        tell("copying", 290, 1000)
        assert words() == first
        tell("copying", 300, 1000)
        assert words().startswith("copying, 30 %")
        tell("verifying", 0, 10)
        assert [words() for words in lines][1] == "verifying, 0 %, 0/s"
