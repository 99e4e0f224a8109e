"""Readers are direct, in their own processes: they see whole changes, at once, and make none."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from support.actors import actor_pid, contents, own, stop_actor, wait_for
from support.processes import SCRIPTS, run_python
from support.wire import Wire, append, request, status

from hermes_actor import SessionDB
from hermes_actor.client.reader import Reader
from hermes_actor.errors import DeadlineExceeded, HermesActorError
from hermes_actor.paths import resolve_paths
from hermes_actor.sqlite import connect_reader
from hermes_actor.system.lock_inspection import wal_read_lock_pids


@pytest.fixture
def db(path):
    with closing(SessionDB(path, mode="actor")) as db:
        db.create_session("s", "cli")
        yield db


@contextmanager
def process(code, *args):
    """A child that talks line by line; it ends when its input does."""
    words = [sys.executable, "-c", code, *map(str, args)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    env = {**os.environ, "PYTHONPATH": str(SCRIPTS)}
    with subprocess.Popen(words, env=env, **pipes) as child:
        try:
            assert child.stdout.readline() == "ready\n"
            yield child
        finally:
            child.kill()


def identities(path):
    """Which files are behind the names of database, WAL and shared memory."""
    return [os.stat(f"{path}{suffix}").st_ino for suffix in ("", "-wal", "-shm")]


# --- a reader that sleeps -------------------------------------------------------------------------

SLEEPER = """
import sqlite3, sys

conn = sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True, isolation_level=None)
conn.execute("BEGIN")
count = conn.execute("SELECT COUNT(*) FROM messages").fetchone()
print("ready", flush=True)
sys.stdin.readline()
# Its snapshot has stood still, whatever has happened meanwhile.
print(count == conn.execute("SELECT COUNT(*) FROM messages").fetchone(), flush=True)
conn.close()
"""


def test_actor_starts_and_serves_although_a_reader_holds_an_old_snapshot(path, db):
    """R1: the WAL cannot be checkpointed, and the next owner serves all the same."""
    db.append_message("s", "user", "before")
    with process(SLEEPER, path) as sleeper:
        db.append_message("s", "user", "not seen by the sleeper")
        first = stop_actor(path, signal.SIGKILL)
        db.append_message("s", "user", "after")
        found = status(path)
        assert found.pid != first
        assert (found.phase_text, found.epoch) == ("serving", 2)
        # The status names the process that is in the way.
        wait_for(lambda: status(path).wal.pinned_by == [sleeper.pid])
        assert contents(path, "s") == ["before", "not seen by the sleeper", "after"]
        said, _ = sleeper.communicate("go on\n", timeout=60)
        assert said == "True\n"
    assert contents(path, "s") == ["before", "not seen by the sleeper", "after"]
    # The state ends by itself when its cause is gone.
    db.append_message("s", "user", "last")
    wait_for(lambda: status(path).wal.pinned_by == [])


def test_drain_does_not_wait_for_a_reader(path, db):
    db.append_message("s", "user", "before")
    with process(SLEEPER, path) as sleeper:
        db.append_message("s", "user", "after")
        stop_actor(path)
        # Nothing is lost by what could not be checkpointed.
        assert contents(path, "s") == ["before", "after"]
        assert sleeper.communicate("go on\n", timeout=60)[0] == "True\n"
    db.append_message("s", "user", "last")
    assert contents(path, "s") == ["before", "after", "last"]


# --- whole changes --------------------------------------------------------------------------------

LOOKER = """
import json, sqlite3, sys

conn = sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True, isolation_level=None)
looks, seen, wrong = 0, set(), []
print("ready", flush=True)
while not wrong:
    conn.execute("BEGIN")
    (number,) = conn.execute(
        "SELECT value FROM hermes_actor_meta WHERE key = 'commit_no'").fetchone()
    (messages,) = conn.execute("SELECT COUNT(*) FROM messages").fetchone()
    (receipts,) = conn.execute("SELECT COUNT(*) FROM hermes_actor_receipts").fetchone()
    (counter,) = conn.execute("SELECT message_count FROM sessions WHERE id = 's'").fetchone()
    conn.execute("COMMIT")
    looks += 1
    seen.add(number)
    # One change each for the session and for every message, with a receipt in the same moment.
    if not number == messages + 1 == counter + 1 == receipts:
        wrong.append([number, messages, counter, receipts])
    if messages == int(sys.argv[2]):
        break
