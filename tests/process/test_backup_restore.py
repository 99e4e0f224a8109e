"""backup and restore through the real command: also under load, of damaged and of old files."""

import contextlib
import json
import shutil
import sqlite3
import stat
import subprocess
import sys
from datetime import datetime

import pytest
from support.actors import contents, folder_of, own
from support.fake_builds import command, serving
from support.files import query
from support.old_files import build
from support.wire import Wire, append

import hermes_protocol.messages as wire
from hermes_actor import SessionDB, exit_codes
from hermes_actor.client.control import call
from hermes_actor.errors import NotAllowed, Unsupported
from hermes_actor.paths import resolve_paths


def store(path, *texts):
    db = SessionDB(path, mode="embedded")
    db.create_session("s", "cli")
    for text in texts:
        db.append_message("s", "user", text)
    db.close()


def file_id(path):
    return query(path, "SELECT value FROM hermes_actor_meta WHERE key = 'file_id'")[0][0]


def restore(path, *words):
    done = command("restore", "--db", path, "--yes", "--json", *words)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def nothing_is_left(path):
    return [p.name for p in folder_of(path).glob("restore-*")] == []


# --- backup --------------------------------------------------------------------------------------


def test_backup_tells_what_it_has_made_and_keeps_as_many_as_the_settings_say(path):
    store(path, "a")
    path.with_name("config.yaml").write_text("updates: {backup_keep: 2}")
    made = [json.loads(command("backup", "--db", path, "--json").stdout) for _ in range(3)]
    assert made[2]["kept"] == [one["path"] for one in made[1:]]
    assert made[2]["bytes"] == path.stat().st_size
    assert stat.S_IMODE(path.with_name("backups").stat().st_mode) == 0o700
    one = path.with_name("backups") / made[2]["path"]
    assert stat.S_IMODE(one.stat().st_mode) == 0o600
    kept = json.loads(command("backup", "--db", path, "--json", "--keep", 3).stdout)["kept"]
    assert len(kept) == 3
    listed = command("restore", "--db", path, "--list").stdout.splitlines()
    assert [line.split()[-1] for line in listed] == kept
    newest = datetime.fromtimestamp(one.stat().st_mtime)
    assert f"{newest:%Y-%m-%d %H:%M} " in listed[-2]


def test_backup_of_an_empty_file_is_refused_and_an_update_goes_on(path):
    path.touch()
    done = command("backup", "--db", path)
    assert (done.returncode, done.stdout) == (exit_codes.REFUSED, "")
    assert f"{path} is empty" in done.stderr
    assert not path.with_name("backups").exists()
    assert command("update", "--db", path, "--", "true").returncode == 0
    # And a copy can be restored into it.
    copy = path.with_name("copy.db")
    store(copy, "old")
    assert restore(path, copy)["before"] is None
    assert contents(path, "s") == ["old"]


# --- restore -------------------------------------------------------------------------------------


def test_restore_without_an_actor(path):
    store(path, "old")
    command("backup", "--db", path)
    before, inode = file_id(path), path.stat().st_ino
    db = SessionDB(path, mode="embedded")
    db.append_message("s", "user", "new")
    db.close()
    epoch, commit_no = own(path, "epoch"), own(path, "commit_no")
    found = restore(path)
    assert contents(path, "s") == ["old"]
    assert path.stat().st_ino == inode
    assert (own(path, "epoch") > epoch, own(path, "commit_no") > commit_no) == (True, True)
    assert file_id(path) != before
    assert query(path, "SELECT COUNT(*) FROM hermes_actor_receipts") == [(0,)]
    # What was there is in a copy, and comes back the same way.
    assert nothing_is_left(path)
    restore(path, found["before"])
    assert contents(path, "s") == ["old", "new"]


def test_restore_through_the_actor_while_clients_write(path, tmp_path):
    store(path, "old")
    copy = tmp_path / "copy.db"
    command("backup", "--db", path, "--to", copy)
    with serving(path) as actor:
        inode = path.stat().st_ino
        db = SessionDB(path)
        db.append_message("s", "user", "new")
        epoch, commit_no = own(path, "epoch"), own(path, "commit_no")
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as reader:
            reader.execute("BEGIN")
            seen = reader.execute("SELECT content FROM messages").fetchall()
            found = restore(path, copy)
            # A reader keeps its snapshot, and the next one sees the restored content.
            assert reader.execute("SELECT content FROM messages").fetchall() == seen
        assert [m["content"] for m in db.get_messages("s")] == ["old"]
        assert (found["epoch"], found["commit_no"]) == (epoch + 1, commit_no + 1)
        # The same client goes on, and search finds what is there now and nothing else.
        db.append_message("s", "user", "later")
        assert [m["content"] for m in db.get_messages("s")] == ["old", "later"]
        assert [h["id"] for h in db.search_messages("later")] == [2]
        assert db.search_messages("new") == []
        assert path.stat().st_ino == inode
        assert actor.lives
        db.close()
    assert nothing_is_left(path)
    assert query(path, "PRAGMA integrity_check") == [("ok",)]


