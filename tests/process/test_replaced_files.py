"""R3: files are replaced or removed under a living owner. Nothing is acknowledged into the void.

Files are looked at from other processes only: SQLite shares locks and memory inside a process, so
a look from the owner's own process would see what no other process does.
"""

import contextlib
import errno
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from support.actor_process import served
from support.actors import own, pause, wait_for
from support.files import query
from support.processes import run_python
from support.wire import Wire, append, request
from support.wire import create as create_session

from hermes_actor import SessionDB, exit_codes, limits
from hermes_actor.engine import checkpoint, connection
from hermes_actor.engine.checkpoint import Action
from hermes_actor.engine.environment import Environment
from hermes_actor.engine.file_identity import FileIdentityGuard
from hermes_actor.engine.jobs import Request
from hermes_actor.engine.writer import Writer
from hermes_actor.errors import ActorBroken, DiskIOError, HermesActorError, OutcomeUnknown
from hermes_actor.paths import resolve_paths
from hermes_actor.recovery.wal_reader import committed_pages
from hermes_protocol.operations import MetaSet, SessionCreate

ROWS = 12
FOREIGN_ROWS = 5

QUIET = "from hermes_actor import limits\nlimits.TRUNCATE_AFTER_IDLE_SECONDS = 0.05\n"
"""An actor that soon has everything in the database and nothing in the WAL."""


def in_file(path, sql):
    """What a program sees that opens the file now."""
    code = """
    import json, sqlite3, sys
    conn = sqlite3.connect(sys.argv[1], isolation_level=None)
    print(json.dumps(conn.execute(sys.argv[2]).fetchall()))
    """
    return run_python(code, path, sql)


def texts(path):
    return [text for (text,) in in_file(path, "SELECT content FROM messages ORDER BY id")]


def keys(path):
    return {key for (key,) in in_file(path, "SELECT key FROM state_meta")}


def write_foreign(path, then="leave"):
    """A foreign program writes; the `commit_no` that it found, and how many messages."""
    code = """
    import json, sqlite3, sys
    conn = sqlite3.connect(sys.argv[1], isolation_level=None)
    found = conn.execute(
        "SELECT (SELECT value FROM hermes_actor_meta WHERE key = 'commit_no'),"
        " (SELECT COUNT(*) FROM messages)"
    ).fetchone()
    for n in range(int(sys.argv[2])):
        conn.execute("INSERT OR REPLACE INTO state_meta VALUES (?, 'foreign')", (f"foreign {n}",))
    if sys.argv[3] == "fold":
        conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    print(json.dumps(found))
    """
    return run_python(code, path, FOREIGN_ROWS, then)


FOREIGN = {f"foreign {n}" for n in range(FOREIGN_ROWS)}
OURS = [f"walrus {n}" for n in range(ROWS)]


def fill(db):
    db.create_session("s", "cli")
    for text in OURS:
        db.append_message("s", "user", text)


def settle(db, paths):
    """Wait until the actor has done its upkeep: what it does next is what it is asked for."""
    assert len(db.search_messages("walrus", limit=100)) == ROWS
    wait_for(lambda: time.time() - paths.wal.stat().st_mtime > 0.3)


@contextmanager
def standing_still(actor):
    """What happens in the block happens for the actor in one moment, between two transactions."""
    while True:
        pause(actor.pid)
        if f"POSIX  ADVISORY  WRITE {actor.pid} " not in Path("/proc/locks").read_text():
            break
        os.kill(actor.pid, signal.SIGCONT)
        time.sleep(0.01)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(actor.pid, signal.SIGCONT)


@pytest.fixture
def paths(path):
    return resolve_paths(path)


@pytest.fixture
def client(path):
    opened = []

    def open_():
        opened.append(SessionDB(path, mode="actor"))
        return opened[-1]

    yield open_
    for db in opened:
        db.close()


@pytest.fixture
def other(tmp_path):
    """Another store, closed, that is put in the place of the first."""
    with_it = SessionDB(tmp_path / "other.db", mode="embedded")
    with_it.create_session("other", "cli")
    for n in range(30):
        with_it.append_message("other", "user", f"okapi {n}")
    with_it.close()
    return tmp_path / "other.db"


def orphans(path):
    return sorted(path.parent.glob("*.orphan-[dw]*"))


def write_on(db, path, tries=4):
    """Go on writing. What was acknowledged is in the file that is there; the rest is reported."""
    acknowledged, errors = set(), []
    for n in range(tries):
        try:
            db.set_meta(f"after {n}", "v")
            acknowledged.add(f"after {n}")
        except HermesActorError as error:
            errors.append(error)
    assert {error.executed for error in errors} <= {"no", "unknown"}
    assert f"after {tries - 1}" in acknowledged, errors
    assert acknowledged <= keys(path)
    assert in_file(path, "PRAGMA integrity_check") == [["ok"]]