print(json.dumps({"looks": looks, "seen": sorted(seen), "wrong": wrong}), flush=True)
"""


def test_no_reader_sees_half_a_batch(path, db):
    count = 3000
    with process(LOOKER, path, count) as one, process(LOOKER, path, count) as two:
        with closing(Wire(path)) as wire:
            for start in range(1, count + 1, 60):
                numbers = range(start, start + 60)
                wire.send(*[request(n, append("s", str(n))) for n in numbers])
                assert {wire.receive()["t"] for _ in numbers} == {"ok"}
        for looker in (one, two):
            told = json.loads(looker.stdout.read())
            assert told["wrong"] == []
            # It has really looked while things changed.
            assert len(told["seen"]) > 10
    sizes = status(path).batch_sizes
    assert sum(number for size, number in sizes.items() if size != "1") > 20


# --- at once --------------------------------------------------------------------------------------

FOLLOWER = """
import sqlite3, sys
from contextlib import closing
from pathlib import Path
from hermes_actor import SessionDB

path, how = Path(sys.argv[1]), sys.argv[2]
db = SessionDB(path, mode="actor")


def newest():
    if how == "SessionDB":
        return db.get_messages("s")[-1]["content"]
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as conn:
        return conn.execute("SELECT content FROM messages ORDER BY id DESC").fetchone()[0]


print("ready", flush=True)
for line in sys.stdin:
    print(newest(), flush=True)
db.close()
"""


@pytest.mark.parametrize("how", ["SessionDB", "a fresh connection"])
def test_acknowledged_write_is_seen_at_once_in_another_process(path, db, how):
    with process(FOLLOWER, path, how) as follower:
        for n in range(200):
            db.append_message("s", "user", str(n))
            follower.stdin.write("look\n")
            follower.stdin.flush()
            assert follower.stdout.readline() == f"{n}\n"


def test_acknowledged_write_is_found_at_once_by_a_search(path, db):
    code = FOLLOWER.replace(
        'return db.get_messages("s")[-1]["content"]',
        'return max((row["id"] for row in db.search_messages("needle", limit=500)), default=0)',
    )
    with process(code, path, "SessionDB") as follower:
        for _ in range(30):
            number = db.append_message("s", "user", "a needle in the hay")
            follower.stdin.write("look\n")
            follower.stdin.flush()
            assert follower.stdout.readline() == f"{number}\n"


# --- they change nothing --------------------------------------------------------------------------


WRITES = [
    "INSERT INTO state_meta VALUES ('k', 'v')",
    "UPDATE sessions SET title = 'x'",
    "DELETE FROM sessions",
    "CREATE TABLE t (x)",
    "DROP TABLE messages",
    "PRAGMA user_version = 5",
    "PRAGMA journal_mode = DELETE",
    "VACUUM",
    "REINDEX",
]


def digest(path):
    """Of the database, in another process: to open and close it here would drop SQLite's locks."""
    return subprocess.check_output(["sha256sum", path])


def test_reader_cannot_write(path, db):
    before = digest(path), identities(path)
    for sql in WRITES:
        with closing(connect_reader(path)) as conn, pytest.raises(sqlite3.OperationalError):
            conn.execute(sql).fetchall()
        with pytest.raises(HermesActorError) as caught:
            db._reader.query(lambda conn, sql=sql: conn.execute(sql).fetchall())
        assert caught.value.executed == "no"
    assert (digest(path), identities(path)) == before
    db.append_message("s", "user", "and the store goes on")
    assert len(db.get_messages("s")) == 1


def test_reader_cannot_checkpoint(path, db):
    db.append_message("s", "user", "in the WAL")
    before = digest(path)
    for mode in ("PASSIVE", "FULL", "RESTART", "TRUNCATE"):
        with closing(connect_reader(path)) as conn:
            conn.execute("SELECT COUNT(*) FROM messages").fetchone()
            try:
                busy, _, moved = conn.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
            except sqlite3.OperationalError:
                continue
            assert busy or moved <= 0
    assert digest(path) == before
    assert os.stat(f"{path}-wal").st_size > 0


