"""Drain: an actor that is signalled finishes what it has admitted, and leaves all in order."""

import fcntl
import json
import os
import random
import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import pytest
from support.actor_process import served
from support.actors import (
    actor_pid,
    actors_of,
    contents,
    end_actors,
    folder_of,
    own,
    socket_of,
    wait_for,
    wait_gone,
)
from support.fake_builds import around, command, serving, touch, wait_until
from support.files import query, write_lock
from support.ownership_log import check_owners
from support.signals import ENDS
from support.wire import Wire, append, create, request, select
from support.writer_load import writer_load

from hermes_actor import SessionDB
from hermes_actor.sqlite import connect_reader

TRIES = 100 if os.environ.get("HERMES_ACTOR_LONG") else 20
CLIENTS = 64
QUEUED = 1000

WITHOUT_IDLE_WORK = around(
    "hermes_actor.engine.maintenance:IdleMaintenance.run_slice", before="return 60.0"
)


def tell_to_end(path, actor, how):
    """Drain the actor of *path*; it has ended when this returns."""
    if how == "drain":
        done = command("drain", "--db", path)
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"stopped the actor (pid {actor.pid})\n"
    else:
        os.kill(actor.pid, how)
    assert actor.exit_code() == 0


def wal_bytes(path):
    return path.with_name(f"{path.name}-wal").stat().st_size


def lock_is_free(path):
    with (folder_of(path) / "owner.lock").open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def check_in_order(path):
    """Nothing is left of an actor but its file, with everything in it."""
    assert actors_of(path) == set()
    assert not socket_of(path).exists()
    assert wal_bytes(path) == 0
    assert lock_is_free(path)
    assert query(path, "PRAGMA integrity_check") == [("ok",)]


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, "drain"], ids=str)
def test_drain_leaves_the_store_in_order(path, how):
    with serving(path, prelude=WITHOUT_IDLE_WORK) as actor:
        with closing(SessionDB(path)) as db:
            db.create_session("s", "cli")
            for number in range(100):
                db.append_message("s", "user", f"walrus {number}")
            assert wal_bytes(path) > 0
            assert not lock_is_free(path)
            tell_to_end(path, actor, how)
        check_in_order(path)
        # What is not indexed yet need not be: the next one knows where to go on.
        assert own(path, "watermark") == 0
    with closing(SessionDB(path)) as db:
        assert len(db.search_messages("walrus", limit=200)) == 100
    assert own(path, "epoch") == 2


def test_drain_does_not_wait_for_those_who_read(path):
    with serving(path) as actor, closing(SessionDB(path)) as db:
        db.create_session("s", "cli")
        with closing(connect_reader(path)) as reader:
            reader.execute("BEGIN")
            assert reader.execute("SELECT COUNT(*) FROM sessions").fetchone() == (1,)
            db.create_session("t", "cli")
            tell_to_end(path, actor, signal.SIGTERM)
            assert not socket_of(path).exists()
            assert lock_is_free(path)
            # The WAL stays until the reader leaves, and everything is in it.
            assert wal_bytes(path) > 0
            assert reader.execute("SELECT COUNT(*) FROM sessions").fetchone() == (1,)
        assert sorted(s["id"] for s in db.list_sessions_rich()) == ["s", "t"]


def test_clients_go_on_by_themselves(path):
    with closing(SessionDB(path)) as db:
        db.set_meta("k", "v")
    with writer_load(path, 4) as running:
        for how in ("drain", signal.SIGTERM, signal.SIGINT):
            running.goes_on()
            pid = actor_pid(path)
            if how == "drain":
                told = json.loads(command("drain", "--db", path, "--json").stdout)
                assert told == {"ended": True, "pid": pid}
            else:
                os.kill(pid, how)
            wait_gone(pid)
        running.goes_on()
    assert len(check_owners(path)) == 4


def test_drain_without_an_actor_says_so(path):
    done = command("drain", "--db", path)
    assert done.returncode == 3
    assert "not running" in done.stdout
    assert not path.exists()