def assert_nothing_is_acknowledged(wire, actor):
    """The actor is asked for changes and ends without a good answer, with its own exit code."""
    with contextlib.suppress(BrokenPipeError):  # it may see by itself what has happened, and end
        wire.send(*(request(seq, append("s", f"void {seq}")) for seq in range(1, 4)))
    assert actor.exit_code() == exit_codes.FILES_REPLACED
    assert [message for message in wire.until_end() if message["t"] == "ok"] == []


# (a) The WAL is removed and no program has written.


def test_removed_wal_is_checkpointed_and_the_actor_goes_on(path, paths, client):
    with served(path) as actor:
        db = client()
        fill(db)
        wanted = list(OURS)
        for n in range(3):
            paths.wal.unlink()
            for k in range(5):
                db.append_message("s", "user", f"round {n}.{k}")
                wanted.append(f"round {n}.{k}")
        assert actor.lives
        assert orphans(path) == []
        assert texts(path) == wanted
        db.close()
        os.kill(actor.pid, signal.SIGTERM)
        assert actor.exit_code() == 0
    assert texts(path) == wanted
    assert in_file(path, "SELECT message_count FROM sessions") == [[len(wanted)]]
    assert in_file(path, "PRAGMA integrity_check") == [["ok"]]


def test_readers_see_everything_after_the_wal_was_removed(path, paths, client):
    """Their connections still hold the WAL that is gone."""
    with served(path):
        db = client()
        fill(db)
        wanted = list(OURS)
        assert [m["content"] for m in db.get_messages("s")] == wanted
        for n in range(3):
            paths.wal.unlink()
            for k in range(8):
                db.append_message("s", "user", f"round {n}.{k}")
                wanted.append(f"round {n}.{k}")
                assert [m["content"] for m in db.get_messages("s")] == wanted
                assert db.get_session("s")["message_count"] == len(wanted)
        assert len(db.search_messages("round", limit=100)) == 24


@pytest.mark.parametrize("opener", ["mode=ro", "mode=rw"])
def test_reader_that_finds_no_wal_does_not_cost_what_was_acknowledged(path, paths, client, opener):
    """Opening a database is enough to make an empty WAL. Still no program has written."""
    code = """
    import json, sqlite3, sys
    conn = sqlite3.connect(f"file:{sys.argv[1]}?{sys.argv[2]}", uri=True)
    try:
        conn.execute("SELECT COUNT(*) FROM messages").fetchall()
    except sqlite3.Error as error:
        print(error, file=sys.stderr)
    print(json.dumps("seen"))
    """
    with served(path) as actor:
        db = client()
        fill(db)
        with standing_still(actor):
            paths.wal.unlink()
            run_python(code, path, opener)
            assert paths.wal.stat().st_size == 0
        write_on(db, path)
        assert texts(path) == OURS


# (b) The WAL is removed and another program writes.


def test_foreign_writer_after_the_wal_was_removed(path, paths, client, tmp_path):
    with served(path) as actor, Wire(path) as wire:
        db = client()
        fill(db)
        acknowledged, epoch = own(path, "commit_no"), own(path, "epoch")
        with standing_still(actor):
            shutil.copy(paths.db, tmp_path / "salvage.db")
            paths.wal.unlink()
            paths.shm.unlink()
            found, messages = write_foreign(path)
        assert found < acknowledged
        assert_nothing_is_acknowledged(wire, actor)
        words = actor.last_words()

        # What was acknowledged and is not in the file is in the orphan, which is ours alone.
        (orphan,) = orphans(path)
        assert orphan.name == f"state.db.orphan-wal.{epoch}"
        assert orphan.stat().st_mode & 0o777 == 0o600
        assert str(orphan) in words
        told = re.search(r"(\d+) acknowledged", words)
        assert told is not None
        assert int(told[1]) == acknowledged - found
        shutil.copy(orphan, tmp_path / "salvage.db-wal")
        assert texts(tmp_path / "salvage.db")[:ROWS] == OURS

        # The next actor serves the file that is there: all of theirs, and exactly that of ours.
        write_on(db, path)
        assert keys(path) >= FOREIGN
        assert texts(path) == OURS[:messages]


def command(path, *arguments):
    """A command in a process of its own: its exit code, and what it said."""
    program = [sys.executable, "-m", "hermes_actor", *arguments, "--db", str(path)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, input="n\n")
    return done.returncode, done.stdout


