"""R2: a sync fails. Nothing of that batch is acknowledged; the next owner opens with care."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.actor_process import served
from support.actors import contents, own, wait_for
from support.files import raw, write_lock
from support.fsync_shim import prelude, sign_for
from support.processes import run_python
from support.wire import Wire, admitted, append, create, request, status

from hermes_actor import SessionDB, exit_codes
from hermes_actor.errors import Busy, DeadlineExceeded
from hermes_actor.paths import resolve_paths
from hermes_protocol.status import Phase

ROWS = 12
OURS = [f"walrus {n}" for n in range(ROWS)]
BATCH = [f"batch {n}" for n in range(5)]


@pytest.fixture
def paths(path):
    return resolve_paths(path)


@pytest.fixture
def client(path):
    opened = []

    def open_(**options):
        opened.append(SessionDB(path, mode="actor", **options))
        return opened[-1]

    yield open_
    for db in opened:
        db.close()


def fill(wire):
    assert wire.do(1, create("s"))["t"] == "ok"
    for seq, text in enumerate(OURS, 2):
        assert wire.do(seq, append("s", text))["t"] == "ok"


def send_batch(wire):
    """What the actor answers to a batch during which a sync fails."""
    wire.send(*(request(seq, append("s", text)) for seq, text in enumerate(BATCH, ROWS + 2)))
    return wire.until_end()


def test_nothing_of_the_batch_is_acknowledged(path, paths, client):
    with served(path, prelude(path)) as actor, Wire(path) as wire:
        fill(wire)
        epoch = own(path, "epoch")
        before = paths.db.read_bytes()
        sign_for(path).touch()
        assert [answer for answer in send_batch(wire) if answer["t"] == "ok"] == []
        assert actor.exit_code() == exit_codes.FSYNC_FAILED
        assert paths.fsync_failed.exists()
        # It has neither folded the WAL back nor closed anything.
        assert paths.db.read_bytes() == before
        assert paths.wal.stat().st_size > 0
        assert not path.with_name("closed").exists()
        assert "disk I/O error" in actor.last_words()

    # The next start goes through the barrier, takes the mark away and serves.
    db = client()
    db.append_message("s", "user", "after")
    assert not paths.fsync_failed.exists()
    assert own(path, "epoch") == epoch + 1
    there = contents(path, "s")
    # It is unknown whether the batch was kept, but it is one transaction.
    assert there in ([*OURS, "after"], [*OURS, *BATCH, "after"])
    assert db.get_session("s")["message_count"] == len(there)


def test_client_sends_it_again_and_it_is_applied_once(path, paths, client):
    with served(path, prelude(path)) as actor:
        db = client()
        db.create_session("s", "cli")
        for text in OURS:
            db.append_message("s", "user", text)
        sign_for(path).touch()
        ids = [db.append_message("s", "user", text) for text in BATCH]
        assert actor.exit_code() == exit_codes.FSYNC_FAILED
    assert [m["id"] for m in db.get_messages("s")][ROWS:] == ids
    assert contents(path, "s") == [*OURS, *BATCH]
    assert not paths.fsync_failed.exists()


@pytest.mark.parametrize(
    ("moment", "once"),
    [
        ("index.slice", ""),
        ("checkpoint.before", ""),
        ("checkpoint.before", "PRAGMA wal_checkpoint"),
    ],
    ids=["index", "checkpoint", "one checkpoint"],
)
def test_sync_that_fails_in_upkeep(path, paths, client, moment, once):
    """No client waits for it, and the same holds: stop, and let the next one begin with care."""
    with served(path, prelude(path, moment, once)) as actor, Wire(path) as wire:
        sign_for(path).touch()
        wire.send(request(1, create("s")))
        wire.send(*(request(seq, append("s", f"walrus {seq}")) for seq in range(2, 60)))
        assert actor.exit_code() == exit_codes.FSYNC_FAILED
        acknowledged = {answer["seq"] for answer in wire.until_end() if answer["t"] == "ok"}
        assert paths.fsync_failed.exists()
    db = client()
    db.create_session("s", "cli")
    db.append_message("s", "user", "after")
    assert not paths.fsync_failed.exists()
    there = contents(path, "s")
    assert {f"walrus {seq}" for seq in acknowledged if seq > 1} <= set(there)
    assert len(there) == len(set(there))
    assert len(db.search_messages("walrus", limit=100)) == len(there) - 1


def test_sync_that_fails_in_the_barrier(path, paths, client):
    """The next owner's care fails too: it stops in the same way, and the one after it serves."""
    with served(path), Wire(path) as wire:
        fill(wire)
    epoch = own(path, "epoch")
    sign_for(path).touch()
    with served(path, prelude(path, "barrier.after_checkpoint"), serves=False) as actor:
        assert actor.exit_code() == exit_codes.FSYNC_FAILED
        assert paths.fsync_failed.exists()
    db = client()
    db.append_message("s", "user", "after")
    assert not paths.fsync_failed.exists()
    assert own(path, "epoch") > epoch
    assert contents(path, "s") == [*OURS, "after"]


