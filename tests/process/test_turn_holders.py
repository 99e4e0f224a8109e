"""Turns of processes that are killed, stopped or forked, while actors come and go."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.actors import end_actors, pause

from hermes_actor import SessionDB
from hermes_actor.client.control import ask_status
from hermes_actor.errors import TurnBusy, TurnLost
from hermes_actor.gateway import GatewayConfig, Hooks, SessionSource, SessionStore
from hermes_actor.paths import resolve_paths

HOLDER = """
import sys, time
from pathlib import Path
from hermes_actor import SessionDB
from hermes_actor.errors import TurnLost

db = SessionDB(Path(sys.argv[1]))
turn = db.turn("s", holder="child", wait=30)
db.append_message("s", "assistant", "held", turn=turn)
turn.renew(float(sys.argv[2]))
print("taken", flush=True)
sys.stdin.readline()
try:
    db.append_message("s", "assistant", "late", turn=turn)
    print("written", flush=True)
except TurnLost:
    print("lost", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def db(tmp_path):
    db = SessionDB(tmp_path / "state.db")
    db.create_session("s", "cli")
    yield db
    db.close()
    end_actors(tmp_path / "state.db")


@contextmanager
def holder(db, seconds=600.0):
    """A process that has the turn of the session, and writes again when it gets a line."""
    command = [sys.executable, "-c", HOLDER, str(db.db_path), str(seconds)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        try:
            assert process.stdout.readline() == "taken\n"
            yield process
        finally:
            process.kill()


def says(process):
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def contents(db):
    return [one["content"] for one in db.get_messages("s")]


def test_the_turn_of_a_killed_process_is_free(db):
    """Without any time that runs out: it would have had ten minutes left."""
    for _ in range(5):
        with holder(db) as process:
            with pytest.raises(TurnBusy, match=f"child \\(pid {process.pid}\\)"):
                db.turn("s")
            process.kill()  # not waited for: a zombie has ended as well
            db.turn("s", wait=60).release()
    assert contents(db) == ["held"] * 5


def test_a_stopped_holder_keeps_its_turn_until_its_time_is_over_and_writes_nothing_after(db):
    with holder(db, seconds=2.0) as process:
        pause(process.pid)
        [held] = db.list_turns()
        with db.turn("s", wait=60) as turn:
            assert time.time() >= held.until
            os.kill(process.pid, signal.SIGCONT)
            assert says(process) == "lost"
            db.append_message("s", "assistant", "mine", turn=turn)
    assert contents(db) == ["held", "mine"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_turn_outlives_its_actor(db, number):
    with holder(db) as process:
        pid = ask_status(resolve_paths(db.db_path), 10).pid
        os.kill(pid, number)
        with pytest.raises(TurnBusy):
            db.turn("s")
        assert says(process) == "written"
    assert contents(db) == ["held", "late"]


def test_a_forked_child_holds_nothing(db):
    with db.turn("s") as turn:
        child = os.fork()
        if child == 0:
            try:
                db.append_message("s", "user", "from the child", turn=turn)
            except TurnLost:
                os._exit(0)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        db.append_message("s", "user", "x", turn=turn)
    assert contents(db) == ["x"]


COUNTERS = """
import sys
import threading
from pathlib import Path
from hermes_actor import SessionDB

db = SessionDB(Path(sys.argv[1]), timeout=60)
for _ in range(int(sys.argv[2])):
    with db.turn("s", wait=120) as turn:
        value = int(db.get_meta("counter") or 0)
        db.append_message("s", "user", str(value), turn=turn)
        db.set_meta("counter", str(value + 1))
"""


def test_processes_come_one_after_the_other(db):
    """A counter that is read and written without a transaction loses no step."""
    command = [sys.executable, "-c", COUNTERS, str(db.db_path), "10"]
    processes = [subprocess.Popen(command) for _ in range(4)]
    assert [process.wait(240) for process in processes] == [0] * 4
    assert db.get_meta("counter") == "40"
    assert contents(db) == [str(number) for number in range(40)]


MANY = """
import random
import sys
import threading
from pathlib import Path
from hermes_actor import SessionDB

db = SessionDB(Path(sys.argv[1]), timeout=240)
chance = random.Random(int(sys.argv[2]))
print("ready", flush=True)
sys.stdin.readline()
for _ in range(200):
    name = f"s{chance.randrange(5)}"
    with db.turn(name, holder=sys.argv[2], wait=540) as turn:
        value = int(db.get_meta(name) or 0)
        db.append_message(name, "user", f"{value} {turn.token}", turn=turn)
        db.set_meta(name, str(value + 1))
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_twelve_processes_take_two_hundred_turns_each_of_five_conversations(db):
    for number in range(5):
        db.create_session(f"s{number}", "cli")
    words, pipe = [sys.executable, "-c", MANY, str(db.db_path)], subprocess.PIPE
    processes = [
        subprocess.Popen([*words, str(number)], stdin=pipe, stdout=pipe, text=True)
        for number in range(12)
    ]
    try:
        for process in processes:
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            process.stdin.write("\n")
            process.stdin.flush()
        assert [process.wait(540) for process in processes] == [0] * 12
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    total = 0
    for number in range(5):
        written = [one["content"].split() for one in db.get_messages(f"s{number}")]
        # One after the other, none twice and none between: and a later turn has a higher token.
        assert [int(value) for value, _ in written] == list(range(len(written)))
        tokens = [int(token) for _, token in written]
        assert tokens == sorted(set(tokens))
        total += len(written)
    assert total == 12 * 200
    assert db.list_turns() == []


WAITER = """
import sys, time
from pathlib import Path
from hermes_actor import SessionDB

db = SessionDB(Path(sys.argv[1]), timeout=60)
print("ready", flush=True)
sys.stdin.readline()
with db.turn("s", holder=sys.argv[2], wait=120) as turn:
    db.append_message("s", "user", sys.argv[2], turn=turn)
"""


@contextmanager
def line_of(db, count):
    """Processes that wait for the turn, one after the other; their names are their order."""
    words, pipe = [sys.executable, "-c", WAITER, str(db.db_path)], subprocess.PIPE
    processes = [
        subprocess.Popen([*words, str(number)], stdin=pipe, stdout=pipe, text=True)
        for number in range(count)
    ]
    try:
        for number, process in enumerate(processes):
            assert process.stdout.readline() == "ready\n"
            process.stdin.write("\n")
            process.stdin.flush()
            deadline = time.monotonic() + 60
            while len(db.list_turn_waiters()) <= number:
                assert time.monotonic() < deadline
                time.sleep(0.01)
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_processes_get_the_turn_in_the_order_of_their_coming(db):
    """The line is in the store: it outlives the actor."""
    with db.turn("s", holder="first"), line_of(db, 4) as processes:
        os.kill(ask_status(resolve_paths(db.db_path), 10).pid, signal.SIGKILL)
        db.steal_turn("s")
        assert [process.wait(120) for process in processes] == [0] * 4
    assert contents(db) == ["0", "1", "2", "3"]
    assert db.list_turn_waiters() == []


def test_waiters_that_are_killed_or_stopped_keep_no_other_one_waiting(db):
    """The killed one is passed over, the stopped one comes to the end of the line."""
    with db.turn("s", holder="first") as turn, line_of(db, 4) as processes:
        os.kill(processes[0].pid, signal.SIGSTOP)
        processes[1].kill()
        turn.release()
        assert [process.wait(120) for process in processes[2:]] == [0, 0]
        os.kill(processes[0].pid, signal.SIGCONT)
        assert processes[0].wait(120) == 0
    assert contents(db) == ["2", "3", "0"]
    assert db.list_turn_waiters() == []


CHATS = """
import sys
import threading
from pathlib import Path
from hermes_actor import SessionDB
from hermes_actor.gateway import GatewayConfig, Hooks, SessionSource, SessionStore

db = SessionDB(Path(sys.argv[1]), timeout=60)
store = SessionStore(config=GatewayConfig(), db=db, hooks=Hooks(entry_points=False))
print("ready", flush=True)
number = 0
while True:
    number += 1
    for chat in range(5):
        source = SessionSource(platform="echo", chat_id=str(chat))
        with store.begin_turn(source, f"{sys.argv[2]} {number}", wait=60) as turn:
            turn.append("assistant", "ok")
        if number % 3 == 0:
            store.reset_session(turn.entry.session_key)
"""


def test_killed_gateways_leave_one_open_session_for_every_chat(db, tmp_path):
    for number in range(4):
        command = [sys.executable, "-c", CHATS, str(db.db_path), str(number)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline() == "ready\n"
            deadline, before = time.monotonic() + 60, db.message_count()
            while db.message_count() < before + 15 + 7 * number:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            process.kill()
    store = SessionStore(config=GatewayConfig(), db=db, hooks=Hooks(entry_points=False))
    routes = {route.key: route.entry["session_id"] for route in store.routes()}
    assert len(set(routes.values())) == 5
    rows = [row for row in db.export_all() if row["source"] == "echo"]
    assert {row["id"] for row in rows if row["ended_at"] is None} == set(routes.values())
    assert {row["end_reason"] for row in rows if row["ended_at"] is not None} == {"session_reset"}
    store.transcripts.catch_up()
    for row in (one for one in rows if one["message_count"]):
        lines = store.get_transcript_path(row["id"]).read_text().splitlines()[1:]
        assert len(lines) == row["message_count"]
    for chat in range(5):
        with store.begin_turn(SessionSource(platform="echo", chat_id=str(chat)), "x", wait=60):
            pass
    store.close()


SENDER = """
import sys
import threading
from pathlib import Path
from hermes_actor import SessionDB
from hermes_actor.errors import TurnBusy
from hermes_actor.gateway import GatewayConfig, Hooks, SessionSource, SessionStore

db = SessionDB(Path(sys.argv[1]), timeout=60)
store = SessionStore(config=GatewayConfig(), db=db, hooks=Hooks(entry_points=False))
source = SessionSource(platform="echo", chat_id="1")
try:
    store.begin_turn(source, "too early", wait=0)
except TurnBusy:
    print("busy", flush=True)
with store.begin_turn(source, "from the other process", wait=120) as turn:
    print(turn.session_id, flush=True)
store.close()
db.close()
"""


def test_a_message_that_waits_for_a_compression_lands_in_the_continuation(db):
    store = SessionStore(config=GatewayConfig(), db=db, hooks=Hooks(entry_points=False))
    source = SessionSource(platform="echo", chat_id="1")
    command = [sys.executable, "-c", SENDER, str(db.db_path)]
    with store.begin_turn(source, "first") as turn:
        before = turn.session_id
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as sender:
            assert sender.stdout.readline() == "busy\n"
            after = turn.compress([{"role": "user", "content": "summary"}])
            turn.append("assistant", "answer")
            turn.finish()
            assert sender.stdout.readline().strip() == after
            assert sender.wait(60) == 0
    assert [one["content"] for one in db.get_messages(before)] == ["first"]
    assert [one["content"] for one in db.get_messages(after)] == [
        "summary",
        "answer",
        "from the other process",
    ]
    assert store.peek_session_id(store.session_key(source)) == after
    store.close()


def resident(pid):
    """Mebibytes of memory of a process."""
    (line,) = [one for one in Path(f"/proc/{pid}/status").read_text().splitlines()
               if one.startswith("VmRSS")]  # fmt: skip
    return int(line.split()[1]) / 1024


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_many_that_wait_and_give_up_leave_no_trace(db, count):
    before = ask_status(resolve_paths(db.db_path), 10)
    memory = resident(before.pid)
    busy = []

    def wait_a_little(_number):
        try:
            db.turn("s", wait=0.2)
        except TurnBusy as error:
            busy.append(error)

    with db.turn("s", holder="first") as turn:
        threads = [threading.Thread(target=wait_a_little, args=(one,)) for one in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(busy) == len(threads)
        db.append_message("s", "user", "mine", turn=turn)
        assert [one.token for one in db.list_turns()] == [turn.token]
        assert db.list_turn_waiters() == []
    assert db.list_turns() == []
    assert ask_status(resolve_paths(db.db_path), 10).pid == before.pid
    assert resident(before.pid) < memory + 32
    db.turn("s").release()