def test_what_was_acknowledged_comes_back_from_the_orphan(path, paths, client, other):
    """The file was replaced by another one; the orphan alone has what was acknowledged."""
    with served(path) as actor, Wire(path) as wire:
        db = client()
        fill(db)
        db.append_message("s", "tool", "long " * 5_000, tool_name="t")
        db.set_session_title("s", "walruses")
        before = db.export_session("s")
        with standing_still(actor):
            rename_over(paths, other)
        assert_nothing_is_acknowledged(wire, actor)
        write_on(db, path)
        (orphan,) = orphans(path)

        code, out = command(path, "repair", "--orphans", "--check")
        told = re.match(r"(\S+): 1 session and (\d+) messages are missing from the store", out)
        assert told is not None
        assert (code, told[1]) == (exit_codes.BROKEN, orphan.name)
        assert command(path, "repair", "--orphans")[0] == exit_codes.USAGE
        assert db.get_session("s") is None
        assert command(path, "repair", "--orphans", "--yes")[0] == exit_codes.OK
        after = db.export_session("s")
        messages = after.pop("messages")
        assert len(messages) == after["message_count"] == int(told[2])
        # What was under way when the files were replaced may be there, too.
        ids = {"id": None}
        acknowledged = [m | ids for m in messages if not m["content"].startswith("void")]
        assert acknowledged == [m | ids for m in before.pop("messages")]
        assert after | {"message_count": ROWS + 1} == before
        assert len(db.search_messages("walrus", limit=100)) == ROWS
        assert len(db.get_messages("other")) == 30

        # Once more: the store has it all. The log has another name, which doctor does not tell.
        assert orphans(path) == []
        (done,) = path.parent.glob("*.salvaged-db.*")
        done.rename(orphan)
        code, out = command(path, "repair", "--orphans", "--yes", "--json")
        (report,) = json.loads(out)["orphans"]
        assert (code, report["sessions"], report["messages"]) == (exit_codes.OK, 0, 0)
        assert len(db.get_messages("s")) == len(messages)


def test_more_messages_of_a_session_come_back(path, paths, client, tmp_path):
    """The WAL was removed and another program wrote: the session is there, its last part is not."""
    with served(path) as actor, Wire(path) as wire:
        db = client()
        fill(db)
        with standing_still(actor):
            paths.wal.unlink()
            paths.shm.unlink()
            write_foreign(path)
        assert_nothing_is_acknowledged(wire, actor)
        write_on(db, path)
        assert command(path, "repair", "--orphans", "--yes")[0] == exit_codes.OK
        found = texts(path)
        assert sorted(t for t in found if not t.startswith("void")) == sorted(OURS)
        assert db.get_session("s")["message_count"] == len(found)
        assert keys(path) >= FOREIGN


def test_second_orphan_of_the_same_epoch_is_saved_too(path, paths, client):
    """An older copy of a store brings its epochs back."""
    with served(path) as actor, Wire(path) as wire:
        db = client()
        fill(db)
        taken = path.with_name(f"state.db.orphan-wal.{own(path, 'epoch')}")
        taken.write_bytes(b"of another time")
        with standing_still(actor):
            paths.wal.unlink()
            paths.shm.unlink()
            write_foreign(path)
        assert_nothing_is_acknowledged(wire, actor)
        first, second = orphans(path)
        assert (first, second.name) == (taken, f"{taken.name}.2")
        assert str(second) in actor.last_words()
        assert taken.read_bytes() == b"of another time"


def test_foreign_writer_after_an_empty_wal_was_removed(path, paths, client):
    """Everything was in the database; the shared memory now tells of frames that we cannot read."""
    with served(path, QUIET) as actor, Wire(path) as wire:
        db = client()
        fill(db)
        assert len(db.search_messages("walrus", limit=100)) == ROWS
        wait_for(lambda: paths.wal.stat().st_size == 0)
        with standing_still(actor):
            paths.wal.unlink()
            assert write_foreign(path)[1] == ROWS
        assert_nothing_is_acknowledged(wire, actor)
        write_on(db, path)
        assert keys(path) >= FOREIGN
        assert texts(path) == OURS


def test_checkpoint_does_not_write_over_a_file_with_another_wal(path, paths, client):
    """No client asks for a change; the actor would fold its WAL back by itself."""
    with served(path, QUIET.replace("0.05", "1.5")) as actor, Wire(path) as wire:
        db = client()
        fill(db)
        db.set_meta("ours", "v")
        settle(db, paths)
        with standing_still(actor):
            assert paths.wal.stat().st_size > 0
            paths.wal.unlink()
            paths.shm.unlink()
            write_foreign(path, "fold")
            assert keys(path) >= FOREIGN

        def has_tried():
            with suppress(AssertionError, OSError):
                tried = wire.status().checkpoints
                return any(outcome.startswith("truncate") for outcome in tried)
            return True  # it has ended

        wait_for(has_tried)
        assert keys(path) >= FOREIGN
        assert in_file(path, "PRAGMA integrity_check") == [["ok"]]
        write_on(db, path)
        assert keys(path) >= FOREIGN


# (c) Other files.


def copy_over(file):
    """The same content, another file."""
    copy = file.with_name(f"{file.name}.copy")
    shutil.copy(file, copy)
    os.replace(copy, file)


INTACT = {
    "wal replaced": lambda paths: copy_over(paths.wal),
    "shm replaced": lambda paths: copy_over(paths.shm),
    "shm removed": lambda paths: paths.shm.unlink(),
    "lock replaced": lambda paths: copy_over(paths.owner_lock),
    "lock removed": lambda paths: paths.owner_lock.unlink(),
}


@pytest.mark.parametrize("kind", INTACT)
def test_side_file_is_replaced(path, paths, client, kind):
    """Database and WAL have it all, so nothing may be missing."""
    with served(path) as actor, Wire(path) as wire:
        db = client()
        fill(db)
        with standing_still(actor):
            INTACT[kind](paths)
        assert_nothing_is_acknowledged(wire, actor)
        write_on(db, path)
        assert texts(path)[:ROWS] == OURS


