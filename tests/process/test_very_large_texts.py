"""Texts that FTS5 needs much memory for are indexed in a process of their own (G8)."""

import os
import random
import re
import signal
import string
import sys
from contextlib import closing
from pathlib import Path

import pytest
from support.actor_process import served
from support.actors import actor_pid, folder_of, pause, stop_actor, wait_for, wait_gone
from support.files import FTS_TABLES, query
from support.processes import run_python

from hermes_actor import SessionDB
from hermes_actor.client.control import ask_status, request_handoff
from hermes_actor.errors import IndexBehind
from hermes_actor.paths import resolve_paths

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="looks at /proc")

RANDOM = random.Random(12)
ALPHABETS = {
    "base64": string.ascii_letters + string.digits + "+/",
    "chinese": "".join(map(chr, range(0x4E00, 0xA000))),
    "letters": "".join(map(chr, range(0x21, 0x180))),
}
"""What the trigrams of random texts need: 12, 64 and 95 times the text."""

SIZE = 1_500_000


def text(word, kind="base64", size=SIZE):
    alphabet = ALPHABETS[kind]
    count = size * len(alphabet) // len(alphabet.encode())
    return f"{word} " + "".join(RANDOM.choices(alphabet, k=count)) + f" {word}end"


@pytest.fixture
def path(tmp_path):
    yield tmp_path / "state.db"
    stop_actor(tmp_path / "state.db")


def status(path):
    return ask_status(resolve_paths(path))


def aside(path):
    return status(path).index.aside


