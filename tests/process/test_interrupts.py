"""Exceptions of signal handlers, at every line: reads, forks and starts work afterwards."""

import pytest
from support.processes import run_python

READS = """
import gc, os, signal, sys, threading
from pathlib import Path
from support.subprocess_env import outcome, tell
from support.interrupts import everywhere, open_descriptors
from hermes_actor import SessionDB, sqlite
from hermes_actor.client import reader
from hermes_actor.system import fork

path, kind = Path(sys.argv[1]), sys.argv[2]
fork._FORK_SECONDS = 600  # a fork that has to wait for an interrupted read shows
db = SessionDB(path, mode="actor")
db.create_session("s", "cli")
db.append_message("s", "user", "hello")


def open_read_close():
    other = SessionDB(path, mode="actor")
    other.get_session("s")
    other.close()


def without_idle_connections():
    db._reader._look_again = 0.0
    db._reader._identity = None
    db.get_session("s")


KINDS = {
    "read": lambda: db.get_session("s"),
    "snapshot": lambda: db.list_sessions_rich(),
    "open": without_idle_connections,
    "fails": lambda: outcome(lambda: db._conn.execute("SELECT nope FROM sessions")),
    "close": open_read_close,
}


def fork_in_a_thread():
    def fork():
        child = os.fork()
        if not child:
            signal.alarm(30)
            assert db.get_session("s")["id"] == "s"
            os._exit(0)
        codes.append(os.waitpid(child, 0)[1])

    codes = []
    thread = threading.Thread(target=fork, daemon=True)
    thread.start()
    thread.join(60)
    return codes


KINDS[kind]()
lines = 0
for lines in everywhere(KINDS[kind], fork, reader, sqlite):
    assert db.get_session("s")["id"] == "s", lines
    assert fork_in_a_thread() == [0], lines
# All connections of the pool can still be used at one time.
barrier = threading.Barrier(reader._MOST)
found = []
threads = [
    threading.Thread(target=lambda: found.append(db._reader.query(lambda _conn: barrier.wait(60))))
    for _ in range(reader._MOST)
]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(60)
db.close()
gc.collect()  # a connection and its cache of statements refer to each other
after = {name for name in open_descriptors().values() if name.startswith(str(path))}
tell({"lines": lines, "together": sorted(found), "after": sorted(after)})
"""


@pytest.mark.parametrize("kind", ["read", "snapshot", "open", "fails", "close"])
def test_interrupt_at_any_line_of_a_read(path, kind):
    told = run_python(READS, path, kind)
    assert told["lines"] > 10
    assert told["together"] == list(range(16))
    assert told["after"] == []


STARTS = '''
import gc, os, sys, time
from pathlib import Path
from support.subprocess_env import tell
from support.interrupts import everywhere, open_descriptors
from hermes_actor import SessionDB
from hermes_actor.client import spawn, spawn_environment
from hermes_actor.paths import resolve_paths
from hermes_actor.system import descriptors

place, python = resolve_paths(Path(sys.argv[1])), sys.executable
# Stands for an actor that serves at once, and ends.
quick = place.db.with_name("quick")
quick.write_text(f"""#!{python} -SI
import os, sys
ready = int(sys.argv[sys.argv.index("--ready-fd") + 1])
os.write(ready, b'{{"phase": "opening"}}\\\\n')
os.write(ready, b'{{"pid": %d}}\\\\n' % os.getpid())
""")
quick.chmod(0o700)


def start():
    spawn.start_actor(place, time.monotonic() + 60, lambda: False)


sys.executable = str(quick)
start()
before, lines = open_descriptors(), 0
for lines in everywhere(start, spawn, spawn_environment, descriptors):
    start()
gc.collect()
after = open_descriptors()
sys.executable = python
db = SessionDB(place.db, timeout=60.0)
db.create_session("s", "cli")
tell({"lines": lines, "before": before, "after": after, "found": db.session_count()})
'''


def test_interrupt_at_any_line_of_a_start(path):
    told = run_python(STARTS, path)
    assert told["lines"] > 40
    assert told["after"] == told["before"]
    assert told["found"] == 1