def test_foreign_writer_after_the_shared_memory_was_removed(path, paths, client):
    """Both write one WAL and do not see each other: the second one must not write."""
    with served(path) as actor, Wire(path) as wire:
        db = client()
        fill(db)
        settle(db, paths)
        with standing_still(actor):
            paths.shm.unlink()
            assert write_foreign(path)[1] == ROWS
        assert_nothing_is_acknowledged(wire, actor)
        write_on(db, path)
        assert texts(path)[:ROWS] == OURS
        assert keys(path) >= FOREIGN


def test_readers_see_what_is_written_after_the_shared_memory_was_removed(path, paths, client):
    """A connection with the removed one sees neither the frames nor the locks of the writer."""
    with served(path, QUIET):
        db = client()
        fill(db)
        settle(db, paths)
        wait_for(lambda: paths.wal.stat().st_size == 0)
        assert [m["content"] for m in db.get_messages("s")] == OURS
        paths.shm.unlink()
        for n in range(3):
            db.append_message("s", "user", f"more {n}")
            assert len(db.get_messages("s")) == ROWS + n + 1
        assert texts(path) == [*OURS, "more 0", "more 1", "more 2"]


def without_side_files(paths):
    paths.wal.unlink()
    paths.shm.unlink()


def rename_over(paths, other):
    without_side_files(paths)
    os.replace(other, paths.db)


def rename_over_beside_the_wal(paths, other):
    os.replace(other, paths.db)


def delete_and_make_again(paths, other):
    without_side_files(paths)
    paths.db.unlink()
    shutil.copy(other, paths.db)


@pytest.mark.parametrize(
    "replace", [rename_over, rename_over_beside_the_wal, delete_and_make_again]
)
def test_database_is_replaced(path, paths, client, other, replace):
    """The next actor serves the file that is there, unmixed with what was there before."""
    with served(path) as actor, Wire(path) as wire:
        db = client()
        fill(db)
        assert len(db.get_messages("s")) == ROWS
        with standing_still(actor):
            replace(paths, other)
        assert_nothing_is_acknowledged(wire, actor)
        (orphan,) = orphans(path)
        assert orphan.stat().st_mode & 0o777 == 0o600
        write_on(db, path)
        assert texts(path) == [f"okapi {n}" for n in range(30)]
        assert [m["content"] for m in db.get_messages("other")] == texts(path)
        assert db.get_messages("s") == []
        assert len(db.search_messages("okapi", limit=100)) == 30


def overwrite(paths, other):
    """As programs restore an archive: the same file, other bytes."""
    with paths.db.open("r+b") as file:
        file.truncate()
        file.write(other.read_bytes())


@pytest.mark.parametrize("idle", [True, False], ids=["idle", "with frames in its WAL"])
def test_database_is_overwritten_in_place(path, paths, client, other, idle):
    """It keeps its inode, and is noticed all the same, before a commit or checkpoint damages it."""
    with served(path, QUIET if idle else "") as actor, Wire(path) as wire:
        db = client()
        fill(db)
        if idle:
            wait_for(lambda: paths.wal.stat().st_size == 0)
        with standing_still(actor):
            overwrite(paths, other)
        assert_nothing_is_acknowledged(wire, actor)
        assert "overwritten in place" in (path.parent / "state.db.served.log").read_text()
        write_on(db, path)
        assert texts(path) == [f"okapi {n}" for n in range(30)]
        assert [m["content"] for m in db.get_messages("other")] == texts(path)


def test_idle_actor_of_an_overwritten_database_ends_by_itself(path, paths, client, other):
    with served(path, QUIET) as actor:
        fill(client())
        wait_for(lambda: paths.wal.stat().st_size == 0)
        with standing_still(actor):
            overwrite(paths, other)
        assert actor.exit_code() == exit_codes.FILES_REPLACED
    assert in_file(path, "PRAGMA integrity_check") == [["ok"]]
    assert texts(path) == [f"okapi {n}" for n in range(30)]


def test_checkpoint_of_another_program_is_no_overwriting(path, paths, client):
    with served(path, QUIET):
        db = client()
        fill(db)
        for _ in range(3):
            write_foreign(path, "fold")
            db.set_meta("mine", "v")
            write_foreign(path, "leave")
        assert db.get_meta("mine") == "v"
        assert "overwritten" not in (path.parent / "state.db.served.log").read_text()


def test_database_is_deleted(path, paths, client):
    """The actor of a file that is gone ends, and the next change begins a new one."""
    with served(path) as actor, Wire(path) as wire:
        db = client()
        fill(db)
        with standing_still(actor):
            for file in (paths.db, paths.wal, paths.shm):
                file.unlink()
        wire.send(request(1, append("s", "void")))
        assert [message for message in wire.until_end() if message["t"] == "ok"] == []
        assert actor.exit_code() in (0, exit_codes.FILES_REPLACED)
        (orphan,) = orphans(path)
        assert orphan.stat().st_mode & 0o777 == 0o600
        write_on(db, path)
        assert texts(path) == []
        # All of it is in the orphan, and comes back.
        assert [t for t in texts(orphan) if t != "void"] == OURS
        assert query(orphan, "PRAGMA integrity_check") == [("ok",)]
        assert command(path, "repair", "--orphans", "--yes")[0] == exit_codes.OK
        assert [t for t in texts(path) if t != "void"] == OURS
        assert keys(path) >= {"after 3"}


