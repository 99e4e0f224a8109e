"""restore and repair --swap beside writers, and given up: nothing acknowledged is lost.

Every write that was acknowledged is in the store, or in the copy of the content before that the
command names. The writers are processes of their own.
"""

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time

import pytest
from support.actors import contents, folder_of, pause, wait_for
from support.fake_builds import around, command, serving, touch
from support.files import query, write_lock
from support.wire import Wire, append, create, request

from hermes_actor import SessionDB, exit_codes
from hermes_actor.testing import history

BALLAST = 6_000
"""Messages that make copying take long enough for many writes."""

WRITER = """
import sys, threading, time
from pathlib import Path
from hermes_actor import SessionDB
from hermes_actor.errors import HermesActorError
path, client = Path(sys.argv[1]), sys.argv[2]
db = SessionDB(path, mode="actor", timeout=60)
stop = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
number = 0
while not stop.is_set():
    number += 1
    began = time.monotonic()
    try:
        db.append_message("live", "user", f"{client} {number}")
        outcome = "ok"
    except HermesActorError as error:
        outcome = {"no": "failed", "yes": "ok"}.get(error.executed, error.executed)
        print(f"# {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    print(number, began, time.monotonic(), outcome, flush=True)
db.close()
"""


class Writers:
    """Processes that append to the session ``live`` until the block ends; their answers."""

    def __init__(self, path, count=2):
        self._processes = {
            client: subprocess.Popen(
                [sys.executable, "-c", WRITER, path, client],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for client in (f"writer{n}" for n in range(count))
        }
        self.writes = []
        self._readers = [
            threading.Thread(target=self._read, args=item) for item in self._processes.items()
        ]
        for thread in self._readers:
            thread.start()

    def _read(self, client, process):
        for line in process.stdout:
            number, began, ended, outcome = line.split()
            self.writes.append(
                history.Write(
                    client, int(number), hash(f"{client} {number}"), float(began), float(ended),
                    outcome,
                )
            )  # fmt: skip

    def __enter__(self):
        self.wait_for_more()
        return self

    def wait_for_more(self, count=20):
        """Until each of them has written again."""
        enough = len(self.writes) + count * len(self._processes)
        wait_for(lambda: len(self.writes) >= enough)

    def __exit__(self, *_):
        for process in self._processes.values():
            process.stdin.close()
        for process in self._processes.values():
            assert process.wait(90) == 0
        for thread in self._readers:
            thread.join()
        for process in self._processes.values():
            process.stdout.close()

    def violations(self, *files):
        """What breaks the rules of a history, if all of *files* together are its outcome."""
        rows = []
        for file in files:
            texts = contents(file, "live")
            for client in {text.split()[0] for text in texts}:
                numbers = [int(text.split()[1]) for text in texts if text.split()[0] == client]
                assert numbers == sorted(numbers), "out of order"
            rows += [
                history.Row(None, text.split()[0], int(text.split()[1]), hash(text))
                for text in texts
            ]
        return history.check(self.writes, rows, has_receipts=False)


@pytest.fixture
def large(path):
    """A store of some megabytes, with an empty session that is written later."""
    with contextlib.closing(SessionDB(path, mode="embedded")) as db:
        db.create_session("old", "cli")
        with db.pipeline() as pipeline:
            for n in range(BALLAST):
                pipeline.append_message("old", "user", f"ballast {n} " * 40)
        db.create_session("live", "cli")
    return path


def run(*words):
    done = command(*words, "--json")
    assert done.returncode == exit_codes.OK, done.stderr
    return json.loads(done.stdout)


def leftovers(path):
    """What a command has left beside the store and among its side files."""
    own = {path.name, f"{path.name}-wal", f"{path.name}-shm", folder_of(path).name, "backups"}
    beside = {p.name for p in path.parent.iterdir()} - own
    return beside | {p.name for p in folder_of(path).glob("restore-*")}


# --- beside writers ------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["restore", "repair"])
def test_what_is_acknowledged_meanwhile_is_in_the_store_or_in_the_copy(large, tmp_path, way):
    copy = tmp_path / "elsewhere" / "copy.db"
    copy.parent.mkdir()
    command("backup", "--db", large, "--to", copy)
    with serving(large) as actor, Writers(large) as writers:
        if way == "restore":
            found = run("restore", "--db", large, copy, "--yes")
        else:
            found = run("repair", "--db", large, "--salvage", "--swap", "--yes")
        writers.wait_for_more()
        assert actor.lives
    if way == "restore":
        # The content of before is in the copy, that since in the store, and none in both.
        assert writers.violations(large, found["before"]) == []
    else:
        # What was saved is all that there was, so the store lacks nothing.
        assert writers.violations(large) == []
        assert found["messages"]["missing"] == 0
    assert query(large, "PRAGMA integrity_check") == [("ok",)]
    assert leftovers(large) - {"elsewhere"} == set()


def test_restore_without_an_actor_beside_clients_that_start_one(large, tmp_path):
    """No actor serves when the command begins, and clients come meanwhile."""
    copy = tmp_path / "elsewhere" / "copy.db"
    copy.parent.mkdir()
    command("backup", "--db", large, "--to", copy)
    found = []
    thread = threading.Thread(
        target=lambda: found.append(run("restore", "--db", large, copy, "--yes"))
    )
    thread.start()
    with Writers(large) as writers:
        thread.join()
        writers.wait_for_more()
    (document,) = found
    files = [large] if document["before"] is None else [large, document["before"]]
    assert writers.violations(*files) == []


def test_another_program_that_writes_meanwhile_is_not_lost_either(large, tmp_path):
    """It does not ask the actor; its commits show all the same."""
    copy = tmp_path / "copy.db"
    command("backup", "--db", large, "--to", copy)
    written, stop = [], threading.Event()

    def write():
        with contextlib.closing(sqlite3.connect(large, isolation_level=None, timeout=60)) as conn:
            while not stop.is_set():
                conn.execute(
                    "INSERT INTO messages (session_id, role, content, timestamp)"
                    " VALUES ('live', 'user', ?, 1.0)",
                    (f"foreign {len(written)}",),
                )
                written.append(f"foreign {len(written)}")
                time.sleep(0.05)

    with serving(large):
        thread = threading.Thread(target=write)
        thread.start()
        try:
            wait_for(lambda: len(written) > 3)
            done = command("restore", "--db", large, copy, "--yes", "--json")
        finally:
            stop.set()
            thread.join()
    present = set(contents(large, "live"))
    if done.returncode == exit_codes.OK:
        present |= set(contents(json.loads(done.stdout)["before"], "live"))
    else:  # it never found a moment, and has changed nothing
        assert "has changed since it was copied" in done.stderr
    assert set(written) <= present


def ask(number, task, **fields):
    return {"t": "maintain", "ask": number, "task": task, "patience": 60.0, **fields}


def test_replacement_of_a_state_that_is_no_more_is_refused(path, tmp_path):
    with serving(path), Wire(path) as client, Wire(path) as other:
        assert client.do(1, create("s"))["t"] == "ok"
        copy = prepared_copy(path)
        client.send(ask(-1, "state"))
        told = client.receive()["result"]
        assert other.do(1, append("s", "meanwhile"))["t"] == "ok"
        client.send(ask(-2, "replace", path=str(copy), expected=told["state"]))
        refused = client.receive()
        assert (refused["code"], refused.get("executed", "no")) == ("state-changed", "no")
        assert f"change {told['commit_no'] + 1} now" in refused["message"]
        assert contents(path, "s") == ["meanwhile"]
        # A state must be named; and the present one is taken.
        client.send(ask(-3, "replace", path=str(copy)))
        assert client.receive()["code"] == "bad-value"
        client.send(ask(-4, "state"))
        state = client.receive()["result"]["state"]
        client.send(ask(-5, "replace", path=str(copy), expected=state))
        assert client.receive()["t"] == "done"
        assert contents(path, "s") == []


LATE_COMMIT = """
import sqlite3
from contextlib import closing
from hermes_actor.engine.connection import WriteConnection
asked, look = [], WriteConnection.state.fget
def state(self):
    found = look(self)
    asked.append(found)
    if len(asked) == 2:
        with closing(sqlite3.connect(self.paths.db)) as other, other:
            other.execute("INSERT INTO state_meta VALUES ('foreign', 'v')")
    return found
WriteConnection.state = property(state)
"""


def test_foreign_commit_between_the_comparison_and_the_lock_is_not_replaced(path):
    """The state is compared once; what another program commits just after that is seen, too."""
    with serving(path, prelude=LATE_COMMIT), Wire(path) as client:
        assert client.do(1, create("s"))["t"] == "ok"
        copy = prepared_copy(path)
        client.send(ask(-1, "state"))
        state = client.receive()["result"]["state"]
        client.send(ask(-2, "replace", path=str(copy), expected=state))
        assert client.receive()["code"] == "state-changed"
        assert query(path, "SELECT value FROM state_meta WHERE key = 'foreign'") == [("v",)]


def prepared_copy(path):
    """What a command puts among the side files for the actor to take."""
    copy = folder_of(path) / "prepared.db"
    with (
        contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as source,
        contextlib.closing(sqlite3.connect(copy)) as target,
    ):
        source.backup(target)
    return copy


OLDER = """
from hermes_actor.engine import loop
from hermes_actor.errors import Unsupported
known = loop.maintain
def maintain(writer, task, *rest):
    if task not in ("restore", "rebuild-index", "reindex"):
        raise Unsupported(f"{task!r} is no maintenance that this build knows")
    return known(writer, task, *rest)
loop.maintain = maintain
"""


@pytest.mark.parametrize("words", [["restore"], ["repair", "--salvage", "--swap"]], ids=" ".join)
def test_older_actor_is_asked_for_nothing_that_it_cannot_do_safely(path, words):
    """It would replace the content without a look at its state."""
    with serving(path, prelude=OLDER), contextlib.closing(SessionDB(path)) as db:
        db.create_session("live", "cli")
        command("backup", "--db", path)
        db.append_message("live", "user", "after the copy")
        done = command(*words, "--db", path, "--yes")
        assert (done.returncode, done.stdout) == (exit_codes.REFUSED, "")
        assert "hermes-actor handoff" in done.stderr
        assert contents(path, "live") == ["after the copy"]
        assert len(list(path.with_name("backups").iterdir())) == 1
        assert leftovers(path) == set()


# --- holding -------------------------------------------------------------------------------------


def test_changes_wait_while_they_are_held_and_go_on_when_the_holder_is_gone(path):
    with serving(path), Wire(path) as other:
        assert other.do(1, create("s"))["t"] == "ok"
        with Wire(path) as holder:
            holder.send(ask(-1, "hold"))
            state = holder.receive()["result"]["state"]
            other.send({"t": "request", "seq": 2, "operation": append("s", "held")})
            told = wait_for(lambda: [t for t in holder.status().degraded if "wait for" in t])
            assert f"pid {os.getpid()}" in told[0]
            holder.send(ask(-3, "state"))
            assert wait_for(holder.receive)["result"]["state"] == state
            assert contents(path, "s") == []
        assert other.receive()["t"] == "ok"
        assert contents(path, "s") == ["held"]


def test_holder_that_gives_no_sign_of_life_holds_up_no_client(path):
    """Its terminal was suspended, for example."""
    prelude = "from hermes_actor import limits\nlimits.HOLD_SILENT_SECONDS = 0.3\n"
    with serving(path, prelude=prelude), Wire(path) as other, Wire(path) as holder:
        assert other.do(1, create("s"))["t"] == "ok"
        holder.send(ask(-1, "hold"))
        state = holder.receive()["result"]["state"]
        assert other.do(2, append("s", "held"))["t"] == "ok"
        # What it asks for after that is not of the state that it has copied.
        holder.send(ask(-2, "replace", path=str(prepared_copy(path)), expected=state))
        assert holder.receive()["code"] == "state-changed"
        assert contents(path, "s") == ["held"]


def test_drain_does_not_wait_for_a_holder(path):
    with serving(path) as actor, Wire(path) as holder:
        holder.send(ask(-1, "hold"))
        holder.receive()
        os.kill(actor.pid, signal.SIGTERM)
        assert actor.exit_code() == 0


# --- given up ------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_restore_that_was_given_up_is_not_made_later(path, number):
    with serving(path) as actor, contextlib.closing(SessionDB(path)) as db:
        db.create_session("s", "cli")
        command("backup", "--db", path)
        db.append_message("s", "user", "after the copy")
        pause(actor.pid)
        with subprocess.Popen(
            [sys.executable, "-m", "hermes_actor", "restore", "--db", path, "--yes", "--no-backup"],
            stderr=subprocess.PIPE,
            text=True,
        ) as restoring:
            try:
                assert "does not answer" in restoring.stderr.readline()
                restoring.send_signal(number)
                code = restoring.wait(30)
            finally:
                restoring.kill()  # else it waits for the actor for an hour, and the block for it
        assert code == (130 if number is signal.SIGINT else -number)
        if number is not signal.SIGKILL:
            assert leftovers(path) == set()
        os.kill(actor.pid, signal.SIGCONT)
        # Whatever the actor has found in its sockets, it has dealt with it by then.
        db.append_message("s", "user", "later")
        assert contents(path, "s") == ["after the copy", "later"]
    with serving(path):
        assert leftovers(path) == set()


def test_maintenance_is_not_begun_for_a_connection_that_is_gone(path):
    """It was asked for, and welcomed; then the actor stood still, and the caller ended."""
    with serving(path) as actor, Wire(path) as other:
        assert other.do(1, create("s"))["t"] == "ok"
        copy = prepared_copy(path)
        assert other.do(2, append("s", "after the copy"))["t"] == "ok"
        with Wire(path) as client:
            pause(actor.pid)
            client.send(ask(-1, "restore", path=str(copy)))
        os.kill(actor.pid, signal.SIGCONT)
        assert other.do(3, append("s", "later"))["t"] == "ok"
        assert contents(path, "s") == ["after the copy", "later"]


def test_maintenance_is_not_begun_after_its_time(path):
    with serving(path) as actor, Wire(path) as client, Wire(path) as other:
        assert other.do(1, create("s"))["t"] == "ok"
        copy = prepared_copy(path)
        with Wire(path) as holder:
            holder.send(ask(-1, "hold"))
            holder.receive()
            late = ask(-1, "restore", path=str(copy)) | {"patience": 0.1}
            client.send(late)
            refused = client.receive()
            assert (refused["code"], refused.get("executed", "no")) == ("deadline", "no")
        assert actor.lives


# --- behind a foreign lock -----------------------------------------------------------------------


@pytest.fixture
def behind_a_lock(path, tmp_path):
    """An actor whose restore, asked for on the first wire, waits for a foreign writer."""
    here = tmp_path / "here"
    prelude = around("hermes_actor.engine.admin_tasks:_replace_content", before=touch(here))
    with serving(path, prelude=prelude) as actor, Wire(path) as client, Wire(path) as other:
        assert other.do(1, create("s"))["t"] == "ok"
        copy = prepared_copy(path)
        assert other.do(2, append("s", "after the copy"))["t"] == "ok"
        with write_lock(path) as foreign:
            client.send(ask(-1, "restore", path=str(copy), patience=3600.0))
            wait_for(here.exists)
            yield actor, client, other, foreign


def test_drain_does_not_wait_for_a_restore_behind_a_foreign_lock(path, behind_a_lock):
    actor, client, _, foreign = behind_a_lock
    os.kill(actor.pid, signal.SIGTERM)
    assert actor.exit_code() == 0
    told = {message["t"]: message for message in client.until_end()}
    assert told.keys() == {"failed", "goaway"}
    assert (told["failed"]["code"], told["failed"].get("executed", "no")) == ("busy", "no")
    foreign.rollback()
    assert contents(path, "s") == ["after the copy"]


def test_restore_behind_a_foreign_lock_is_given_up_with_its_caller(path, behind_a_lock):
    """It is not made when the lock is free, an hour later perhaps."""
    _, client, other, foreign = behind_a_lock
    client.close()
    # Taken only when the restore is over; before, the writer waits for the same lock.
    other.send(request(3, append("s", "later"), patience=1.0))
    assert other.receive()["code"] in {"busy", "deadline"}
    foreign.rollback()
    assert other.do(4, append("s", "at last"))["t"] == "ok"
    assert contents(path, "s") == ["after the copy", "at last"]
