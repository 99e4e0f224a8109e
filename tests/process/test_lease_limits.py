"""Limits of interactive transactions: each kind of file has its own, and errors name them."""

import os
import subprocess
import sys
import threading
import time
from contextlib import closing

import pytest
from support.actor_process import served
from support.actors import wait_for
from support.files import query
from support.wire import Wire, status

from hermes_actor.client.actor_client import acquire
from hermes_actor.embedded import share
from hermes_actor.errors import DeadlineExceeded, LeaseLost, NotAllowed
from hermes_actor.paths import resolve_paths
from hermes_protocol.operations import SqlRun, SqlStep

INSERT = "INSERT INTO t VALUES (1)"
ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c"

SHORT = """
from hermes_actor import limits
limits.PLAIN_LEASE_TOTAL_SECONDS = limits.LEASE_TOTAL_SECONDS = {total}
limits.PLAIN_LEASE_IDLE_SECONDS = limits.LEASE_IDLE_SECONDS = {idle}
"""


def run(*statements):
    return SqlRun(steps=[SqlStep(sql=one) for one in statements])


def shortened(path, total=60.0, idle=60.0):
    return served(path, SHORT.format(total=total, idle=idle), kind="plain")


@pytest.fixture
def connect(path):
    opened = []

    def connect(kind="plain"):
        opened.append(acquire(resolve_paths(path), 30.0, kind))
        opened[-1].run(run("CREATE TABLE IF NOT EXISTS t (a)"), 30.0)
        return opened[-1]

    yield connect
    for client in opened:
        client.release()


def use_for_ever(lease):
    while True:
        lease.run(run(INSERT))
        time.sleep(0.05)


def free(client):
    """The writer serves others again."""
    assert client.run(run("INSERT INTO t VALUES (2)"), 30.0).error is None


@pytest.mark.parametrize(("kind", "expected"), [("plain", (5.0, 1.0)), ("sessions", (1.0, 0.2))])
def test_limits_are_announced(path, connect, kind, expected):
    connect(kind)
    with closing(Wire(path)) as wire:
        limits = wire.welcome["limits"]
    assert (limits.get("lease_seconds", 1.0), limits.get("lease_idle_seconds", 0.2)) == expected


def test_a_pause_that_is_too_long_is_named_with_the_statement_before_it(path, connect):
    with shortened(path, idle=0.2):
        client = connect()
        lease = client.open_lease({}, 30.0, first=run(INSERT))
        free(client)
        with pytest.raises(DeadlineExceeded, match=r"after 1 statements, the last: INSERT.*pause"):
            lease.run(run(INSERT))
        with pytest.raises(DeadlineExceeded, match=r"paused for 0\.2 s") as raised:
            lease.commit()
        assert not isinstance(raised.value, LeaseLost)
        assert raised.value.executed == "no"
    assert query(path, "SELECT a FROM t") == [(2,)]


def test_a_transaction_that_takes_too_long_in_all_is_named(path, connect):
    with shortened(path, total=0.5):
        client = connect()
        lease = client.open_lease({}, 30.0, first=run(INSERT))
        with pytest.raises(DeadlineExceeded, match=r"0\.5 s in all") as raised:
            use_for_ever(lease)
        assert not isinstance(raised.value, LeaseLost)
        free(client)
    assert query(path, "SELECT a FROM t") == [(2,)]


def test_an_endless_statement_is_interrupted_and_quoted(path, connect):
    with shortened(path, total=0.5):
        client = connect()
        lease = client.open_lease({}, 30.0, first=run(INSERT))
        with pytest.raises(DeadlineExceeded, match=r"interrupted after .*WITH RECURSIVE"):
            lease.run(run(ENDLESS))
        free(client)
        with pytest.raises(DeadlineExceeded, match=r"interrupted after .*WITH RECURSIVE"):
            client.open_lease({}, 30.0, first=run(INSERT, ENDLESS))
        free(client)
    assert query(path, "SELECT a FROM t") == [(2,), (2,)]


def test_others_wait_for_a_transaction_on_a_plain_file(path, connect):
    """Programs that wait for locks expect to; messages of other processes do not."""
    client = connect()
    lease = client.open_lease({}, 30.0, first=run(INSERT))
    other = threading.Thread(target=free, args=(client,))
    other.start()
    until = time.monotonic() + 0.6
    while time.monotonic() < until:
        assert lease.run(run("SELECT 1")).error is None
    lease.commit()
    other.join()
    assert query(path, "SELECT a FROM t") == [(1,), (2,)]


def test_a_long_transaction_outlives_the_limits_of_others(path, connect):
    with shortened(path, total=0.2, idle=0.1):
        client = connect()
        lease = client.open_lease({}, 30.0, first=run(INSERT), seconds=60.0)
        time.sleep(0.5)
        assert lease.run(run(INSERT)).error is None
        shown = status(path).lease
        assert (shown.pid, shown.statements, shown.long) == (os.getpid(), 2, True)
        lease.commit()
        wait_for(lambda: status(path).lease is None)


def test_a_long_transaction_is_not_for_files_where_messages_wait(connect):
    with pytest.raises(NotAllowed):
        connect("sessions").open_lease({}, 30.0, seconds=60.0)


HOLDER = """
import sys, time
from hermes_actor.client.actor_client import acquire
from hermes_actor.paths import resolve_paths
from hermes_protocol.operations import SqlRun, SqlStep
from pathlib import Path
client = acquire(resolve_paths(Path(sys.argv[1])), 30.0, "plain")
run = SqlRun(steps=[SqlStep(sql="INSERT INTO t VALUES (1)")])
lease = client.open_lease({}, 30.0, first=run, seconds=600.0)
print("held", flush=True)
time.sleep(600)
"""


def test_a_holder_is_named_and_a_killed_one_holds_nothing(path, connect):
    client = connect()
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout.readline() == "held\n"
            assert status(path).lease.pid == holder.pid
            shown = subprocess.run(
                [sys.executable, "-m", "hermes_actor", "status", "--db", str(path)],
                capture_output=True, text=True, check=True,
            ).stdout  # fmt: skip
            assert f"held by pid {holder.pid}" in shown
        finally:
            holder.kill()
    free(client)
    assert query(path, "SELECT a FROM t") == [(2,)]


def test_a_drain_tells_the_holder_that_the_transaction_is_lost(path, connect):
    with shortened(path) as actor:
        client = connect()
        lease = client.open_lease({}, 30.0, first=run(INSERT), seconds=600.0)
        os.kill(actor.pid, 15)
        with pytest.raises(LeaseLost):
            use_for_ever(lease)
    assert query(path, "SELECT a FROM t") == []


def test_limits_hold_in_embedded_mode(path, monkeypatch):
    monkeypatch.setattr("hermes_actor.limits.PLAIN_LEASE_IDLE_SECONDS", 0.1)
    writer = share(resolve_paths(path), "plain")
    try:
        writer.run(run("CREATE TABLE t (a)"), 30.0)
        lease = writer.open_lease({}, 30.0, first=run(INSERT))
        free(writer)
        with pytest.raises(DeadlineExceeded, match=r"paused for 0\.1 s"):
            lease.run(run(INSERT))
    finally:
        writer.release()