@pytest.mark.parametrize("removed", [["db"], ["db", "wal"], ["db", "wal", "shm"]], ids="+".join)
@pytest.mark.parametrize("idle", [False, True], ids=["under load", "idle"])
def test_store_that_is_removed_is_saved_whole_and_can_be_restored(
    path, paths, client, removed, idle
):
    """Most of it is in the database and not in the log, as in every store that is not new."""
    with served(path) as actor, Wire(path) as wire:
        db = client()
        fill(db)
        db.set_meta("x", "y" * 1_000_000)
        settle(db, paths)
        wait_for(lambda: any("complete" in key for key in wire.status().checkpoints))
        db.append_message("s", "user", "in the log")
        with standing_still(actor):
            for name in removed:
                getattr(paths, name).unlink()
        if not idle:
            wire.send(request(1, append("s", "void")))
        assert [message for message in wire.until_end() if message["t"] == "ok"] == []
        assert actor.exit_code() == exit_codes.FILES_REPLACED
        db.close()
    (orphan,) = orphans(path)
    assert str(orphan) in actor.last_words()

    # Nothing was written since: it says where the content is, and that nothing must write first.
    for words in (["status"], ["doctor", "--quick"], ["repair"]):
        code, out = command(path, *words)
        assert code != 0
        told = out + "".join(said(path, *words))
        # With the store, where the command was given one.
        assert re.search(rf"hermes-actor restore (--db \S+ )?{re.escape(str(orphan))}", told), told
    assert not path.exists()
    code, _ = command(path, "restore", str(orphan), "--yes")
    assert code == exit_codes.OK
    assert [t for t in texts(path) if t != "void"] == [*OURS, "in the log"]


