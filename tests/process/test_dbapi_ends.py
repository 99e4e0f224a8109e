"""A transaction whose program turns away ends at once, whichever way it went: others go on."""

import gc
import signal
import threading
from contextlib import closing
from pathlib import Path

import pytest
from support.interrupts import every_instruction

import hermes_actor.dbapi
from hermes_actor import client, dbapi

CODE = Path(hermes_actor.dbapi.__file__).parent, Path(client.__file__).with_name("leases.py")


STEP = 7
"""Instructions from one interrupt to the next: prime to most loops, and a seventh of the time."""


def connect(path, **more):
    conn = dbapi.connect(path, isolation_level=None, **more)
    # No limit ends it for us: without an end of its own it would keep others out for the test.
    conn.lease_seconds = 300.0
    return conn


@pytest.fixture
def conn(path):
    with closing(connect(path)) as conn:
        conn.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, x)")
        yield conn


@pytest.fixture
def other(conn, path):
    with closing(connect(path, timeout=20)) as other:
        yield other


def goes_on(other):
    """Return when *other* has written; fails if the write lock stays taken."""
    other.execute("INSERT INTO t (x) VALUES ('other')")


@pytest.fixture
def interrupted():
    """Raise KeyboardInterrupt a moment later, as Ctrl-C does."""

    def raise_(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, raise_)
    yield lambda: signal.setitimer(signal.ITIMER_REAL, 0.3)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_interrupt_while_the_lock_is_waited_for(conn, other, path, interrupted):
    conn.execute("BEGIN IMMEDIATE")
    with closing(connect(path, timeout=60)) as waiting:
        interrupted()
        with pytest.raises(KeyboardInterrupt):
            waiting.execute("BEGIN IMMEDIATE")
        conn.execute("COMMIT")
        goes_on(other)


def test_interrupt_while_the_first_write_waits(conn, other, path, interrupted):
    conn.execute("BEGIN IMMEDIATE")
    with closing(connect(path, timeout=60)) as waiting:
        waiting.execute("BEGIN")
        interrupted()
        with pytest.raises(KeyboardInterrupt):
            waiting.execute("INSERT INTO t (x) VALUES ('interrupted')")
        conn.execute("COMMIT")
        goes_on(other)
    assert other.execute("SELECT DISTINCT x FROM t").fetchall() == [("other",)]


def test_collected_connection(conn, other, path):
    lost = connect(path)
    lost.execute("BEGIN IMMEDIATE")
    lost.execute("INSERT INTO t (x) VALUES ('lost')")
    done = threading.Event()

    def write():
        goes_on(waiting)
        waiting.close()
        done.set()

    waiting = connect(path, timeout=60, check_same_thread=False)
    thread = threading.Thread(target=write)
    thread.start()
    # No call of this module follows: the collection alone has to end it.
    del lost
    gc.collect()
    assert done.wait(30)
    thread.join()
    assert conn.execute("SELECT DISTINCT x FROM t").fetchall() == [("other",)]


def test_collection_in_the_middle_of_a_call(conn, other, path):
    """A collection may strike while this thread holds the locks of the client."""
    lost = connect(path)
    lost.execute("BEGIN IMMEDIATE")
    with conn._client._connection.lock:
        del lost
        gc.collect()
    goes_on(other)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # in __del__
@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_interrupt_at_every_instruction(conn, other, end):
    def transaction():
        conn.execute("BEGIN IMMEDIATE")
        conn.execute("INSERT INTO t (x) VALUES ('mine')")
        conn.execute(end)

    for where, _ in every_instruction(transaction, *CODE, step=STEP):
        conn.rollback()
        goes_on(other)
        mine = conn.execute("SELECT count(*) FROM t WHERE x = 'mine'").fetchone()
        assert end == "COMMIT" or mine == (0,), where
