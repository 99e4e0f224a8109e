"""SessionDB objects and their writer: sharing, threads, forks, endings, timeout."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time

import pytest
from support.files import query, raw
from support.processes import run_python
from support.subprocess_env import outcome

from hermes_actor import SessionDB
from hermes_actor.engine.leases import LeaseRunner
from hermes_actor.engine.writer import Writer
from hermes_actor.errors import (
    ActorBroken,
    AlreadyOwned,
    Closed,
    ConstraintFailed,
    DeadlineExceeded,
    OutcomeUnknown,
    SessionEnded,
    UnknownSession,
)
from hermes_actor.paths import resolve_paths

IDLE_LIMIT = 0.2


@pytest.fixture
def open_embedded(path):
    opened = []

    def open_(file=path, **options):
        opened.append(SessionDB(file, mode="embedded", **options))
        return opened[-1]

    yield open_
    for db in opened:
        db.close()


@pytest.fixture
def embedded(open_embedded):
    db = open_embedded()
    db.create_session("s", "cli")
    return db


def in_thread(call):
    """What *call* gives in another thread; that it ends is part of every test here."""
    results = []
    thread = threading.Thread(target=lambda: results.append(outcome(call)), daemon=True)
    thread.start()
    thread.join(20)
    assert results, "the call hangs"
    return results[0]


def is_a(result, kind):
    return f"{kind.__module__}.{kind.__name__}" in result["classes"]


# Several objects, one writer.


def test_objects_see_each_others_changes_at_once(open_store, path):
    first, second = open_store(path), open_store(path)
    for n in range(20):
        first.set_meta("k", str(n))
        assert second.get_meta("k") == str(n)
        second.set_meta("k", f"{n}!")
        assert first.get_meta("k") == f"{n}!"


def test_closing_one_object_does_not_disturb_the_others(open_store, path):
    first, second, third = (open_store(path) for _ in range(3))
    first.create_session("s", "cli")
    second.close()
    second.close()
    with pytest.raises(Closed):
        second.set_meta("k", "v")
    with pytest.raises(Closed):
        second.get_session("s")
    assert first.append_message("s", "user", "x") == 1
    first.close()
    assert third.append_message("s", "user", "y") == 2
    assert third.message_count("s") == 2


def test_object_can_be_opened_again_after_the_last_close(open_store, path):
    for n in range(3):
        db = open_store(path)
        db.set_meta(str(n), "v")
        assert db.get_meta("0") == "v"
        db.close()


def test_every_spelling_of_a_path_is_one_writer(open_embedded, tmp_path, monkeypatch):
    (tmp_path / "sub").mkdir()
    (tmp_path / "link.db").symlink_to(tmp_path / "state.db")
    monkeypatch.chdir(tmp_path)
    spellings = ("state.db", tmp_path / "sub" / ".." / "state.db", tmp_path / "link.db")
    objects = [open_embedded(type(tmp_path)(spelling)) for spelling in spellings]
    objects[0].set_meta("k", "v")
    assert [db.get_meta("k") for db in objects] == ["v"] * 3
    assert len({id(db._port) for db in objects}) == 1


def test_two_files_in_one_folder_are_two_stores(open_store, tmp_path):
    first, second = open_store(tmp_path / "a.db"), open_store(tmp_path / "b.db")
    first.set_meta("k", "a")
    second.set_meta("k", "b")
    assert (first.get_meta("k"), second.get_meta("k")) == ("a", "b")


@pytest.mark.parametrize("objects", [1, 3])
def test_eight_threads_with_twenty_messages_each(open_store, path, objects):
    stores = [open_store(path) for _ in range(objects)]
    stores[0].create_session("s", "cli")
    given = [[] for _ in range(8)]

    def work(number):
        for n in range(20):
            db = stores[number % objects]
            given[number].append(db.append_message("s", "user", f"{number}:{n}", tool_calls=[1]))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = stores[-1].get_messages("s")
    assert sorted(n for ids in given for n in ids) == [row["id"] for row in rows]
    assert len(rows) == 160
    session = stores[-1].get_session("s")
    assert (session["message_count"], session["tool_call_count"]) == (160, 160)
    for number in range(8):  # the order of one thread's calls is the order in the file
        mine = [row["content"] for row in rows if row["content"].startswith(f"{number}:")]
        assert mine == [f"{number}:{n}" for n in range(20)]


def test_second_process_learns_who_holds_the_store(embedded, path):
    result = run_python(
        """
        import sys
        from support.subprocess_env import open_and_close, outcome, tell
        tell(outcome(lambda: open_and_close(sys.argv[1], "embedded")))
        """,
        path,
    )
    assert is_a(result, AlreadyOwned)
    assert str(os.getpid()) in result["text"]
    embedded.set_meta("k", "v")


def test_lock_file_tells_the_epoch_of_its_owner(embedded, path):
    ((epoch,),) = query(path, "SELECT value FROM hermes_actor_meta WHERE key = 'epoch'")
    content = json.loads(resolve_paths(path).owner_lock.read_text())
    assert (content["pid"], content["epoch"]) == (os.getpid(), epoch)


def test_constructor_refuses_an_unknown_mode(path):
    with pytest.raises(ValueError, match="nonsense"):
        SessionDB(path, mode="nonsense")
    assert not path.exists()


# After a fork.

FORK = """
import json, os, sys
from pathlib import Path
from support.subprocess_env import outcome, tell
from hermes_actor import SessionDB

