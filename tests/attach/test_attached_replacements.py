"""hermes-agent puts another file in the place of a store: the store is what it meant, what was
acknowledged is kept in a copy, and programs go on."""

import os
import signal
import sqlite3
import zipfile
from contextlib import closing
from pathlib import Path

import pytest
from support.actors import actor_pid, folder_of, wait_for, wait_gone

pytestmark = [pytest.mark.timeout(1200), pytest.mark.slow]

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "adopt.md").read_text("utf-8")

STORE = """
import sys
from hermes_state import SessionDB
db = SessionDB()
for name in sys.argv[1:]:
    db.create_session(session_id=name, source="cli")
    db.append_message(session_id=name, role="user", content=f"Hello {name}")
db.close()
"""
# A program that stays, says what it has stored, and looks each time.
WRITER = """
import itertools, sqlite3, sys, time
from hermes_state import SessionDB
db = SessionDB()
for number in itertools.count():
    name = f"{sys.argv[1]}{number}"
    db.create_session(session_id=name, source="cli")
    try:
        db.append_message(session_id=name, role="user", content=f"Hello {name}")
    except (sqlite3.IntegrityError, ValueError):
        continue  # the new content does not have the session: that is said, not swallowed
    assert [m["content"] for m in db.get_messages(name)] in ([f"Hello {name}"], []), name
    print("stored", name, flush=True)
    time.sleep(0.02)
"""
SNAPSHOT = """
import hermes_cli.backup as backup
(found,) = backup.list_quick_snapshots()
assert backup.restore_quick_snapshot(found["id"])
"""


def users(path):
    """What was said in the store, after a look at the whole file."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as conn:
        assert conn.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        sql = "SELECT content FROM messages WHERE role = 'user' ORDER BY id"
        return [content for (content,) in conn.execute(sql)]


def copies(host):
    return sorted((host.home / "backups").glob("state-*.backup.db"))


@pytest.fixture
def attached(host):
    host.script(STORE, "A")
    host.actor("attach")
    host.script(STORE, "B")
    assert actor_pid(host.db) is not None
    return host


def kill_actor(host):
    if (pid := actor_pid(host.db)) is not None:
        os.kill(pid, signal.SIGKILL)
        wait_gone(pid)


@pytest.mark.parametrize("actor", ["live", "killed"])
def test_import_of_an_archive(attached, tmp_path, actor):
    archive = tmp_path / "backup.zip"
    attached.hermes("backup", "-o", str(archive))
    with zipfile.ZipFile(archive) as packed:
        packed.extract("state.db", tmp_path)
    assert users(tmp_path / "state.db") == ["Hello A", "Hello B"]
    attached.script(STORE, "C")
    before, served = copies(attached), actor_pid(attached.db)
    if actor == "killed":
        kill_actor(attached)
        served = None
    done = attached.run("hermes", "import", "--force", str(archive))
    assert "restored" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert served is None or actor_pid(attached.db) == served
    assert users(attached.db) == ["Hello A", "Hello B"]
    attached.script(STORE, "D")
    assert users(attached.db) == ["Hello A", "Hello B", "Hello D"]
    # What was written after the backup is not lost, and not there unasked.
    (kept,) = set(copies(attached)) - set(before)
    assert users(kept) == ["Hello A", "Hello B", "Hello C"]
    assert not list(attached.home.glob("*.orphan-*"))
    assert not list(folder_of(attached.db).glob("restore-*"))


def test_an_archive_with_a_damaged_store_is_refused(attached, tmp_path):
    """The other files of it are imported; the store stays as it is."""
    archive, broken = tmp_path / "backup.zip", tmp_path / "broken.zip"
    attached.hermes("backup", "-o", str(archive))
    with zipfile.ZipFile(archive) as packed, zipfile.ZipFile(broken, "w") as made:
        for name in packed.namelist():
            data = packed.read(name)
            made.writestr(name, data[: len(data) // 2] if name == "state.db" else data)
    attached.script(STORE, "C")
    done = attached.run("hermes", "import", "--force", str(broken), code=None)
    assert "the store stays as it is" in done.stdout + done.stderr
    attached.script(STORE, "D")
    assert users(attached.db) == ["Hello A", "Hello B", "Hello C", "Hello D"]
    assert not list(folder_of(attached.db).glob("restore-*"))


@pytest.mark.parametrize("actor", ["live", "killed"])
def test_restore_of_a_snapshot(attached, actor):
    """It unlinks the store and moves a copy into its place; the log of before stays, by itself."""
    attached.hermes("backup", "--quick")
    attached.script(STORE, "C")
    before = copies(attached)
    if actor == "killed":
        kill_actor(attached)
    done = attached.script(SNAPSHOT)
    assert done.stderr == ""
    assert users(attached.db) == ["Hello A", "Hello B"]
    attached.script(STORE, "D")
    assert users(attached.db) == ["Hello A", "Hello B", "Hello D"]
    found = [users(one) for one in set(copies(attached)) - set(before)]
    assert ["Hello A", "Hello B", "Hello C"] in found
    assert not list(attached.home.glob("*.snap_restore"))


@pytest.mark.parametrize("how", ["import", "snapshot"])
def test_writers_go_on_beside_it_and_nothing_is_lost_without_a_copy(attached, tmp_path, how):
    archive = tmp_path / "backup.zip"
    attached.hermes("backup", "-o", str(archive))
    attached.hermes("backup", "--quick")
    logs = [tmp_path / "one.log", tmp_path / "two.log"]

    def stored(log):
        return [line.split()[1] for line in log.read_text().splitlines() if "stored" in line]

    with (
        attached.running("python", "-c", WRITER, "x", log=logs[0]),
        attached.running("python", "-c", WRITER, "y", log=logs[1]),
    ):
        for log in logs:
            wait_for(lambda log=log: len(stored(log)) > 5)
        if how == "import":
            attached.hermes("import", "--force", str(archive))
        else:
            attached.script(SNAPSHOT)
        for log in logs:
            count = len(stored(log))
            wait_for(lambda log=log, count=count: len(stored(log)) > count + 5, 60)
    faults = [line for log in logs for line in log.read_text().splitlines() if "stored" not in line]
    assert [line for line in faults if "KeyboardInterrupt" not in line] == []
    found = {text for path in (attached.db, *copies(attached)) for text in users(path)}
    missing = {f"Hello {name}" for log in logs for name in stored(log)} - found
    assert missing == set()
    assert users(attached.db)[:2] == ["Hello A", "Hello B"]
    assert len(users(attached.db)) == len(set(users(attached.db)))


def test_repair_of_a_damaged_schema(newest):
    """It changes the schema by hand, in a file that no program can open: the page says how."""
    newest.script(STORE, "A")
    newest.actor("attach")
    newest.script(STORE, "B")
    kill_actor(newest)
    with closing(sqlite3.connect(newest.db)) as conn:
        conn.execute("PRAGMA writable_schema = ON")
        conn.execute("UPDATE sqlite_master SET sql = 'CREATE TABEL x(' WHERE name = 'messages_fts'")
        conn.commit()
    done = newest.run("hermes", "sessions", "repair", code=None)
    assert "Traceback" not in done.stdout + done.stderr
    assert "✓ Repaired" not in done.stdout
    assert "HERMES_ACTOR_DISABLE=1 hermes sessions repair" in PAGE
    done = newest.run("hermes", "sessions", "repair", HERMES_ACTOR_DISABLE="1")
    assert "Repaired" in done.stdout
    newest.script(STORE, "C")
    assert actor_pid(newest.db) is not None
    assert users(newest.db) == ["Hello A", "Hello B", "Hello C"]
