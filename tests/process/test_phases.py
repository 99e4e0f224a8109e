"""G10: the actor answers from the first moment, with what it is doing."""

import json
import os
import subprocess
import sys
import time

from support.actors import stop_actor
from support.files import write_lock
from support.old_files import build
from support.wire import Wire, hello, status

from hermes_actor import SessionDB, exit_codes

WAITING = "waiting for another program that holds the lock"


def start_detached(path):
    """Start an actor as a client does; the end of the pipe on which it tells how far it is."""
    ready, child_end = os.pipe()
    subprocess.run(
        [sys.executable, "-P", "-m", "hermes_actor", "serve", "--detach", "--db", str(path),
         "--ready-fd", str(child_end)],
        pass_fds=(child_end,), check=True, timeout=60,
    )  # fmt: skip
    os.close(child_end)
    return ready


def lines(ready):
    with os.fdopen(ready, "rb") as pipe:
        return [json.loads(line) for line in pipe]


def wait_for_socket(path):
    while not path.with_name(f".{path.name}.actor").joinpath("address").exists():
        time.sleep(0.001)


def test_migration_tells_how_far_it_is(path):
    build(
        path,
        6,
        messages=(
            {"session_id": "s1", "role": "user", "content": f"word {n}", "timestamp": n}
            for n in range(3000)
        ),
    )
    said = lines(start_detached(path))
    *phases, last = said
    assert "pid" in last
    assert phases.pop()["phase"] == "recovering"
    shares = [int(one["phase"].removeprefix("migrating ").removesuffix("%")) for one in phases]
    assert len(shares) > 4
    assert shares == sorted(shares)
    assert shares[-1] == 100


def test_hello_and_status_are_answered_before_the_file_is_open(path):
    build(path, 6)
    with write_lock(path) as foreign:
        # A migration needs the lock that we hold: the file stays unopened for the moment.
        ready = start_detached(path)
        wait_for_socket(path)
        with Wire(path, greet=False) as early:
            early.send(hello(early.client_id))
            first = early.receive()
            assert (first["t"], first["ready"]) == ("welcome", False)
            while (phase := early.status().phase_text) != WAITING:
                assert phase == "opening"
            command = [sys.executable, "-m", "hermes_actor", "status", "--db", str(path)]
            assert subprocess.run(command, stdout=subprocess.DEVNULL).returncode == (
                exit_codes.NOT_SERVING
            )
            foreign.execute("ROLLBACK")
            later = first
            while later is not None and not later.get("ready", True):
                later = early.receive()
            assert later["t"] == "welcome"
            assert later["file_id"]
    lines(ready)
    assert status(path).is_serving


def test_client_that_cannot_wait_learns_the_phase(path):
    build(path, 6)
    with write_lock(path) as foreign:
        ready = start_detached(path)
        wait_for_socket(path)
        try:
            SessionDB(path, timeout=0.2)
        except TimeoutError as error:
            told = str(error)
        foreign.execute("ROLLBACK")
    lines(ready)
    assert WAITING in told or "(opening)" in told
    stop_actor(path)