@pytest.mark.parametrize("idle", [False, True], ids=["under load", "idle"])
def test_home_that_is_deleted_is_saved_also_under_load(tmp_path, monkeypatch, idle, long_lived):
    """A commit finds out before the next look at the clock."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))  # or the store counts as temporary
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    home = tmp_path / "home"
    home.mkdir()
    path = home / "state.db"
    log = tmp_path / "log"
    with served(path, log=log) as actor, Wire(path) as wire:
        wire.do(1, create_session("s"))
        for n, text in enumerate(OURS):
            assert wire.do(n + 2, append("s", text))["t"] == "ok"
        with standing_still(actor):
            shutil.rmtree(home)
        if not idle:
            wire.send(request(ROWS + 2, append("s", "void")))
        assert [message for message in wire.until_end() if message["t"] == "ok"] == []
        assert actor.exit_code() in (0, exit_codes.FILES_REPLACED)
    (copy,) = (tmp_path / "state" / "hermes-actor" / "rescued").iterdir()
    assert [t for t in texts(copy) if t != "void"] == OURS
    assert copy.stat().st_mode & 0o777 == 0o600


def said(path, *arguments):
    """What a command says to people who do not read its result."""
    program = [sys.executable, "-m", "hermes_actor", *arguments, "--db", str(path)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, input="")
    yield done.stderr


def test_empty_log_is_not_saved(path, paths, client):
    """Everything was in the database: nothing is missing, and there is nothing to look for."""
    with served(path, QUIET) as actor, Wire(path) as wire:
        db = client()
        fill(db)
        settle(db, paths)
        wait_for(lambda: paths.wal.stat().st_size == 0)
        with standing_still(actor):
            paths.owner_lock.unlink()
        assert_nothing_is_acknowledged(wire, actor)
        write_on(db, path)
    assert [p for p in orphans(path) if p.stat().st_size == 0] == []


def test_second_owner_after_the_lock_was_removed(path, paths, client):
    """The lock cannot keep them apart any more; the first one must find out before it answers."""
    with served(path) as first, Wire(path) as wire:
        db = client()
        fill(db)
        with standing_still(first):
            paths.owner_lock.unlink()
            with served(path) as second:
                fresh = run_python(
                    """
                    import json, sys
                    from pathlib import Path
                    from hermes_actor import SessionDB
                    db = SessionDB(Path(sys.argv[1]), mode="actor")
                    db.set_meta("second", "v")
                    print(json.dumps(db._port.statistics()["pid"]))
                    db.close()
                    """,
                    path,
                )
                assert fresh == second.pid
                os.kill(first.pid, signal.SIGCONT)
                wire.send(*(request(seq, append("s", f"void {seq}")) for seq in range(1, 4)))
                assert [message for message in wire.until_end() if message["t"] == "ok"] == []
                assert first.exit_code() in (exit_codes.FILES_REPLACED, exit_codes.FENCED)
                write_on(db, path)
                assert second.lives
                assert "second" in keys(path)
                assert texts(path) == OURS
                db.close()


# The writer without a process of its own.


@pytest.fixture
def during():
    """What happens just before a commit, put there by a test."""
    return []


@pytest.fixture
def writer(path, during, monkeypatch):
    # However slow the machine is, a batch stays whole.
    monkeypatch.setattr(limits, "BATCH_SOFT_SECONDS", float("inf"))

    def failpoint(name):
        if name == "commit.before" and during:
            during.pop()()

    writer = Writer(resolve_paths(path), Environment(failpoint=failpoint))
    yield writer
    writer.connection._close_connections()


def put(*names):
    return [Request(MetaSet(key=name, value="v")) for name in names]


def errors(outcomes):
    return [outcome.error for outcome in outcomes]


def contents(paths):
    return {file.name: file.read_bytes() for file in (paths.db, paths.wal) if file.exists()}


@pytest.mark.parametrize("removed", [["wal"], ["wal", "shm"]], ids="+".join)
def test_writer_checkpoints(writer, path, paths, removed):
    assert errors(writer.run_batch(put("1", "2"))) == [None, None]
    epoch = writer.epoch
    for name in removed:
        getattr(paths, name).unlink()
    outcomes = writer.run_batch(put("3", "4"))
    assert errors(outcomes) == [None, None]
    assert [outcome.commit_no for outcome in outcomes] == [3, 4]
    assert writer.epoch == epoch + 1
    assert errors(writer.run_batch(put("5"))) == [None]
    assert keys(path) == {"1", "2", "3", "4", "5"}
    assert orphans(path) == []


def close_without_locks(paths, frames):
    """What a program leaves that closed the file while a checkpoint of its owner was at work.

    It sees no lock, so it is the last: it counts the frames that it has moved, of a WAL that the
    owner has begun again since, and removes the files.
    """
    count_without_locks(paths, frames)
    paths.wal.unlink()
    paths.shm.unlink()


def count_without_locks(paths, frames):
    code = """
    import os, struct, sys
    shm = os.open(sys.argv[1], os.O_RDWR)
    os.pwrite(shm, struct.pack("=I", int(sys.argv[2])), 96)
    print("null")
    """
    run_python(code, paths.shm, frames)


def in_file_or_saved(path):
    """Sessions in the database, and those in logs that were saved, as another process sees them."""
    code = """
    import contextlib, json, sys
    from pathlib import Path
    from hermes_actor.paths import resolve_paths
    from hermes_actor.recovery.orphan_wal import find_missing, list_orphans
    from hermes_actor.sqlite import connect_reader

    class Store:
        def read(self, function, *arguments):
            with contextlib.closing(connect_reader(Path(sys.argv[1]))) as conn:
                return function(conn, *arguments)

    paths = resolve_paths(Path(sys.argv[1]))
    found = [find_missing(Store(), orphan) for orphan in list_orphans(paths)]
    print(json.dumps([record.session.id for missing in found for record in missing.sessions]))
    """
    there = {session for (session,) in in_file(path, "SELECT id FROM sessions")}
    return there | set(run_python(code, path))


@pytest.mark.parametrize("when", ["before", "during"])
@pytest.mark.parametrize(
    ("frames", "notices"), [(1, True), (2, True), (500, True), (500, False)], ids=str
)
def test_frames_that_another_program_has_counted_are_saved(
    writer, path, paths, during, when, frames, notices, monkeypatch, caplog
):
    """Found by the programme: a checkpoint skipped new frames, and acknowledged changes were lost.

    Where it skips all of them, the number of the last change in the file shows it, too: also if
    the owner *notices* nothing in the shared memory.
    """
    if not notices:
        monkeypatch.setattr(FileIdentityGuard, "_only_own_moves", lambda _guard: True)
    assert errors(writer.run_batch([Request(create("1"))])) == [None]
    writer.checkpointer.run(Action.PASSIVE, 1)
    # SQLite begins at the start of the WAL again.
    for name in ("2", "3"):
        assert errors(writer.run_batch([Request(create(name))])) == [None]
    if when == "before":
        close_without_locks(paths, frames)
    else:
        during.append(lambda: close_without_locks(paths, frames))
    assert errors(writer.run_batch([Request(create("4"))])) != [None]
    assert writer.connection.exit_code == exit_codes.FILES_REPLACED
    assert "all of it is in the file again" not in caplog.text
    (orphan,) = orphans(path)
    assert f"2 acknowledged changes are in {orphan}" in str(writer.connection.broken)
    assert {"1", "2", "3"} <= in_file_or_saved(path)
    assert in_file(path, "PRAGMA integrity_check") == [["ok"]]


@pytest.mark.parametrize("unlinks", [True, False])
def test_frames_that_were_counted_late_are_not_taken_for_moved(
    writer, path, paths, unlinks, caplog
):
    """The owner's own checkpoint comes between the count and the removal of the WAL.

    It would skip the first frames and move the last, and with them the number of the last change.
    """
    assert errors(writer.run_batch([Request(create("1"))])) == [None]
    writer.checkpointer.run(Action.PASSIVE, 1)
    for name in ("2", "3"):
        assert errors(writer.run_batch([Request(create(name))])) == [None]
    frames = writer.connection.wal_frames()
    count_without_locks(paths, 3)
    assert frames > 3
    with suppress(HermesActorError):
        writer.checkpointer.run(Action.PASSIVE, 1)
    if unlinks:
        paths.wal.unlink()
        paths.shm.unlink()
    assert errors(writer.run_batch([Request(create("4"))])) != [None]
    assert writer.connection.exit_code == exit_codes.FILES_REPLACED
    assert "all of it is in the file again" not in caplog.text
    assert {"1", "2", "3"} <= in_file_or_saved(path)
    assert in_file(path, "PRAGMA integrity_check") == [["ok"]]


def test_wal_is_saved_if_the_file_cannot_be_opened_again(writer, path, paths, monkeypatch):
    assert errors(writer.run_batch([Request(create("1"))])) == [None]

    def refuse(*_arguments):
        raise DiskIOError("disk I/O error")

    paths.wal.unlink()
    monkeypatch.setattr(connection, "open_database", refuse)
    (error,) = errors(writer.run_batch([Request(create("2"))]))
    assert error.executed in ("no", "unknown")
    assert writer.connection.exit_code == exit_codes.FILES_REPLACED
    (orphan,) = orphans(path)
    with committed_pages(orphan) as pages:
        assert any(record.values and "1" in record.values for record in pages.records())


@pytest.fixture
def reader(path):
    """A reader whose snapshot stops a checkpoint half-way."""
    conn = sqlite3.connect(
        f"file:{path}?mode=ro", uri=True, isolation_level=None, check_same_thread=False
    )
    with closing(conn):
        yield conn


def fill_around(writer, reader):
    """Pages that have changed before the snapshot, and pages that have changed after it too."""
    assert errors(writer.run_batch([Request(create("before"))])) == [None]
    reader.execute("BEGIN")
    assert reader.execute("SELECT id FROM sessions").fetchall() == [("before",)]
    assert errors(writer.run_batch([*put("1"), Request(create("after"))])) == [None, None]


def create(name):
    return SessionCreate(id=name, source="cli", started_at=1.0)


def test_writer_waits_for_a_reader_to_checkpoint(writer, path, paths, reader):
    """Found by the programme: half of a WAL was checkpointed, and the database was damaged."""
    fill_around(writer, reader)
    paths.wal.unlink()
    leaves = threading.Timer(0.3, reader.execute, ["ROLLBACK"])
    leaves.start()
    assert errors(writer.run_batch(put("2"))) == [None]
    leaves.join()
    assert keys(path) == {"1", "2"}
    assert query(path, "PRAGMA integrity_check") == [("ok",)]
    assert orphans(path) == []


def test_wal_that_cannot_be_checkpointed_is_put_back(writer, path, paths, reader, monkeypatch):
    """The reader stays. The next owner finds a whole database, and all of it."""
    monkeypatch.setattr(limits, "UNLINKED_WAL_SECONDS", 0.1)
    fill_around(writer, reader)
    paths.wal.unlink()
    (error,) = errors(writer.run_batch(put("2")))
    assert error.executed in ("no", "unknown")
    assert orphans(path) == []
    code = """
    import json, sqlite3, sys
    conn = sqlite3.connect(sys.argv[1])
    ask = lambda sql: [value for (value,) in conn.execute(sql)]
    print(json.dumps([ask("PRAGMA integrity_check"), ask("SELECT id FROM sessions ORDER BY id"),
                      ask("SELECT key FROM state_meta WHERE key = '1'")]))
    """
    assert run_python(code, path) == [["ok"], ["after", "before"], ["1"]]


def test_change_is_not_reported_as_refused_when_its_wal_cannot_be_checkpointed(
    writer, path, paths, during, monkeypatch
):
    """It is committed by then. Reported as not executed, it would be made again."""
    assert errors(writer.run_batch(put("1"))) == [None]
    writer.checkpointer.run(Action.PASSIVE, 1)

    def full(*_arguments):
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error

    def remove():
        paths.wal.unlink()
        monkeypatch.setattr(checkpoint, "run_checkpoint", full)

    during.append(remove)
    outcomes = writer.run_batch(put("2", "3"))
    assert {type(error) for error in errors(outcomes)} == {OutcomeUnknown}
    assert orphans(path) == []
    monkeypatch.undo()
    assert keys(path) == {"1", "2", "3"}


def test_full_disk_when_the_orphan_is_saved_stops_the_writer(
    writer, path, paths, other, monkeypatch
):
    assert errors(writer.run_batch(put("1"))) == [None]
    os.replace(other, path)

    def full(*_arguments):
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "pread", full)
    told = [errors(writer.run_batch(put("2")))[0] for _ in range(3)]
    assert isinstance(told[0], OutcomeUnknown | ActorBroken)
    assert [type(error) for error in told[1:]] == [ActorBroken, ActorBroken]
    assert orphans(path) == []


@pytest.mark.parametrize("when", ["before", "during"])
def test_writer_stops_for_good(writer, path, paths, during, when):
    def replace():
        paths.wal.unlink()
        paths.shm.unlink()
        write_foreign(path)

    assert errors(writer.run_batch(put("1", "2"))) == [None, None]
    if when == "before":
        replace()
    else:
        during.append(replace)
    outcomes = writer.run_batch(put("3", "4", "5"))
    assert None not in errors(outcomes)
    assert {outcome.commit_no for outcome in outcomes} == {None}
    # It is unknown what became of a change that was under way.
    assert {error.executed for error in errors(outcomes)} <= {"no", "unknown"}
    if when == "during":
        assert [type(error) for error in errors(outcomes)] == [OutcomeUnknown] * 3
    assert writer.connection.exit_code == exit_codes.FILES_REPLACED
    (orphan,) = orphans(path)
    assert orphan.stat().st_mode & 0o777 == 0o600
    # From here on it neither writes nor closes: both would put stale pages over theirs.
    there, again = contents(paths), writer.run_batch(put("6"))
    assert [type(error) for error in errors(again)] == [ActorBroken]
    assert errors(again)[0].executed == "no"
    writer.checkpointer.run_if_due(waiting=False)
    writer.idle_slice()
    writer.close()
    assert contents(paths) == there
    assert keys(path) == FOREIGN


@pytest.mark.parametrize("where", ["wal", "db"])
def test_wal_that_was_moved_away_is_saved_too(writer, path, paths, where, tmp_path):
    """It has another name now; the writer knows it by its descriptor."""
    (tmp_path / "trash").mkdir()
    assert errors(writer.run_batch(put("1", "2"))) == [None, None]
    shutil.copy(paths.db, tmp_path / "salvage.db")
    for file in (paths.wal, paths.shm, paths.db)[: 2 if where == "wal" else 3]:
        os.replace(file, tmp_path / "trash" / file.name)
    if where == "db":
        shutil.copy(tmp_path / "salvage.db", paths.db)
    write_foreign(path)
    (error,) = errors(writer.run_batch(put("3")))
    assert error.executed in ("no", "unknown")
    (orphan,) = orphans(path)
    if where == "wal":
        shutil.copy(orphan, tmp_path / "salvage.db-wal")
        orphan = tmp_path / "salvage.db"
    assert keys(orphan) >= {"1", "2"}


# Embedded.


@pytest.fixture
def embedded(path):
    db = SessionDB(path, mode="embedded")
    fill(db)
    yield db
    db.close()


def test_embedded_writer_and_its_readers_go_on(embedded, path, paths):
    wanted = list(OURS)
    for n in range(2):
        assert [m["content"] for m in embedded.get_messages("s")] == wanted
        paths.wal.unlink()
        for k in range(5):
            embedded.append_message("s", "user", f"round {n}.{k}")
            wanted.append(f"round {n}.{k}")
            assert [m["content"] for m in embedded.get_messages("s")] == wanted
    assert texts(path) == wanted
    embedded.close()
    assert texts(path) == wanted
    assert orphans(path) == []


@pytest.mark.parametrize("noticed", ["late", "at once"])
def test_embedded_writer_tells_its_callers(path, paths, noticed):
    """And the file is not harmed by what a process that lives on still holds.

    Also when the writer could checkpoint what was removed before the foreign program came: its
    readers still hold the removed shared memory, and SQLite would give it to a new writer, too.
    """
    code = """
    import sys
    from pathlib import Path
    from support.subprocess_env import outcome, tell
    from hermes_actor import SessionDB
    sys.path.insert(0, sys.argv[2])
    from test_replaced_files import FOREIGN_ROWS, fill, write_foreign

    path = Path(sys.argv[1])
    db = SessionDB(path, mode="embedded")
    fill(db)
    assert db.search_messages("walrus")
    for name in ("state.db-wal", "state.db-shm"):
        path.with_name(name).unlink()
    first = []
    if sys.argv[3] == "at once":
        first.append(outcome(lambda: db.set_meta("void", "v"))["classes"])
    write_foreign(path)
    told = first + [outcome(lambda: db.set_meta("void", "v"))["classes"] for _ in range(3)]
    db.close()

    def again():
        db = SessionDB(path, mode="embedded")
        try:
            db.set_meta("again", "v")
        finally:
            db.close()

    tell([told, outcome(again)["classes"]])
    """
    told, again = run_python(code, path, Path(__file__).parent, noticed)
    kinds = [classes[0].rpartition(".")[2] for classes in told]
    assert kinds[0] in ("OutcomeUnknown", "ActorBroken")
    assert set(kinds[1:]) == {"ActorBroken"}
    assert keys(path) >= FOREIGN
    assert in_file(path, "PRAGMA integrity_check") == [["ok"]]
    # It may refuse to open the file again; what it acknowledges is in the file.
    if again:
        assert "hermes_actor.errors.HermesActorError" in again
    else:
        assert "again" in keys(path)