def test_an_answer_of_before_the_restore_is_never_made_up(path, tmp_path):
    """A request that is sent again is neither applied twice nor called refused."""
    store(path, "old")
    copy = tmp_path / "copy.db"
    command("backup", "--db", path, "--to", copy)
    with serving(path):
        with Wire(path) as client:
            assert client.do(1, append("s", "once"))["t"] == "ok"
            restore(path, copy)
            again = client.do(1, append("s", "once"))
            assert (again["t"], again["executed"]) == ("failed", "unknown")
            # What it sends for the first time is applied.
            assert client.do(2, append("s", "next"))["t"] == "ok"
        assert contents(path, "s") == ["old", "next"]


@pytest.mark.parametrize("what", ["not a database", "half a page"])
def test_a_file_that_cannot_be_opened_is_moved_aside(path, tmp_path, what):
    store(path, "old")
    copy = tmp_path / "copy.db"
    command("backup", "--db", path, "--to", copy)
    broken = b"this is not a database at all" * 200
    path.write_bytes(
        broken if what == "not a database" else path.read_bytes()[:100] + b"\xff" * 8000
    )
    content = path.read_bytes()
    found = restore(path, copy)
    assert contents(path, "s") == ["old"]
    (moved,) = [p for p in path.parent.glob("state.db.damaged-*") if p.suffix[-4:] != "-wal"]
    assert found["before"] == str(moved)
    assert moved.read_bytes() == content
    db = SessionDB(path)
    db.append_message("s", "user", "later")
    db.close()


def test_a_copy_of_an_older_version_and_of_another_page_size(path, tmp_path):
    store(path, "present")
    old = tmp_path / "old.db"
    build(old, 6)
    with contextlib.closing(sqlite3.connect(old)) as conn:
        conn.execute("PRAGMA journal_mode = DELETE")
        conn.execute("PRAGMA page_size = 8192")
        conn.execute("VACUUM")
    sessions = query(old, "SELECT COUNT(*) FROM sessions")
    with serving(path):
        restore(path, old)
        assert query(path, "SELECT COUNT(*) FROM sessions") == sessions
        assert query(path, "SELECT version FROM schema_version") == [(11,)]
        assert query(path, "PRAGMA page_size") == [(4096,)]


def test_what_is_no_store_changes_nothing(path, tmp_path):
    store(path, "old")
    before = path.read_bytes()
    other = tmp_path / "other.db"
    with contextlib.closing(sqlite3.connect(other)) as conn:
        conn.execute("CREATE TABLE t (x)")
    for words, said in (
        ([other], "is not a store"),
        ([tmp_path / "nowhere"], "there is no backup at"),
        ([], "there is no backup at"),
    ):
        done = command("restore", "--db", path, "--yes", *words)
        assert (done.returncode, done.stdout) == (exit_codes.REFUSED, "")
        assert said in done.stderr
        assert "Traceback" not in done.stderr
    damaged = tmp_path / "damaged.db"
    shutil.copy(path, damaged)
    with damaged.open("r+b") as file:
        file.seek(4096 * 3)
        file.write(b"\xff" * 4096 * 8)
    done = command("restore", "--db", path, "--yes", damaged)
    assert done.returncode == exit_codes.REFUSED
    assert path.read_bytes() == before


def test_nothing_is_restored_without_a_yes(path):
    store(path, "old")
    command("backup", "--db", path)
    done = command("restore", "--db", path)
    assert done.returncode == exit_codes.USAGE
    assert done.stderr.startswith(
        f"Error: needs --yes without a terminal: Replace the content of {path} (1 session, "
    )


def test_only_a_copy_in_the_private_folder_is_taken(path, tmp_path):
    """Notes are written into it: a client must not have the actor write a file of another user."""
    store(path, "old")
    with serving(path):

        def send(task, file):
            return call(
                resolve_paths(path),
                lambda n: wire.Maintain(ask=n, task=task, path=str(file)),
                10,
                name="t",
            )

        with pytest.raises(NotAllowed):
            send("restore", tmp_path / "x.db")
        with pytest.raises(Unsupported):
            send("dance", "")


EMBEDDED = """
import sys
from pathlib import Path
from hermes_actor import SessionDB
db = SessionDB(Path(sys.argv[1]), mode="embedded")
print("open", flush=True)
sys.stdin.read()
"""


def test_an_owner_that_does_not_serve_is_named(path, tmp_path):
    store(path, "old")
    copy = tmp_path / "copy.db"
    command("backup", "--db", path, "--to", copy)
    with subprocess.Popen(
        [sys.executable, "-c", EMBEDDED, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as owner:
        assert owner.stdout.readline() == b"open\n"
        done = command("restore", "--db", path, "--yes", copy)
        assert (done.returncode, done.stdout) == (exit_codes.REFUSED, "")
        assert f"pid {owner.pid} owns" in done.stderr
        owner.stdin.close()
