"""The peer program writes beside the actor, and takes over files that the actor has left.

Nothing of either side is lost or doubled, each finds what the other wrote, and a foreign lock is
waited for or named.
"""

import signal
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager

import pytest
from support.actors import actor_pid, pause, stop_actor
from support.files import FTS_TABLES, TRIGGERS, names, query
from support.peer import peer, run_peer

from hermes_actor import SessionDB, limits
from hermes_actor.errors import Busy, DeadlineExceeded, HermesActorError, TitleInUse
from hermes_actor.sqlite import connect_reader

EACH = 240
SESSIONS = 3
INDEXED = (
    "COALESCE(content, '') || ' ' || COALESCE(tool_name, '') || ' ' || COALESCE(tool_calls, '')"
)


@pytest.fixture
def open_actor(path):
    opened = []

    def open_(**options):
        opened.append(SessionDB(path, mode="actor", **options))
        return opened[-1]

    yield open_
    for db in opened:
        db.close()


@pytest.fixture
def ours(open_actor):
    db = open_actor()
    db.create_session("ours", "cli")
    return db


def status(db):
    return db._port.statistics()


def messages(path, session):
    sql = "SELECT id, content FROM messages WHERE session_id = ? ORDER BY id"
    return [list(row) for row in query(path, sql, session)]


def hits(db, text):
    return [hit["id"] for hit in db.search_messages(text, limit=10_000)]


def ids(told):
    return sorted(number for rows in told.values() for number, _ in rows)


def assert_indexed_once(path):
    """Both indexes hold every message exactly once, with its text."""
    wanted = query(path, f"SELECT id, {INDEXED} FROM messages ORDER BY id")
    for table in FTS_TABLES:
        assert query(path, f"SELECT rowid, content FROM {table} ORDER BY rowid") == wanted
        sizes = query(path, f"SELECT id FROM {table}_docsize ORDER BY id")
        assert sizes == [(number,) for number, _ in wanted]
        query(path, f"INSERT INTO {table}({table}) VALUES ('integrity-check')")


def assert_sound(path):
    with closing(connect_reader(path)) as conn:
        assert conn.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert conn.execute("PRAGMA foreign_key_check").fetchall() == []


# At the same time.

THEIR_LOAD = """
db = SessionDB(path)
each, sessions, told = int(sys.argv[2]), int(sys.argv[3]), {}
for s in range(sessions):
    name = f"theirs {s}"
    db.create_session(name, "cli")
    db.set_session_title(name, f"title of {name}")
    told[name] = []


def append(n):
    name = f"theirs {n % sessions}"
    text = f"tuatara {name} {n}"
    told[name].append((db.append_message(name, "user", text), text))


append(0)
tell("begun")
n = 1
while n < each or not path.with_name("stop").exists():
    append(n)
    n += 1
append(n)
tell(told)
wait()
tell(sorted(hit["id"] for hit in db.search_messages("walrus", limit=10_000)))
db.close()
"""