def test_embedded_writer_tells_its_callers(path, paths):
    code = """
    import os, sys
    from pathlib import Path
    from support.subprocess_env import outcome, tell
    from support.fsync_shim import fail_on_order, sign_for
    path = Path(sys.argv[1])
    fail_on_order(sign_for(path), "commit.before")
    from hermes_actor import SessionDB
    db = SessionDB(path, mode="embedded")
    db.create_session("s", "cli")
    db.append_message("s", "user", "walrus")
    sign_for(path).touch()
    told = [outcome(lambda: db.append_message("s", "user", "void"))["classes"] for _ in range(2)]
    tell([told, [m["content"] for m in db.get_messages("s")]])
    sys.stdout.flush()
    os._exit(0)
    """
    told, read = run_python(code, path)
    kinds = [classes[0].rpartition(".")[2] for classes in told]
    assert kinds == ["OutcomeUnknown", "ActorBroken"]
    assert read[0] == "walrus"
    assert paths.fsync_failed.exists()
    db = SessionDB(path, mode="embedded")
    db.append_message("s", "user", "after")
    db.close()
    assert not paths.fsync_failed.exists()
    assert [text for text in contents(path, "s") if text != "void"] == ["walrus", "after"]


# A reader that keeps the WAL from being checkpointed.

SOON = "from hermes_actor.engine.startup import recovery\nrecovery.BARRIER_SECONDS = 0.2\n"


@pytest.fixture
def pinned(path):
    """A file of a killed owner, and a reader whose snapshot keeps its WAL."""
    with served(path) as actor, Wire(path) as wire:
        fill(wire)
        with raw(path) as reader:
            reader.execute("BEGIN")
            assert reader.execute("SELECT COUNT(*) FROM messages").fetchone() == (ROWS,)
            assert wire.do(ROWS + 2, append("s", "last"))["t"] == "ok"
            os.kill(actor.pid, signal.SIGKILL)
            actor.exit_code()
            yield reader


def test_owner_after_a_failed_sync_waits_for_the_reader(path, paths, client, pinned):
    paths.fsync_failed.touch()
    with served(path, SOON), ThreadPoolExecutor() as threads:
        db = client()
        waiting = threads.submit(db.append_message, "s", "user", "waited")
        wait_for(lambda: status(path).phase is Phase.RECOVERING)
        # Longer than one try to fold the WAL back takes.
        time.sleep(1.0)
        assert not waiting.done()
        assert status(path).phase is Phase.RECOVERING
        assert paths.fsync_failed.exists()
        # Reads go on.
        assert [m["content"] for m in db.get_messages("s")] == [*OURS, "last"]
        pinned.rollback()
        assert waiting.result() == ROWS + 2
        assert status(path).is_serving
        assert not paths.fsync_failed.exists()
    assert contents(path, "s") == [*OURS, "last", "waited"]


def test_owner_after_a_failed_sync_serves_by_itself_when_the_reader_leaves(path, paths, pinned):
    """No client has to write for that."""
    paths.fsync_failed.touch()
    with served(path, SOON):
        assert status(path).phase is Phase.RECOVERING
        pinned.rollback()
        wait_for(lambda: status(path).is_serving)
        assert not paths.fsync_failed.exists()


def test_impatient_write_meanwhile_is_not_executed(path, paths, client, pinned):
    paths.fsync_failed.touch()
    with served(path, SOON):
        impatient = client(timeout=0.5)
        with pytest.raises((Busy, DeadlineExceeded)) as caught:
            impatient.append_message("s", "user", "too late")
        assert caught.value.executed == "no"
        pinned.rollback()
        wait_for(lambda: status(path).is_serving)
    assert contents(path, "s") == [*OURS, "last"]


def test_drain_after_a_failed_sync_does_not_wait_for_the_reader(path, paths, pinned):
    """Nor for as long as the caller of a change would wait, which is admitted and not taken."""
    paths.fsync_failed.touch()
    with served(path, SOON) as actor, Wire(path) as wire:
        wire.send(request(1, append("s", "too late"), timeout=3600.0))
        wait_for(lambda: admitted(path) == 1)
        os.kill(actor.pid, signal.SIGTERM)
        assert actor.exit_code() == 0
        told = {message["t"]: message for message in wire.until_end()}
        assert told["failed"].get("executed", "no") == "no"
        assert paths.fsync_failed.exists()
    assert contents(path, "s") == [*OURS, "last"]


def test_drain_ends_the_wait_of_the_wal_rewrite_for_a_foreign_lock(path, paths):
    """Nothing is rewritten and nothing applied: the mark stays for the next owner."""
    with served(path) as actor, Wire(path) as wire:
        fill(wire)
        os.kill(actor.pid, signal.SIGKILL)
        actor.exit_code()
    paths.fsync_failed.touch()
    with write_lock(path):
        wal = paths.wal.stat()
        with served(path, SOON) as actor, Wire(path) as wire:
            wire.send(request(1, append("s", "too late"), timeout=3600.0))
            wait_for(lambda: admitted(path) == 1)
            assert status(path).phase is Phase.RECOVERING
            os.kill(actor.pid, signal.SIGTERM)
            assert actor.exit_code() == 0
            answers = {message["t"]: message for message in wire.until_end()}
            assert answers["failed"].get("executed", "no") == "no"
        assert (paths.wal.stat().st_mtime_ns, paths.wal.stat().st_size) == (
            wal.st_mtime_ns,
            wal.st_size,
        )
        assert paths.fsync_failed.exists()
    with served(path):
        wait_for(lambda: status(path).is_serving)
        assert not paths.fsync_failed.exists()
    assert contents(path, "s") == OURS


def test_owner_after_a_mere_kill_serves_at_once_and_names_the_reader(path, paths, client, pinned):
    with served(path, SOON):
        db = client()
        db.append_message("s", "user", "at once")
        assert status(path).is_serving
        named = f"WAL pinned by pid {os.getpid()}"
        wait_for(lambda: named in status(path).degraded)
        pinned.rollback()
    assert contents(path, "s") == [*OURS, "last", "at once"]