path = Path(sys.argv[1])
db = SessionDB(path, mode="embedded")
db.create_session("s", "cli")
db.append_message("s", "user", "before the fork")

def forked(work):
    # What `work` gives in a child that is a copy of this process.
    out, into = os.pipe()
    child = os.fork()
    if not child:
        os.write(into, json.dumps(work()).encode())
        os._exit(0)
    os.close(into)
    with open(out) as pipe:
        text = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    return json.loads(text)
"""


def test_child_reads_but_does_not_write(path):
    result = run_python(
        FORK
        + """
def child():
    return {
        "write": outcome(lambda: db.append_message("s", "user", "child"))["classes"],
        "sql": outcome(lambda: db._conn.execute("DELETE FROM messages"))["classes"],
        "lease": outcome(lambda: db._execute_write(lambda face: None))["classes"],
        "open": outcome(lambda: SessionDB(path, mode="embedded")),
        "read": [m["content"] for m in db.get_messages("s")],
        "count": db.message_count(),
        "close": outcome(db.close)["classes"],
    }

seen = forked(child)
db.append_message("s", "user", "after the fork")
seen["parent"] = [m["content"] for m in db.get_messages("s")]
seen["found"] = len(db.search_messages("fork"))
seen["pid"] = os.getpid()
db.close()
tell(seen)
""",
        path,
    )
    owned = "hermes_actor.errors.AlreadyOwned"
    assert owned in result["write"]
    assert owned in result["sql"]
    assert owned in result["lease"]
    assert owned in result["open"]["classes"]
    assert str(result["pid"]) in result["open"]["text"]
    assert (result["read"], result["count"]) == (["before the fork"], 1)
    assert result["close"] == []
    assert result["parent"] == ["before the fork", "after the fork"]
    assert result["found"] == 2


def test_child_sees_what_the_parent_writes_later(path):
    seen = run_python(
        FORK
        + """
wake, waker = os.pipe()
out, into = os.pipe()
child = os.fork()
if not child:
    before = db.message_count()
    os.read(wake, 1)
    os.write(into, json.dumps([before, db.message_count()]).encode())
    os._exit(0)
db.append_message("s", "user", "later")
os.write(waker, b"x")
os.close(into)
with open(out) as pipe:
    seen = json.loads(pipe.read())
