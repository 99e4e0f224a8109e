"""Fork in a client: parent and child go on, each as a client of its own."""

import os
from collections import Counter

import pytest
from support.actors import contents, own
from support.files import query
from support.processes import run_python

LINES = 50

BOTH_WRITE = """
import os, sys
from pathlib import Path
from support.subprocess_env import tell
from hermes_actor import SessionDB

path, lines, end = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
db = SessionDB(path, mode="actor")
db.create_session("s", "cli")
db.append_message("s", "user", "before")
written, connected = os.pipe()
child = os.fork()
who = "parent" if child else "child"
for n in range(lines):
    db.append_message("s", "user", f"{who} {n}")
    assert db.get_messages("s")
if not child:
    # Both are connected now; the parent looks while this one waits.
    os.write(connected, b"x")
    os.close(connected)
    if end == "os._exit":
        os._exit(0)
    if end == "close":
        db.close()
    sys.exit(0)
os.read(written, 1)
found = db._port.statistics()
pid, code = os.waitpid(child, 0)
assert code == 0, code
# The end of the child has not disturbed the parent.
db.append_message("s", "user", "after")
same = db._port.statistics()
tell({"connections": [c["pid"] for c in found["connections"]], "parent": os.getpid(),
      "child": child, "requests": [c["requests"] for c in same["connections"]
      if c["pid"] == os.getpid()], "actor": [found["pid"], same["pid"]]})
"""


@pytest.mark.parametrize("end", ["os._exit", "sys.exit", "close"])
def test_parent_and_child_write_each_on_its_own_connection(path, end):
    told = run_python(BOTH_WRITE, path, LINES, end)
    found = contents(path, "s")
    assert (found[0], found[-1]) == ("before", "after")
    for who in ("parent", "child"):
        lines = [text for text in found if text.startswith(who)]
        assert lines == [f"{who} {n}" for n in range(LINES)]
    assert len(found) == 2 * LINES + 2
    # One connection of the parent, the same from beginning to end.
    assert told["connections"].count(told["parent"]) == 1
    assert told["requests"] == [LINES + 3]
    assert len(set(told["actor"])) == 1
    assert own(path, "epoch") == 1


HELD_OPEN = """
import os, sys
from pathlib import Path
from support.subprocess_env import tell
from hermes_actor import SessionDB

path = Path(sys.argv[1])
db = SessionDB(path, mode="actor")
db.create_session("s", "cli")
go, looked = os.pipe()
child = os.fork()
if not child:
    db.append_message("s", "user", "child")
    os.read(go, 1)
    os._exit(0)
db.append_message("s", "user", "parent")
while len(db._port.statistics()["connections"]) < 2 or len(db.get_messages("s")) < 2:
    pass
found = db._port.statistics()["connections"]
os.write(looked, b"x")
os.waitpid(child, 0)
tell({"pids": sorted(c["pid"] for c in found), "expected": sorted([os.getpid(), child])})
"""


def test_child_is_a_client_with_a_pid_of_its_own(path):
    told = run_python(HELD_OPEN, path)
    assert told["pids"] == told["expected"]
    # Two clients have had receipts, under two ids.
    assert Counter(contents(path, "s")) == {"parent": 1, "child": 1}


IN_A_CALL = """
import os, signal, sys, threading
from pathlib import Path
from support.subprocess_env import tell
from hermes_actor import SessionDB

path, forks, kind = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
db = SessionDB(path, mode="actor")
calls = {"s": 0, "t": 0}
for name in calls:
    db.create_session(name, "cli")
stop = threading.Event()


def call(name):
    while not stop.is_set():
        if kind == "write":
            db.append_message(name, "user", str(calls[name]))
        else:
            db.list_sessions_rich()
        calls[name] += 1


threads = [threading.Thread(target=call, args=(name,)) for name in calls]
for thread in threads:
    thread.start()
for number in range(forks):
    before = sum(calls.values())
    while sum(calls.values()) == before:
        pass  # so that each fork meets them at another point of a call
    child = os.fork()
    if not child:
        # Only this thread is here. What the others held must not be in its way for ever.
        signal.alarm(10)
        db.create_session(f"child {number}", "cli")
        for n in range(5):
            db.append_message(f"child {number}", "user", str(n))
        assert [m["content"] for m in db.get_messages(f"child {number}")] == list("01234")
        os._exit(0)
    _, code = os.waitpid(child, 0)
    if code:
        stop.set()
        raise SystemExit(f"child {number} of {forks} did not get through: {code}")
stop.set()
for thread in threads:
    thread.join()
tell(calls)
"""