def test_open_transaction_is_ended_at_once(path):
    """No client waits for the one that holds it, for however long that might be."""
    prelude = """
from hermes_actor import limits
limits.LEASE_TOTAL_SECONDS = limits.LEASE_IDLE_SECONDS = 600
"""
    with serving(path, prelude=prelude) as actor, Wire(path) as wire:
        assert wire.do(1, create("s"))["t"] == "ok"
        wire.send({"t": "lease.open", "ask": -2, "lease": 2})
        assert wire.answer(-2)["t"] == "done"
        insert = "INSERT INTO state_meta VALUES ('k', 'v')"
        wire.send({"t": "lease.run", "ask": -3, "lease": 2, "statement": select(insert)})
        assert wire.answer(-3)["t"] == "done"
        tell_to_end(path, actor, signal.SIGTERM)
        assert wire.until_end()[-1]["t"] == "goaway"
    check_in_order(path)
    assert query(path, "SELECT COUNT(*) FROM state_meta WHERE key = 'k'") == [(0,)]


def test_client_that_does_not_read_its_answers_is_not_waited_for(path):
    prelude = "from hermes_actor import limits\nlimits.WRITE_STALL_SECONDS = 600\n"
    with serving(path, "--drain-seconds", "0.5", prelude=prelude) as actor, Wire(path) as wire:
        assert wire.do(1, create("s"))["t"] == "ok"
        large = select("SELECT hex(zeroblob(200000))")
        wire.send(request(2, append("s", "x")), *[request(n, large) for n in range(3, 9)])
        with Wire(path) as other:
            wait_for(lambda: sum(c.requests for c in other.status().connections) == 8)
            tell_to_end(path, actor, signal.SIGTERM)
    check_in_order(path)
    assert contents(path, "s") == ["x"]


def test_second_signal_waits_no_longer_for_those_who_do_not_read(path):
    prelude = "from hermes_actor import limits\nlimits.WRITE_STALL_SECONDS = 600\n"
    with serving(path, "--drain-seconds", "600", prelude=prelude) as actor, Wire(path) as wire:
        assert wire.do(1, create("s"))["t"] == "ok"
        large = select("SELECT hex(zeroblob(200000))")
        wire.send(request(2, append("s", "x")), *[request(n, large) for n in range(3, 9)])
        with Wire(path) as other:
            wait_for(lambda: sum(c.requests for c in other.status().connections) == 8)
            os.kill(actor.pid, signal.SIGTERM)
            assert other.until_end()[-1]["t"] == "goaway"
        assert actor.lives
        tell_to_end(path, actor, signal.SIGINT)
    check_in_order(path)
    assert contents(path, "s") == ["x"]


def drain_twice(path, chance):
    """Two signals, some time apart, while changes are on their way."""
    with ExitStack() as stack:
        actor = stack.enter_context(serving(path))
        wires = [stack.enter_context(Wire(path)) for _ in range(4)]
        for number, wire in enumerate(wires):
            assert wire.do(1, create(f"s{number}"))["t"] == "ok"
        for number, wire in enumerate(wires):
            wire.send(*[request(n, append(f"s{number}", str(n))) for n in range(2, 62)])
        os.kill(actor.pid, chance.choice([signal.SIGTERM, signal.SIGINT]))
        time.sleep(chance.uniform(0.0, 0.1))
        if actor.lives:
            os.kill(actor.pid, chance.choice([signal.SIGTERM, signal.SIGINT]))
        assert actor.exit_code() == 0
        for number, wire in enumerate(wires):
            told = wire.until_end()
            (farewell,) = [m for m in told if m["t"] == "goaway"]
            # What was admitted is there even if the hurry has cost its answer.
            kept = contents(path, f"s{number}")
            assert kept == [str(n) for n in range(2, farewell["last_seq"] + 1)]
            acknowledged = [str(m["seq"]) for m in told if m["t"] == "ok"]
            assert acknowledged == kept[: len(acknowledged)]
    check_in_order(path)
    assert check_owners(path) == [actor.pid]


def test_second_signal_skips_neither_commit_nor_close(tmp_path):
    def one(seed):
        path = tmp_path / str(seed) / "state.db"
        path.parent.mkdir()
        try:
            drain_twice(path, random.Random(seed))
        finally:
            end_actors(path)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(one, range(TRIES)))