os.waitpid(child, 0)
db.close()
tell(seen)
""",
        path,
    )
    assert seen[1] == 2


def test_living_child_does_not_keep_the_store_from_its_parent(path):
    """A copy of the lock's descriptor in a child would hold the lock as long as the child lives."""
    result = run_python(
        FORK
        + """
wake, waker = os.pipe()
child = os.fork()
if not child:
    os.close(waker)
    os.read(wake, 1)
    os._exit(0)
db.close()
again = outcome(lambda: SessionDB(path, mode="embedded").close())
os.close(waker)
os.waitpid(child, 0)
tell(again)
""",
        path,
    )
    assert result["classes"] == []


# Endings.


def program(code, path, expected=0):
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == expected, done.stderr
    return done.stderr


FORGETS = """
import sys
from pathlib import Path
from hermes_actor import SessionDB
db = SessionDB(Path(sys.argv[1]), mode="embedded")
db.create_session("s", "cli")
for n in range(20):
    db.append_message("s", "user", f"message {n}")
"""


@pytest.mark.parametrize(
    ("ending", "code", "complaint"),
    [
        ("", 0, ""),
        ("other = SessionDB(Path(sys.argv[1]), mode='embedded'); del db", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("raise RuntimeError('own')", 1, "RuntimeError: own"),
    ],
)
def test_program_that_forgets_to_close_ends_cleanly(path, ending, code, complaint):
    paths = resolve_paths(path)
    errors = program(FORGETS + ending, path, code)
    assert errors.strip().endswith(complaint)
    assert bool(errors) is bool(complaint)
    assert not paths.wal.exists()
    assert not paths.shm.exists()
    assert query(path, "SELECT COUNT(*) FROM messages") == [(20,)]


def test_search_is_complete_after_a_kill(open_embedded, path):
    code = FORGETS.replace(
        "db = ", "from hermes_actor.engine.index.maintenance import IndexMaintenance\n"
        "IndexMaintenance.run_slice = lambda self, seconds: False\ndb = ",
    )  # fmt: skip
    program(code + "import os; os.kill(os.getpid(), 9)", path, -signal.SIGKILL)
    assert query(path, "SELECT COUNT(*) FROM messages_fts_docsize") == [(0,)]
    db = open_embedded()
    assert sorted(hit["id"] for hit in db.search_messages("message", limit=-1)) == [*range(1, 21)]
    db.append_message("s", "user", "message 20")
    assert len(db.search_messages("message", limit=-1)) == 21


def test_acknowledged_changes_survive_a_kill(open_embedded, path):
    program(FORGETS + "import os; os.kill(os.getpid(), 9)", path, -signal.SIGKILL)
    db = open_embedded()
    assert [m["content"] for m in db.get_messages("s")] == [f"message {n}" for n in range(20)]
    assert db.get_session("s")["message_count"] == 20


def test_search_is_complete_right_after_an_append(db):
    db.create_session("s", "cli")
    for n in range(30):
        message = db.append_message("s", "user", f"walrus{n} 北京 上海烤鸭店")
        assert [hit["id"] for hit in db.search_messages(f"walrus{n}")] == [message]
        assert db.search_messages("北京")[0]["id"] in range(1, message + 1)
        assert len(db.search_messages("上海烤鸭店", limit=-1)) == message
        assert len(db.search_messages("北京", limit=-1)) == message


def test_search_follows_replace_and_delete(db):
    db.create_session("s", "cli")
    db.append_message("s", "user", "walrus")
    db.replace_messages("s", [{"role": "user", "content": "giraffe"}])
    assert db.search_messages("walrus") == []
    assert len(db.search_messages("giraffe")) == 1
    db.delete_session("s")
    assert db.search_messages("giraffe") == []


# The timeout.


def test_impatient_call_gives_up_while_a_transaction_is_held(open_store, mode, path):
    db = open_store(path)
    db.create_session("s", "cli")
    impatient = SessionDB(path, mode=mode, timeout=IDLE_LIMIT / 2)

    def work(face):
        face.execute("INSERT INTO state_meta VALUES ('k', 'v')")
        return in_thread(lambda: impatient.append_message("s", "user", "too late"))

    try:
        result = db._execute_write(work)
        assert is_a(result, DeadlineExceeded)
        assert is_a(result, TimeoutError)
        assert db.get_meta("k") == "v"
        assert db.append_message("s", "user", "in time") == 1
        assert [m["content"] for m in db.get_messages("s")] == ["in time"]
    finally:
        impatient.close()


def test_foreign_lock_within_the_timeout_is_waited_for(open_store, mode, path):
    db = open_store(path)
    db.create_session("s", "cli")
    with raw(path) as foreign:
        foreign.execute("BEGIN IMMEDIATE")
        results = []
        thread = threading.Thread(
            target=lambda: results.append(db.append_message("s", "user", "x"))
        )
        thread.start()
        thread.join(0.05)
        assert results == []
        foreign.rollback()
        thread.join(60)
    assert results == [1]


def test_foreign_lock_that_outlasts_the_timeout(open_store, mode, path):
    db = open_store(path)
    db.create_session("s", "cli")
    impatient = SessionDB(path, mode=mode, timeout=0.1)
    try:
        with raw(path) as foreign:
            foreign.execute("BEGIN IMMEDIATE")
            with pytest.raises((sqlite3.OperationalError, TimeoutError)) as caught:
                impatient.append_message("s", "user", "x")
            assert caught.value.executed == "no"
            foreign.rollback()
        assert db.append_message("s", "user", "y") == 1
        assert [m["content"] for m in db.get_messages("s")] == ["y"]
    finally:
        impatient.close()


# A writer thread that dies.


@pytest.fixture
def dying(embedded, monkeypatch):
    """A store whose writer thread is ended at the first call with ``die``."""
    run_batch = Writer.run_batch
    reached, go_on = threading.Event(), threading.Event()

    def buggy(self, requests):
        if any(getattr(request.operation, "key", None) == "die" for request in requests):
            reached.set()
            assert go_on.wait(60)
            raise SystemExit("a bug")
        return run_batch(self, requests)

    monkeypatch.setattr(Writer, "run_batch", buggy)
    embedded.reached, embedded.go_on = reached, go_on
    return embedded


def start(results, call):
    thread = threading.Thread(target=lambda: results.append(outcome(call)), daemon=True)
    thread.start()
    return thread


def test_callers_of_a_dead_writer_get_errors(dying, caplog):
    taken, queued = [], []
    first = start(taken, lambda: dying.set_meta("die", "v"))
    assert dying.reached.wait(60)
    others = [start(queued, lambda: dying.set_meta("k", "v")) for _ in range(3)]
    others.append(start(queued, lambda: dying._execute_write(lambda face: None)))
    dying.go_on.set()
    for thread in (first, *others):
        thread.join(60)
        assert not thread.is_alive()
    assert is_a(taken[0], OutcomeUnknown)  # it had been taken: the outcome is unknown
    assert all(is_a(result, ActorBroken) for result in queued)
    assert all("a bug" in result["text"] for result in (*taken, *queued))
    with pytest.raises(ActorBroken, match="a bug"):
        dying.append_message("s", "user", "x")
    assert dying.get_session("s")["id"] == "s"  # reads go on
    assert "a bug" in caplog.text


def test_unexpected_error_ends_one_call_alone(embedded, monkeypatch, caplog):
    """G16: the caller hears of it, the log has the traceback, and the writer goes on."""
    run_batch = Writer.run_batch

    def buggy(self, requests):
        if any(getattr(request.operation, "key", None) == "bug" for request in requests):
            self.connection.begin(time.monotonic() + 60)  # and is left open
            raise ZeroDivisionError("a bug")
        return run_batch(self, requests)

    monkeypatch.setattr(Writer, "run_batch", buggy)
    assert is_a(in_thread(lambda: embedded.set_meta("bug", "v")), OutcomeUnknown)
    embedded.set_meta("k", "v")
    assert embedded.get_meta("k") == "v"
    assert embedded.get_meta("bug") is None
    assert "ZeroDivisionError: a bug" in caplog.text


def test_search_of_a_dead_writer_does_not_hang(dying):
    dying.append_message("s", "user", "walrus")
    dying.go_on.set()
    in_thread(lambda: dying.set_meta("die", "v"))
    result = in_thread(lambda: dying.search_messages("walrus"))
    assert is_a(result, ActorBroken) or len(result["value"]) == 1


def test_store_of_a_dead_writer_can_be_closed_and_opened_again(dying, open_embedded, path):
    dying.go_on.set()
    in_thread(lambda: dying.set_meta("die", "v"))
    assert in_thread(dying.close)["classes"] == []
    again = open_embedded()
    again.set_meta("k", "v")
    assert again.get_meta("k") == "v"
    assert again.get_meta("die") is None


def test_transaction_of_a_dead_writer_does_not_hang(embedded, monkeypatch):
    def buggy(self, *args, **kwargs):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(LeaseRunner, "end", buggy)

    def work(face):
        face.execute("INSERT INTO state_meta VALUES ('k', 'v')")
        time.sleep(1.5 * IDLE_LIMIT)  # the writer ends it by itself, and meets the bug
        face.execute("SELECT 1")

    result = in_thread(lambda: embedded._execute_write(work))
    assert any(name.startswith("hermes_actor.errors.") for name in result["classes"])
    assert embedded.get_meta("k") is None


def test_calls_during_a_close_get_an_answer(open_embedded, path):
    """A caller that comes too late is refused; none waits for a thread that has ended."""
    for _ in range(10):
        db = open_embedded()
        port = db._port
        results = []
        threads = [start(results, lambda db=db: db.set_meta("k", "v")) for _ in range(4)]
        db.close()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
        assert len(results) == 4
        assert all(not r["classes"] or is_a(r, Closed) for r in results)
        assert port is not None


# Continuing a session.


def test_message_of_an_unknown_session_names_the_session_and_the_file(tmp_path):
    path = tmp_path / "state.db"
    with SessionDB(path, mode="embedded") as db, pytest.raises(ConstraintFailed) as caught:
        db.append_message("nope", "user", "x")
    words = "FOREIGN KEY constraint failed"
    assert str(caught.value) == f"{words}: there is no session 'nope' in {path}"
    assert (caught.value.sqlite_message, caught.value.executed) == (words, "no")


def test_continuation_ends_its_parent_and_gets_the_next_title(db, clock):
    db.create_session("a", "cli", model="m", user_id="u", system_prompt="p", model_config={"x": 1})
    db.set_session_title("a", "trip")
    db.append_message("a", "user", "hi")
    clock.at(2000)
    assert db.continue_session("a", "b") == "b"
    old, new = db.get_session("a"), db.get_session("b")
    assert (old["ended_at"], old["end_reason"], old["title"]) == (2000.0, "compression", "trip")
    assert (new["started_at"], new["ended_at"], new["title"]) == (2000.0, None, "trip #2")
    inherited = ("source", "model", "user_id", "system_prompt", "model_config")
    assert [new[key] for key in inherited] == [old[key] for key in inherited]
    assert (new["parent_session_id"], new["message_count"]) == ("a", 0)
    assert db.get_compression_tip("a") == "b"
    clock.at(3000)
    db.continue_session("b", "c")
    assert db.get_session_title("c") == "trip #3"
    assert db.resolve_session_by_title("trip") == "c"


def test_continuation_of_an_untitled_session_has_no_title(db):
    db.create_session("a", "cli")
    db.continue_session("a", "b")
    assert db.get_session_title("b") is None


def test_made_up_ids_are_new(db):
    db.create_session("a", "cli")
    first = db.continue_session("a")
    second = db.continue_session("a")
    assert len({first, second, "a"}) == 3
    assert {s["id"] for s in db.search_sessions()} == {first, second, "a"}


def test_compressed_session_can_be_continued_again(db, clock):
    db.create_session("a", "cli")
    db.continue_session("a", "b")
    clock.at(5000)
    db.continue_session("a", "c")
    assert db.get_session("a")["ended_at"] == 1000.0
    assert db.get_compression_tip("a") == "c"


def test_continuation_starts_after_its_parent_even_if_the_clock_went_back(db, clock):
    db.create_session("a", "cli")
    db.end_session("a", "compression")
    clock.at(500)
    db.continue_session("a", "b")
    assert db.get_session("b")["started_at"] == 1000.0
    assert db.get_compression_tip("a") == "b"


def test_unknown_session_cannot_be_continued(db):
    with pytest.raises(UnknownSession, match="nobody"):
        db.continue_session("nobody", "b")
    assert db.session_count() == 0


def test_session_that_ended_otherwise_cannot_be_continued(db):
    db.create_session("a", "cli")
    db.end_session("a", "cli_close")
    with pytest.raises(SessionEnded, match="cli_close"):
        db.continue_session("a", "b")
    assert db.session_count() == 1
    assert db.get_session("a")["end_reason"] == "cli_close"


def test_continuation_with_a_taken_id_changes_nothing(db):
    db.create_session("a", "cli")
    db.create_session("b", "cli")
    before = db.export_all()
    with pytest.raises(ConstraintFailed):
        db.continue_session("a", "b")
    assert db.export_all() == before


# Lone surrogates.


def test_surrogate_in_the_text_of_a_message_is_refused(db):
    db.create_session("s", "cli")
    with pytest.raises(UnicodeEncodeError):
        db.append_message("s", "user", "a\ud800b", tool_name="x\udc00")
    assert db.message_count() == 0
    assert db.get_session("s")["message_count"] == 0
    assert db.append_message("s", "user", "fine") == 1


def test_surrogates_elsewhere_are_replaced(db):
    db.create_session("s\ud800", "cli\ud800", model="m\udfff", system_prompt="\ud800")
    db.set_session_title("s\ud800", "t\ud800t")
    db.set_meta("k", "a\ud800b")
    db.append_message("s\ud800", "user", "text", tool_name="x\udc00", reasoning="\ud800")
    session = db.get_session("s\ufffd")
    assert [session[key] for key in ("source", "model", "system_prompt", "title")] == [
        "cli\ufffd", "m\ufffd", "\ufffd", "t\ufffdt",
    ]  # fmt: skip
    assert db.get_meta("k") == "a\ufffdb"
    (message,) = db.get_messages("s\ufffd")
    assert (message["tool_name"], message["reasoning"]) == ("x\ufffd", "\ufffd")
    assert session["message_count"] == 1


def test_surrogates_in_a_replaced_transcript_are_replaced(db):
    db.create_session("s", "cli")
    db.replace_messages("s", [{"role": "user", "content": "a\ud800b"}, {"content": "\udfff"}])
    assert [m["content"] for m in db.get_messages("s")] == ["a\ufffdb", "\ufffd"]


def test_surrogates_in_structured_content_are_kept(db):
    db.create_session("s", "cli")
    db.append_message("s", "user", ["a\ud800b"], tool_calls=[{"x": "\udfff"}])
    (message,) = db.get_messages("s")
    assert (message["content"], message["tool_calls"]) == (["a\ud800b"], [{"x": "\udfff"}])


def test_pair_of_surrogates_is_the_character_that_it_means(db):
    db.set_meta("k", "\ud83d\ude00\ud800")
    assert db.get_meta("k") == "\U0001f600\ufffd"