def write_ours(db, number, told):
    name = f"ours {number}"
    db.create_session(name, "cli")
    db.set_session_title(name, f"title of {name}")
    told[name] = [
        [db.append_message(name, "user", text), text]
        for text in (f"walrus {name} {n}" for n in range(EACH // SESSIONS))
    ]


def test_both_sides_write_at_the_same_time(path, ours):
    told = {}
    with peer(path, THEIR_LOAD, EACH, SESSIONS) as other, ThreadPoolExecutor(SESSIONS) as threads:
        assert other.hear() == "begun"
        for work in [threads.submit(write_ours, ours, n, told) for n in range(SESSIONS)]:
            work.result()
        path.with_name("stop").touch()
        theirs = other.hear()

        # Nothing is lost, doubled or changed, on either side.
        for name, rows in (told | theirs).items():
            assert messages(path, name) == rows
            assert ours.get_session(name)["message_count"] == len(rows)
            assert ours.get_session_by_title(f"title of {name}")["id"] == name
        assert ours.message_count() == sum(map(len, (told | theirs).values()))
        assert len(ids(told)) == EACH < len(ids(theirs))
        # It was at the same time: the peer began before us and ended after us.
        assert ids(theirs)[0] < ids(told)[0] < ids(told)[-1] < ids(theirs)[-1]

        # Each finds what the other wrote, once.
        assert sorted(hits(ours, "tuatara")) == ids(theirs)
        assert sorted(hits(ours, "walrus")) == ids(told)
        other.go_on()
        assert other.hear() == ids(told)
    assert_indexed_once(path)
    assert_sound(path)
    found = status(ours)
    assert found["foreign_commits"] > 0
    assert found["index"]["rebuilds"] == 0
    assert any(text.startswith("foreign writer") for text in found["degraded"])


def test_actor_alone_is_not_degraded(ours):
    for n in range(20):
        ours.append_message("ours", "user", f"walrus {n}")
    assert len(hits(ours, "walrus")) == 20
    found = status(ours)
    assert found["foreign_commits"] == 0
    assert found["degraded"] == []


def test_searches_meanwhile_are_complete_and_find_nothing_twice(path, ours):
    code = """
    db = SessionDB(path)
    db.create_session("theirs", "cli")
    for n in range(60):
        tell(db.append_message("theirs", "user", f"tuatara {n}"))
        wait()
    db.close()
    """
    acknowledged = []
    with peer(path, code) as other:
        for n in range(60):
            acknowledged.append(other.hear())
            acknowledged.append(ours.append_message("ours", "user", f"tuatara {n}"))
            assert sorted(hits(ours, "tuatara")) == sorted(acknowledged)
            other.go_on()
    assert_indexed_once(path)


def test_titles_of_both_sides_are_one_set(path, ours):
    ours.set_session_title("ours", "taken")
    code = """
    db = SessionDB(path)
    db.create_session("theirs", "cli")
    db.set_session_title("theirs", "their title")
    try:
        db.set_session_title("theirs", "taken")
        tell("allowed")
    except ValueError:
        tell("refused")
    db.close()
    """
    assert run_peer(path, code) == "refused"
    with pytest.raises(TitleInUse):
        ours.set_session_title("ours", "their title")
    assert ours.get_session_title("ours") == "taken"
    assert ours.get_session_title("theirs") == "their title"


def test_changes_of_the_other_side_are_built_upon(path, ours):
    """Deleted, replaced and cleared by the one, written again by the other."""
    code = """
    db = SessionDB(path)
    for name in ("deleted", "replaced", "cleared"):
        db.create_session(name, "cli")
        for n in range(5):
            db.append_message(name, "user", f"tuatara {name} {n}")
    tell()
    wait()
    tell([m["content"] for m in db.get_messages("replaced")])
    db.append_message("replaced", "user", "tuatara again")
    db.append_message("cleared", "user", "tuatara again")
    tell([db.get_session("deleted"), db.message_count("replaced"), db.message_count("cleared")])
    db.close()
    """
    with peer(path, code) as other:
        other.hear()
        assert len(hits(ours, "tuatara")) == 15
        assert ours.delete_session("deleted")
        ours.replace_messages("replaced", [{"role": "user", "content": "walrus instead"}])
        ours.clear_messages("cleared")
        assert hits(ours, "tuatara") == []
        other.go_on()
        assert other.hear() == ["walrus instead"]
        assert other.hear() == [None, 2, 1]
    assert len(hits(ours, "tuatara")) == 2
    assert len(hits(ours, "walrus")) == 1
    assert_indexed_once(path)


def test_peer_opens_and_closes_the_file_while_the_actor_serves(path, ours):
    """Its closing may fold the WAL back; it must never take the WAL away."""
    code = """
    for n in range(12):
        db = SessionDB(path)
        db.create_session(f"visit {n}", "cli")
        db.append_message(f"visit {n}", "user", f"tuatara {n}")
        db.close()
        tell()
    """
    pid, rows = actor_pid(path), []
    wal = path.with_name("state.db-wal")
    inode = wal.stat().st_ino
    with peer(path, code) as other:
        for n in range(12):
            rows += [ours.append_message("ours", "user", f"walrus {n}.{k}") for k in range(10)]
            other.hear()
            rows.append(ours.append_message("ours", "user", f"walrus {n}.closed"))
            assert wal.stat().st_ino == inode
    assert [number for number, _ in messages(path, "ours")] == rows
    assert sorted(hits(ours, "walrus")) == rows
    assert len(hits(ours, "tuatara")) == 12
    assert actor_pid(path) == pid
    assert status(ours)["broken"] is None
    assert_indexed_once(path)
    assert_sound(path)


# A lock that the peer holds.

HOLD = """
db = SessionDB(path)


def hold(conn):
    tell("held")
    if sys.argv[2] == "until told":
        wait()
    else:
        time.sleep(float(sys.argv[2]))
    conn.execute("INSERT INTO state_meta VALUES ('held', 'till the end')")


db._execute_write(hold)
db.close()
"""


def test_write_waits_for_the_lock_of_the_peer(path, ours):
    with peer(path, HOLD, "0.5") as other:
        assert other.hear() == "held"
        number = ours.append_message("ours", "user", "walrus")
        # Had it not waited, the last statement under the lock would still be to come.
        assert query(path, "SELECT value FROM state_meta WHERE key = 'held'") != []
    assert messages(path, "ours") == [[number, "walrus"]]


def test_impatient_write_learns_of_the_lock(path, ours, open_actor):
    impatient = open_actor(timeout=0.2)
    with peer(path, HOLD, "until told") as other:
        assert other.hear() == "held"
        with pytest.raises(Busy, match=r"^database is locked: another program is writing") as busy:
            impatient.append_message("ours", "user", "too late")
        assert busy.value.executed == "no"
        assert isinstance(busy.value, sqlite3.OperationalError)
        other.go_on()
    number = impatient.append_message("ours", "user", "in time")
    assert messages(path, "ours") == [[number, "in time"]]


CHANGES = {
    "append": lambda db: db.append_message("ours", "user", "x"),
    "create": lambda db: db.create_session("new", "cli"),
    "title": lambda db: db.set_session_title("ours", "new title"),
    "replace": lambda db: db.replace_messages("ours", [{"role": "user", "content": "x"}]),
    "clear": lambda db: db.clear_messages("ours"),
    "delete": lambda db: db.delete_session("ours"),
    "prune": lambda db: db.prune_sessions(older_than_days=0),
    "meta": lambda db: db.set_meta("k", "v"),
    "statement": lambda db: db._conn.execute("DELETE FROM messages"),
    "transaction": lambda db: db._execute_write(lambda conn: conn.execute("DELETE FROM messages")),
    "vacuum": lambda db: db.vacuum(),
}


def test_no_change_says_locked_in_other_words_than_busy(path, ours, open_actor):
    ours.append_message("ours", "user", "walrus")
    ours.end_session("ours", "done")
    impatient = open_actor(timeout=0.1)
    kinds = {}
    with peer(path, HOLD, "until told") as other:
        assert other.hear() == "held"
        for name, change in CHANGES.items():
            with pytest.raises(HermesActorError) as error:
                change(impatient)
            kinds[name] = error.value
        # Reading goes on meanwhile.
        assert [m["content"] for m in impatient.get_messages("ours")] == ["walrus"]
        other.go_on()
    for name, error in kinds.items():
        # A call behind another one that waits for the lock only learns that the writer was busy.
        assert isinstance(error, Busy | DeadlineExceeded), name
        assert isinstance(error, Busy) or "locked" not in str(error), name
        assert error.executed == "no", name
    assert ours.get_session("ours")["message_count"] == 1
    assert hits(ours, "walrus") == [1]
    assert query(path, "SELECT key FROM state_meta") == [("held",)]


# What the actor leaves behind.

USE = """
db = SessionDB(path)
found = lambda text: sorted(hit["id"] for hit in db.search_messages(text, limit=10_000))
before = {
    "sessions": sorted(row["id"] for row in db.list_sessions_rich(limit=1000)),
    "contents": [m["content"] for m in db.get_messages(sys.argv[2])],
    "found": found(sys.argv[3]),
    "indexed": db._conn.execute("SELECT COUNT(*) FROM messages_fts_docsize").fetchone()[0],
}
db.create_session("theirs", "cli")
db.set_session_title("theirs", "their title")
number = db.append_message("theirs", "user", "tuatara 北京烤鸭")
db.replace_messages(sys.argv[2], [{"role": "user", "content": "okapi"}])
tell(before | {
    "by word": found("tuatara") == [number],
    "by trigram": found("北京烤鸭") == [number],
    "by title": db.get_session_by_title("their title")["id"],
    "replaced": [m["content"] for m in db.get_messages(sys.argv[2])],
    "okapi": len(found("okapi")),
    "integrity": db._conn.execute("PRAGMA integrity_check").fetchone()[0],
})
db.close()
"""
WORKS = {
    "by word": True,
    "by trigram": True,
    "by title": "theirs",
    "replaced": ["okapi"],
    "okapi": 1,
    "integrity": "ok",
}


def test_file_of_a_clean_end_works_in_the_peer(path, ours):
    ours.create_session("other", "cli")
    rows = [ours.append_message("ours", "user", f"walrus {n}") for n in range(150)]
    last = ours.append_message("other", "user", "last walrus")
    assert hits(ours, "walrus")
    ours.close()
    stop_actor(path)
    assert names(path, "trigger") == TRIGGERS
    answer = run_peer(path, USE, "ours", "walrus")
    assert answer == WORKS | {
        "sessions": ["other", "ours"],
        "contents": [f"walrus {n}" for n in range(150)],
        "found": [*rows, last],
        "indexed": 151,
    }
    assert_indexed_once(path)
    # And back again.
    with closing(SessionDB(path, mode="actor")) as db:
        assert [m["content"] for m in db.get_messages("theirs")] == ["tuatara 北京烤鸭"]
        assert hits(db, "tuatara") != []
        assert hits(db, "walrus") == [last]
    assert_indexed_once(path)


LOAD = """
import sys
from pathlib import Path
from hermes_actor import SessionDB

path, name = Path(sys.argv[1]), sys.argv[2]
db = SessionDB(path, mode="actor")
db.create_session(name, "cli")
filler = " ".join(f"word{n * n % 997}" for n in range(40))
n = 0
while True:
    with db.pipeline() as queue:
        for _ in range(64):
            queue.append_message(name, "user", f"w{name}{n} {filler}")
            n += 1
    print(n, flush=True)
"""
ENOUGH = limits.INDEX_LAG_MAX_ROWS * 8 // 5


def lag(path):
    """Messages that the indexes do not cover yet, and the newest message."""
    with closing(connect_reader(path)) as conn:
        return conn.execute(
            "SELECT MAX(id) - (SELECT value FROM hermes_actor_meta WHERE key = 'watermark'),"
            " MAX(id) FROM messages"
        ).fetchone()


@contextmanager
def load(path, sessions):
    """Bulk writers, one process for each session; they live as long as the block."""
    with ExitStack() as stack:
        clients = {}
        for name in sessions:
            command = [sys.executable, "-c", LOAD, str(path), name]
            client = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            clients[name] = stack.enter_context(client)
            stack.callback(client.kill)
        for client in clients.values():
            assert client.stdout.readline()
        yield clients


def kill_all(path, clients):
    """Kill actor and clients; how many messages each client had been acknowledged.

    First the actor stands still, so that no client can start another one.
    """
    pause(actor_pid(path))
    acknowledged = {}
    for name, client in clients.items():
        client.kill()
        acknowledged[name] = int(client.communicate()[0].splitlines()[-1])
    stop_actor(path, signal.SIGKILL)
    return acknowledged


def test_file_of_a_killed_actor_works_in_the_peer(path, ours):
    """Under bulk load. What its search may miss until an actor has run again is bounded."""
    ours.append_message("ours", "user", "walrus")
    most = newest = 0
    with load(path, ("a", "b", "c")) as clients:
        while newest < ENOUGH:
            behind, newest = lag(path)
            most = max(most, behind)
        acknowledged = kill_all(path, clients)
    behind, newest = lag(path)
    assert max(most, behind) <= limits.INDEX_LAG_MAX_ROWS + limits.BATCH_MAX_OPERATIONS
    assert most > limits.INDEX_LAG_MAX_ROWS // 2, "the load was too small to show anything"

    assert names(path, "trigger") == TRIGGERS
    for name, count in acknowledged.items():
        firsts = [content.split()[0] for _, content in messages(path, name)]
        assert firsts == [f"w{name}{n}" for n in range(len(firsts))]
        assert len(firsts) >= count
    answer = run_peer(path, USE, "ours", "walrus")
    assert answer == WORKS | {
        "sessions": ["a", "b", "c", "ours"],
        "contents": ["walrus"],
        "found": [1],
        "indexed": newest - behind,
    }

    # An actor runs again: everything is found, by both, the last rows included.
    number, text = messages(path, "b")[-1]
    text = text.split()[0]
    assert hits(ours, text) == [number]
    assert hits(ours, "tuatara") == [query(path, "SELECT MAX(id) - 1 FROM messages")[0][0]]
    code = "tell([m['id'] for m in SessionDB(path).search_messages(sys.argv[2])])"
    assert run_peer(path, code, text) == [number]
    ours.close()
    stop_actor(path)
    assert_indexed_once(path)
    assert_sound(path)