@pytest.mark.parametrize("signals", [1, 2])
def test_many_clients_with_many_changes_waiting(path, signals):
    """A thousand changes of 64 clients wait behind a foreign lock when the signal comes.

    A second one costs them their answers, not what they have sent.
    """
    with serving(path) as actor, ExitStack() as stack:
        wires = [stack.enter_context(Wire(path)) for _ in range(CLIENTS)]
        assert wires[0].do(1, create("s"))["t"] == "ok"
        sent = Counter(number % CLIENTS for number in range(QUEUED))
        with write_lock(path):
            for number, wire in enumerate(wires):
                wire.send(
                    *[request(2 + n, append("s", f"{number} {n}")) for n in range(sent[number])]
                )
            with Wire(path) as other:
                wait_for(lambda: sum(c.requests for c in other.status().connections) == QUEUED + 1)
                os.kill(actor.pid, signal.SIGTERM)
                assert other.until_end()[-1]["t"] == "goaway"
            if signals == 2:
                os.kill(actor.pid, signal.SIGTERM)
                assert {m["t"] for wire in wires for m in wire.until_end()} == {"goaway"}
        answers = [wire.until_end() for wire in wires]
        assert actor.exit_code() == 0
    check_in_order(path)
    if signals == 1:
        for number, told in enumerate(answers):
            assert [m["seq"] for m in told if m["t"] == "ok"] == list(range(2, 2 + sent[number]))
    kept = contents(path, "s")
    assert len(kept) == QUEUED
    for number in range(CLIENTS):
        mine = [text for text in kept if text.split()[0] == str(number)]
        assert mine == [f"{number} {n}" for n in range(sent[number])]


def test_drain_finishes_the_batch_that_it_finds(path, tmp_path):
    """The signal comes while a commit is under way; its answer goes out before GoAway does."""
    here, go = tmp_path / "here", tmp_path / "go"
    prelude = around(
        "hermes_actor.engine.connection:WriteConnection.commit",
        before=f"if len(args) > 1:\n    open({str(here)!r}, 'a').close()\n    {wait_until(go)}",
    )
    with serving(path, prelude=prelude) as actor, Wire(path) as wire, Wire(path) as other:
        wire.send(request(1, create("s")))
        wait_for(here.exists)
        os.kill(actor.pid, signal.SIGTERM)
        assert other.until_end()[-1]["t"] == "goaway"
        assert actor.lives
        go.touch()
        assert {m["t"] for m in wire.until_end()} == {"ok", "goaway"}
        assert actor.exit_code() == 0
    check_in_order(path)
    assert query(path, "SELECT id FROM sessions") == [("s",)]


def test_under_nohup_a_closed_terminal_is_no_reason_to_end(path):
    prelude = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
    with serving(path, prelude=prelude) as actor:
        os.kill(actor.pid, signal.SIGHUP)
        db = SessionDB(path)
        db.create_session("s", "cli")
        db.close()
        assert actor_pid(path) == actor.pid
        tell_to_end(path, actor, signal.SIGTERM)


@pytest.mark.parametrize("step", ["remove_leftovers", "build_id", "bind"])
@pytest.mark.parametrize("number", ENDS)
def test_signal_that_comes_while_an_actor_starts_ends_it(path, step, number):
    """Not lost between the time when it ends a process that has begun nothing and the loop."""
    prelude = around(
        f"hermes_actor.actor.server:{step}", before=f"os.kill(os.getpid(), {int(number)})"
    )
    with served(path, prelude, serves=False) as actor:
        assert actor.exit_code() == 0
    check_in_order(path)


@pytest.mark.parametrize("number", ENDS)
def test_actor_hears_signals_that_its_starter_has_blocked(path, number):
    """A program that waits for signals in one thread blocks them in the one that starts it."""
    prelude = f"import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [{int(number)}])\n"
    with serving(path, prelude=prelude) as actor:
        os.kill(actor.pid, number)
        assert actor.exit_code() == 0
    check_in_order(path)


def test_drain_does_not_wait_for_a_vacuum_behind_a_foreign_lock(path, tmp_path):
    """The lock is taken when the vacuum has looked at the epoch, and before it begins."""
    here, go = tmp_path / "here", tmp_path / "go"
    prelude = around(
        "hermes_actor.engine.admin_tasks:_vacuum",
        before=f"{touch(here)}\n{wait_until(go)}",
    )
    with serving(path, prelude=prelude) as actor, Wire(path) as wire:
        wire.send(request(1, {"op": "upkeep.vacuum"}, patience=3600.0))
        wait_for(here.exists)
        with write_lock(path):
            go.touch()
            os.kill(actor.pid, signal.SIGTERM)
            assert actor.exit_code() == 0
        told = {message["t"]: message for message in wire.until_end()}
        assert told.keys() == {"failed", "goaway"}
        assert (told["failed"]["code"], told["failed"].get("executed", "no")) == ("busy", "no")
    assert lock_is_free(path)
    assert query(path, "PRAGMA integrity_check") == [("ok",)]