OPEN_READ_CLOSE = """
import sys
from contextlib import closing
from pathlib import Path
from support.subprocess_env import tell
from hermes_actor.sqlite import connect_reader

for _ in range(20):
    with closing(connect_reader(Path(sys.argv[1]))) as conn:
        count = conn.execute("SELECT COUNT(*) FROM messages").fetchone()[0]
tell(count)
"""


def test_last_reader_that_closes_leaves_the_wal_to_the_actor(path, db):
    db.append_message("s", "user", "1")
    before = identities(path)
    assert run_python(OPEN_READ_CLOSE, path) == 1
    assert identities(path) == before
    db.append_message("s", "user", "2")
    assert run_python(OPEN_READ_CLOSE, path) == 2
    assert identities(path) == before
    assert status(path).epoch == 1


def test_last_reader_that_closes_leaves_the_wal_of_a_killed_actor_to_the_next(path, db):
    """No other process has the file open, and what was acknowledged is in the WAL only."""
    for n in range(20):
        db.append_message("s", "user", str(n))
    db._reader.close()
    killed = stop_actor(path, signal.SIGKILL)
    before, whole = identities(path), digest(path)
    assert run_python(OPEN_READ_CLOSE, path) == 20
    assert identities(path) == before
    assert digest(path) == whole
    with closing(SessionDB(path, mode="actor")) as again:
        again.append_message("s", "user", "20")
        assert actor_pid(path) not in (None, killed)
    assert contents(path, "s") == [str(n) for n in range(21)]
    assert own(path, "epoch") == 2


# --- a bounded number of connections --------------------------------------------------------------

CROWD = """
import sys, threading, time
from pathlib import Path
from support.subprocess_env import tell
from hermes_actor import SessionDB

path, threads = Path(sys.argv[1]), int(sys.argv[2])
db = SessionDB(path, mode="actor")
guard, now, most, errors = threading.Lock(), 0, 0, []


def slowly(conn):
    global now, most
    with guard:
        now += 1
        most = max(most, now)
    time.sleep(0.02)
    with guard:
        now -= 1
    return conn.execute("SELECT 1").fetchone()


def read():
    for _ in range(5):
        try:
            db._reader.query(slowly)
        except Exception as error:
            errors.append(repr(error))


crowd = [threading.Thread(target=read) for _ in range(threads)]
for thread in crowd:
    thread.start()
for thread in crowd:
    thread.join()
tell({"most": most, "errors": errors})
"""


def test_crowd_of_threads_shares_a_bounded_number_of_connections(path, db):
    told = run_python(CROWD, path, 80)
    assert told["errors"] == []
    assert 1 < told["most"] <= 16


def test_read_says_so_when_all_connections_stay_in_use(path, db):
    reader, go_on = Reader(resolve_paths(path), timeout=0.3), threading.Event()
    with closing(reader), ThreadPoolExecutor(16) as threads:
        busy = [threads.submit(reader.query, lambda _conn: go_on.wait(60)) for _ in range(16)]
        wait_for(lambda: reader._free.empty())
        with pytest.raises(DeadlineExceeded, match=r"all 16 connections .*state\.db were in use"):
            reader.query(lambda _conn: None)
        go_on.set()
        assert all(one.result(60) for one in busy)
        assert reader.query(lambda conn: conn.execute("SELECT 1").fetchone()) == (1,)


INTERRUPTED = """
import sys
from pathlib import Path
from hermes_actor import SessionDB

db, kept = SessionDB(Path(sys.argv[1]), mode="actor"), []


def read(conn):
    cursor = conn.execute("SELECT * FROM messages")
    cursor.fetchone()
    raise KeyboardInterrupt


try:
    db._reader.query(read)
except KeyboardInterrupt as error:
    kept.append(error)  # as an interactive Python keeps the last one
print("ready", flush=True)
sys.stdin.readline()
"""


def test_interrupted_read_pins_no_snapshot_however_long_its_error_is_kept(path, db):
    for n in range(20):
        db.append_message("s", "user", str(n))
    with process(INTERRUPTED, path):
        assert wal_read_lock_pids(Path(f"{path}-shm")) == []