@pytest.mark.parametrize(("kind", "forks"), [("write", 20), ("read", 20)])
def test_fork_while_other_threads_are_in_a_call(path, kind, forks):
    calls = run_python(IN_A_CALL, path, forks, kind)
    for name, count in calls.items():
        assert contents(path, name) == [str(n) for n in range(count) if kind == "write"]
    for number in range(forks):
        assert contents(path, f"child {number}") == list("01234")
    assert own(path, "epoch") == 1


POOL = """
import multiprocessing, os, sys
from pathlib import Path
from support.subprocess_env import tell
from hermes_actor import SessionDB

path, db = Path(sys.argv[1]), None


def write(number):
    return os.getpid(), db.append_message("s", "user", str(number))


db = SessionDB(path, mode="actor")
db.create_session("s", "cli")
with multiprocessing.get_context("fork").Pool(4) as pool:
    told = pool.map(write, range(200), chunksize=5)
db.append_message("s", "user", "after")
tell(told)
"""


def test_pool_of_forked_workers(path):
    told = run_python(POOL, path)
    assert os.getpid() not in {pid for pid, _ in told}
    rows = query(path, "SELECT id, content FROM messages WHERE session_id = 's' ORDER BY id")
    assert rows[-1][1] == "after"
    assert sorted(rows[:-1]) == sorted((number, str(n)) for n, (_, number) in enumerate(told))


NO_TRACE = """
import os, sys
from pathlib import Path
from support.subprocess_env import tell
from hermes_actor import SessionDB

path = Path(sys.argv[1])
db = SessionDB(path, mode="actor")
db.create_session("s", "cli")
for _ in range(10):
    child = os.fork()
    if not child:
        sys.exit(0)  # it never uses the store, and closes what it has inherited
    assert os.waitpid(child, 0)[1] == 0
    db.append_message("s", "user", "x")
tell(db._port.statistics())
"""


def test_child_that_does_not_use_the_store_leaves_no_trace(path):
    found = run_python(NO_TRACE, path)
    assert len(found["connections"]) == 1
    assert found["connections"][0]["requests"] == 11
    assert found["receipts_replayed"] == 0
    assert len(contents(path, "s")) == 10


def test_fork_while_an_embedded_writer_ends_keeps_no_lock_in_the_child(path):
    code = """
    import os, sys
    from pathlib import Path
    from support.subprocess_env import tell
    from hermes_actor import SessionDB
    from hermes_actor.embedded.writer import EmbeddedWriter

    path, stop, children = Path(sys.argv[1]), EmbeddedWriter.stop, []
    waiting, go = os.pipe()

    def fork_and_stop(self):  # stands for a fork by another thread just then
        if not children:
            child = os.fork()
            if not child:
                os.close(go)
                os.read(waiting, 1)
                os._exit(0)
            children.append(child)
        stop(self)

    EmbeddedWriter.stop = fork_and_stop
    db = SessionDB(path, mode="embedded")
    db.create_session("s", "cli")
    db.close()
    again = SessionDB(path, mode="embedded")
    again.append_message("s", "user", "x")
    found = again.message_count()
    again.close()
    os.close(go)
    os.waitpid(children[0], 0)
    tell(found)
    """
    assert run_python(code, path) == 1


