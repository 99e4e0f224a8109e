"""``kill -9`` of the actor under load: nothing acknowledged is lost, nothing is doubled."""

import os
import signal
from contextlib import closing

from support.actors import actor_pid, stop_actor, wait_for
from support.writer_load import writer_load

from hermes_actor import SessionDB

WRITERS = 8
KILLS = 10


def test_acknowledged_writes_survive_exactly_once_and_in_order(path):
    killed = set()

    def next_actor():
        return (pid := actor_pid(path)) not in killed and pid

    with writer_load(path, WRITERS) as load:
        while len(killed) < KILLS:
            if len(killed) % 2:
                # Every other one dies at work. If all died while they came up, writers would
                # give up.
                load.goes_on()
            pid = wait_for(next_actor)
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
        load.pool.wait_for_more()
        load.end()
        stop_actor(path)
        # At the end of the block the file is compared with every acknowledgement.


def test_client_finds_or_starts_the_next_actor_by_itself(path):
    with closing(SessionDB(path, mode="actor")) as db:
        db.create_session("s", "cli")
        first = actor_pid(path)
        for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
            stop_actor(path, number)
            assert db.append_message("s", "user", number.name) > 0
        assert actor_pid(path) not in (None, first)
        assert [m["content"] for m in db.get_messages("s")] == ["SIGKILL", "SIGTERM", "SIGINT"]
