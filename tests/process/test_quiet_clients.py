"""A client that has been quiet while others wrote writes like any other (G2, G9)."""

from contextlib import closing

import pytest
from support.actor_process import served
from support.actors import contents, own, wait_for
from support.fake_builds import command
from support.files import query
from support.wire import Wire, append, create, hello, request

from hermes_actor import SessionDB

SWEEP_SOON = """
from hermes_actor import limits
limits.RECEIPTS_KEPT_COMMITS, limits.RECEIPTS_SWEEP_EVERY_COMMITS = 10, 5
"""
"""Receipts are swept after so few changes of others that a test can make them."""


@pytest.fixture
def actor(path):
    with served(path, SWEEP_SOON) as actor:
        yield actor


def sweep(path, last):
    """Let others write until every receipt up to commit *last* has been swept."""
    with Wire(path) as busy:
        for seq in range(1, 61):
            busy.do(seq, {"op": "meta.set", "key": "busy", "value": seq})
        wait_for(lambda: own(path, "swept_through") > last)


def quiet_client(path, *, writes):
    """A connected client that has written before, or has never."""
    db = SessionDB(path)
    db._port.statistics()
    if writes:
        db.create_session("quiet", "cli")
    return db


@pytest.mark.parametrize("writes", [False, True])
def test_client_writes_after_its_receipts_were_swept(path, actor, writes):
    with closing(quiet_client(path, writes=writes)) as db:
        sweep(path, own(path, "commit_no"))
        db.set_meta("k", "1")
        with db.pipeline() as pipeline:
            pipeline.set_meta("k", "2")
        assert db.get_meta("k") == "2"


def test_first_change_of_a_client_after_a_sweep_may_be_a_transaction(path, actor):
    with closing(quiet_client(path, writes=False)) as db:
        sweep(path, own(path, "commit_no"))
        db._execute_write(lambda conn: conn.execute("INSERT INTO state_meta VALUES ('k', 'v')"))
        assert db.get_meta("k") == "v"


@pytest.mark.parametrize("writes", [False, True])
def test_client_writes_after_a_restore(path, actor, writes):
    with closing(quiet_client(path, writes=writes)) as db:
        assert command("backup", "--db", path).returncode == 0
        assert command("restore", "--db", path, "--yes").returncode == 0
        db.set_meta("k", "1")
        assert db.get_meta("k") == "1"


@pytest.mark.parametrize("writes", [False, True])
def test_client_writes_after_a_sweep_of_another_actor(path, writes):
    """Its connection has ended unnoticed: what that did not take is first sent on the next one."""
    with served(path, SWEEP_SOON):
        db = quiet_client(path, writes=writes)
    with closing(db), served(path, SWEEP_SOON):
        sweep(path, own(path, "commit_no"))
        db.set_meta("k", "1")
        with db.pipeline() as pipeline:
            pipeline.set_meta("k", "2")
        assert db.get_meta("k") == "2"


def test_request_that_is_sent_again_after_its_receipt_was_swept_is_not_applied_again(path, actor):
    """The numbers of a new connection must not make an old request a new one."""
    first = append("s", "once")
    with Wire(path) as wire:
        wire.do(1, create("s"))
        applied = wire.do(2, first, after=1)
        client = wire.client_id
    sweep(path, applied["commit_no"])
    with Wire(path, client) as wire:
        answer = wire.do(2, first, after=1)
        assert (answer["code"], answer["executed"]) == ("unknown", "unknown")
        # What it sends for the first time knows the commit_no of the Welcome.
        now = wire.welcome["commit_no"]
        assert wire.do(3, append("s", "new"), after=now)["t"] == "ok"
    assert contents(path, "s") == ["once", "new"]


SLOW_OPENING = (
    SWEEP_SOON
    + """
import time
from pathlib import Path
from hermes_actor.engine.writer import Writer
begin = Writer.__init__

def slow(self, place, *arguments, **words):
    while place.db.with_name("wait").exists():
        time.sleep(0.005)
    begin(self, place, *arguments, **words)

Writer.__init__ = slow
"""
)


def test_what_is_sent_before_the_file_is_open_is_judged_by_what_was_swept_alone(path, tmp_path):
    """No Welcome has given that client a commit_no: what it sends may be a repetition."""
    with served(path, SWEEP_SOON):
        with Wire(path) as wire:
            wire.do(1, create("s"))
            applied = wire.do(2, append("s", "once"), after=1)
            client = wire.client_id
        sweep(path, applied["commit_no"])
    (tmp_path / "wait").touch()
    with served(path, SLOW_OPENING, serves=False):
        wire = wait_for(lambda: hello_to(path, client))
        with wire:
            wire.send(request(2, append("s", "once"), after=1))
            wire.send({"t": "status", "ask": -1})
            wire.answer(-1)
            (tmp_path / "wait").unlink()
            answer = wire.answer(2)
            assert (answer["code"], answer["executed"]) == ("unknown", "unknown")
    assert query(path, "SELECT COUNT(*) FROM messages") == [(1,)]


def hello_to(path, client):
    try:
        wire = Wire(path, client, greet=False)
    except OSError:
        return None
    wire.send(hello(client))
    return wire