def builders(path):
    """The processes that index texts of this store: their numbers."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            inside = any(word.startswith(os.fsencode(folder_of(path))) for word in words)
            if inside and any(b"def build_all(" in word for word in words):
                found.append(int(entry.name))
    return found


def folders(path):
    return list(folder_of(path).glob("aside-*"))


def ids(db, word):
    return sorted(hit["id"] for hit in db.search_messages(word))


def assert_whole(path, count):
    wait_for(lambda: query(path, "SELECT * FROM hermes_actor_stale") == [])
    for table in FTS_TABLES:
        query(path, f"INSERT INTO {table}({table}) VALUES ('integrity-check')")
        assert query(path, f"SELECT COUNT(*) FROM {table}") == [(count,)]
    assert folders(path) == []


def memory(pid, field):
    (kib,) = re.findall(rf"{field}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(kib) / 1024


@pytest.mark.parametrize(("kind", "size"), [("letters", 3_000_000), ("chinese", 4_000_000)])
def test_memory_of_the_actor_stays_within_a_bound(path, kind, size):
    """In a thread either would take more than 250 MiB; the request takes some times its size."""
    with closing(SessionDB(path, timeout=300)) as db, closing(SessionDB(path)) as other:
        db.create_session("s", "cli")
        db.append_message("s", "user", text("small", size=300_000))
        assert ids(db, "small") == [1]
        pid = actor_pid(path)
        before = memory(pid, "VmHWM")
        large = db.append_message("s", "user", text("walrus", kind, size))
        wait_for(lambda: aside(path) == "building")
        written = 0
        while aside(path) == "building":
            other.set_meta("n", str(written))
            written += 1
        assert written, "no small write has been acknowledged before the text was built"
        assert ids(db, "walrusend") == [large]
        assert actor_pid(path) == pid
        grown = memory(pid, "VmHWM") - before
    assert_whole(path, 2)
    assert grown < 100, f"{grown:.0f} MiB"


def test_process_that_is_killed(path):
    with closing(SessionDB(path, timeout=300)) as db:
        db.create_session("s", "cli")
        large = db.append_message("s", "user", text("walrus"))
        for pid in wait_for(lambda: builders(path)):
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: aside(path).startswith("failing: "))
        assert re.search(
            rf"the text of message {large} \(1.5 MB\) is not indexed after 1 try, .*SIGKILL",
            aside(path),
        )
        small = db.append_message("s", "user", "walrus")
        assert ids(db, "walrus") == [large, small]
        assert aside(path) == "none"
        assert status(path).degraded == []
        assert "is not indexed after 1 try" in resolve_paths(path).log.read_text()
    assert_whole(path, 2)


def test_process_has_nothing_of_the_actor(path):
    """Neither its lock nor its files, and it is the first to go if memory is short."""
    with closing(SessionDB(path)) as db:
        db.create_session("s", "cli")
        db.append_message("s", "user", text("walrus"))
        (builder,) = wait_for(lambda: builders(path))
        process = Path(f"/proc/{builder}")
        wait_for(lambda: (process / "oom_score_adj").read_text() == "1000\n")
        opened = {os.readlink(one) for one in (process / "fd").iterdir()}
        beside = {one for one in opened if one.startswith(str(path.parent.resolve()))}
        assert all("/aside-" in one for one in beside), beside
        assert not any(one.startswith("socket:") for one in opened)
        wait_for(lambda: "unlimited" not in limit_of(process, "Max address space"))
        modes = {one.stat().st_mode & 0o777 for one in folders(path)[0].iterdir()}
        assert modes == {0o600}


def limit_of(process, name):
    lines = (process / "limits").read_text().splitlines()
    return next(line for line in lines if line.startswith(name))


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_actor_that_ends_takes_the_process_along(path, how):
    with closing(SessionDB(path, timeout=300)) as db:
        db.create_session("s", "cli")
        large = db.append_message("s", "user", text("walrus"))
        (builder,) = wait_for(lambda: builders(path))
        pid = actor_pid(path)
        if how == signal.SIGTERM:
            # It never finishes: an actor that waited for it would not end.
            pause(builder)
        os.kill(pid, how)
        wait_gone(pid)
        if how == signal.SIGTERM:
            assert folders(path) == []
        wait_gone(builder)
        assert ids(db, "walrus") == [large]
    assert_whole(path, 1)


def test_handoff_while_a_text_is_built_leaves_it_to_the_successor(path):
    """The process of the old owner ends with it; the next one builds the text from the start."""
    with closing(SessionDB(path, timeout=300)) as db, closing(SessionDB(path)) as other:
        db.create_session("s", "cli")
        small = db.append_message("s", "user", "heron")
        large = db.append_message("s", "user", text("walrus", size=4 * SIZE))
        (builder,) = wait_for(lambda: builders(path))
        old = actor_pid(path)
        # Stopped, it is at work for as long as the hand-off takes.
        pause(builder)
        new = request_handoff(resolve_paths(path), sys.executable)["pid"]
        assert new != old
        after = other.append_message("s", "user", "walrus heron")
        wait_gone(builder)
        assert [row["id"] for row in db.get_messages("s")] == [small, large, after]
        assert ids(db, "walrusend") == [large]
        assert ids(db, "walrus") == [large, after]
        assert ids(db, "heron") == [small, after]
        assert actor_pid(path) == new
        assert aside(path) == "none"
        assert status(path).degraded == []
    assert_whole(path, 3)


FAILING = """
import hermes_actor.engine.index.build_process as build_process
build_process._address_space = lambda size: 40 << 20
"""


def test_process_that_always_fails_costs_its_own_text_only(path):
    """Changes and other texts go on; searches name the text; it is tried less and less often."""
    with served(path, FAILING) as actor, closing(SessionDB(path, timeout=30)) as db:
        db.create_session("s", "cli")
        first = db.append_message("s", "user", text("heron", size=300_000))
        assert ids(db, "heron") == [first]
        large = db.append_message("s", "user", text("walrus"))
        other = db.append_message("s", "user", text("seal", size=300_000))
        wait_for(lambda: "after 3 tries" in actor.last_words())
        query_of_others = "SELECT rowid FROM messages_fts WHERE messages_fts MATCH 'sealend'"
        assert query(path, query_of_others) == [(other,)]
        (degraded,) = [one for one in status(path).degraded if "not indexed" in one]
        assert degraded.startswith(f"the text of message {large} (1.5 MB) is not indexed after ")
        with (
            closing(SessionDB(path, timeout=0.3)) as hasty,
            pytest.raises(IndexBehind, match=f"the text of message {large} "),
        ):
            hasty.search_messages("seal")
        pauses = re.findall(r"the next one comes (\d+) s later", actor.last_words())
        assert pauses[:3] == ["1", "2", "4"]
        assert folders(path) == []
        # Who shortens the text need not wait for the next try.
        db._conn.execute("UPDATE messages SET content = 'walrus' WHERE id = ?", (large,))
        assert ids(db, "walrus") == [large]
        assert status(path).degraded == []


EMBEDDED = """
import os, signal, sys
from pathlib import Path
from hermes_actor import SessionDB
from support.subprocess_env import tell

path = Path(sys.argv[1])
# Such programs exist: they collect the exit of every child themselves.
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
db = SessionDB(path, mode="embedded", timeout=90)
db.create_session("s", "cli")
db.append_message("s", "user", "walrus " + "ab1 cd2 " * 300_000)
folder = path.with_name(f".{path.name}.actor")
while not list(folder.glob("aside-*/*.db")):
    pass
hung = 0
for _ in range(20):
    child = os.fork()
    if not child:
        signal.alarm(20)
        os._exit(0 if db.get_session("s")["id"] == "s" else 1)
    try:
        hung += bool(os.waitpid(child, 0)[1])
    except ChildProcessError:
        pass
found = [hit["id"] for hit in db.search_messages("walrus")]
db.close()
tell({"found": found, "hung": hung, "left": [one.name for one in folder.glob("aside-*")]})
"""


def test_embedded_writer_starts_one_too(path):
    """Also in a program that forks, and that takes the exit codes of all its children."""
    assert run_python(EMBEDDED, path) == {"found": [1], "hung": 0, "left": []}
    assert_whole(path, 1)