BUSY_THREADS = """
import os, random, signal, string, sys, threading
from pathlib import Path
from support.subprocess_env import tell
from hermes_actor import SessionDB
from hermes_actor.recovery.backup import create_backup

path, forks, kind = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
mode = "embedded" if kind in ("embedded", "lease", "large") else "actor"
db = SessionDB(path, mode=mode)
db.create_session("s", "cli")
large = "".join(random.choices(string.ascii_letters, k=200_000))
with db.pipeline() as lines:
    for n in range(200):
        lines.append_message("s", "user", f"line {n} " * 20)
stop, work = threading.Event(), [0, 0, 0]


def open_and(number):
    other = SessionDB(path, mode=mode)
    other.get_session("s")
    if kind == "close":
        other.close()


def put_in_a_lease(conn):
    conn.execute("INSERT OR REPLACE INTO state_meta VALUES ('k', 'v')")
    conn.execute("SELECT COUNT(*) FROM messages").fetchall()


KINDS = {
    "close": open_and,
    "drop": open_and,
    "embedded": lambda number: db.append_message("s", "user", "x" * 200),
    "lease": lambda number: db._execute_write(put_in_a_lease),
    # Indexed aside, in a thread of the writer's.
    "large": lambda number: db.append_message("s", "user", large) and db.search_messages("line"),
    "backup": lambda number: create_backup(path, path.with_name(f"copy-{number}.db")),
}


def busy(number):
    while not stop.is_set():
        KINDS[kind](number)
        work[number] += 1


threads = [threading.Thread(target=busy, args=(number,)) for number in range(len(work))]
for thread in threads:
    thread.start()
hung = []
for number in range(forks):
    child = os.fork()
    if not child:
        signal.alarm(20)
        assert db.get_session("s")["id"] == "s"
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        hung.append(number)
        if len(hung) == 2:
            break
stop.set()
for thread in threads:
    thread.join()
db.close()
tell({"hung": hung, "work": work})
"""


@pytest.mark.parametrize(
    ("kind", "forks"),
    [
        ("close", 150), ("drop", 150), ("embedded", 300), ("lease", 200), ("backup", 100),
        ("large", 30),
    ],
)  # fmt: skip
def test_child_can_read_whatever_other_threads_did_in_sqlite(path, kind, forks):
    told = run_python(BUSY_THREADS, path, forks, kind)
    assert told["hung"] == []
    # They have got on, too: a fork keeps them waiting only for as long as it takes.
    assert all(told["work"])


TWO_FORK = """
import concurrent.futures.thread, logging, os, sys, threading
import hermes_protocol.decoders  # three that lock at a fork, too
from pathlib import Path

slow, go_on = threading.Event(), threading.Event()


def before():
    # Registered before the client's, so it runs after them, and before those that lock.
    if threading.current_thread().name == "slow":
        slow.set()
        go_on.wait(60)


os.register_at_fork(before=before)

from support.subprocess_env import tell
from hermes_actor import SessionDB

db = SessionDB(Path(sys.argv[1]), mode="actor")
db.create_session("s", "cli")


def fork():
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)


thread = threading.Thread(target=fork, name="slow")
thread.start()
slow.wait(60)
fork()  # from beginning to end, while the other one is about to fork
read = threading.Thread(target=db.get_session, args=("s",))
read.start()
read.join(1)
during = read.is_alive()
go_on.set()
thread.join()
read.join(60)
tell({"waits": during, "ends": not read.is_alive()})
"""


def test_fork_keeps_readers_away_although_another_fork_ends(path):
    assert run_python(TWO_FORK, path) == {"waits": True, "ends": True}


IN_A_QUERY = """
import os, signal, sys
from pathlib import Path
from support.subprocess_env import tell
from hermes_actor import SessionDB

path = Path(sys.argv[1])
db = SessionDB(path, mode="actor")
db.create_session("s", "cli")


def fork_inside(conn):
    found = conn.execute("SELECT id FROM sessions").fetchall()
    return os.fork(), found


child, found = db._reader.query(fork_inside)
if not child:
    signal.alarm(20)
    assert db.get_session("s")["id"] == "s"
    if not os.fork():
        signal.alarm(20)
        assert db.get_session("s")["id"] == "s"
        os._exit(0)
    os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
tell([os.waitpid(child, 0)[1], len(found)])
"""


def test_fork_in_the_middle_of_a_query(path):
    assert run_python(IN_A_QUERY, path) == [0, 1]


def test_lease_survives_a_fork_by_its_holder(path):
    code = """
    import os, sys
    from pathlib import Path
    from support.subprocess_env import tell
    from hermes_actor import SessionDB

    db = SessionDB(Path(sys.argv[1]), mode="embedded")

    def fork_inside(conn):
        conn.execute("INSERT INTO state_meta VALUES ('k', 'v')")
        child = os.fork()  # the writer waits for the next command meanwhile
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
        conn.execute("UPDATE state_meta SET value = 'w'")

    db._execute_write(fork_inside)
    found = db.get_meta("k")
    db.close()
    tell(found)
    """
    assert run_python(code, path) == "w"
