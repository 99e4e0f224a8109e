"""Agent stores under kills and hand-offs: re-keying, claims, events; and no plain secret."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter

import pytest
from support.actor_process import served
from support.actors import actor_pid, end_actors, folder_of, stop_actor, wait_for, wait_gone
from support.agent_stores import KEY, OTHER_KEY, open_agents, session
from support.fake_builds import around, touch

from hermes_actor.agents.vault import Vault
from hermes_actor.client.control import ask_status, request_handoff
from hermes_actor.errors import BadValue, Conflict, HermesActorError, NotFound
from hermes_actor.paths import resolve_paths

POINTS = ("batch.begin", "commit.before", "commit.after", "reply.before", "reply.after")
SECRETS = {f"NAME_{number}": f"value {number}" for number in range(40)}


@pytest.fixture
def path(tmp_path, long_lived):
    path = tmp_path / "agents.db"
    yield path
    end_actors(path)


@pytest.fixture
def filled(path):
    """A store with secrets, a channel and a credential, and no actor."""
    with open_agents("actor", path) as store:
        one = store.of("a")
        one.secrets.replace_all(SECRETS)
        one.channels.create_external("shop")
        one.credentials.set("whatsapp", "default", "creds", "c")
    stop_actor(path)
    return path


def opened_by(path, key):
    """Everything that *key* opens."""
    with open_agents("actor", path, vault=Vault(key)) as store:
        one = store.of("a")
        return (len(one.secrets.values()), len(store.channels.load_active()),
                len(one.credentials.list("whatsapp", "default")))  # fmt: skip


NOTHING, ALL = (0, 0, 0), (len(SECRETS), 1, 1)


@pytest.mark.parametrize("point", POINTS)
def test_rekey_goes_through_although_its_actor_is_killed(filled, point):
    prelude = f"import os\nos.environ['HERMES_ACTOR_FAILPOINT'] = '{point}'\n"
    with served(filled, prelude, kind="agents") as actor, open_agents("actor", filled) as store:
        assert store.secrets.rekey(Vault(OTHER_KEY)) == sum(ALL)
        assert actor.exit_code() == -signal.SIGKILL
    assert (opened_by(filled, KEY), opened_by(filled, OTHER_KEY)) == (NOTHING, ALL)


REKEY = """
import sys
from pathlib import Path
from hermes_actor import AgentStore
from hermes_actor.agents.vault import Vault

path, old, new = sys.argv[1:]
with AgentStore.global_(Path(path), vault=Vault(old), timeout=60) as store:
    store.secrets.rekey(Vault(new))
"""
COMMIT = "hermes_actor.engine.connection:WriteConnection.commit"


@pytest.mark.parametrize("committed", [False, True], ids=["before", "after"])
def test_rekey_that_is_killed_with_its_actor_is_whole_or_not_there(filled, tmp_path, committed):
    """The actor stands still around the commit; then both are killed."""
    there = tmp_path / "there"
    stand = f"{touch(there)}; time.sleep(600)"
    # Receipts of a commit are written by the batch; a commit without a number is upkeep.
    # The first has the others wait, the second replaces the key.
    code = (
        "if args[1:2] != (None,) and len(args) > 1:\n"
        "    call.count = getattr(call, 'count', 0) + 1\n"
        f"    if call.count == 2: {stand}"
    )
    prelude = around(COMMIT, **{"after" if committed else "before": code})
    with served(filled, prelude, kind="agents") as actor:
        words = [sys.executable, "-c", REKEY, str(filled), KEY, OTHER_KEY]
        with subprocess.Popen(words) as client:
            wait_for(there.exists)
            client.kill()
        os.kill(actor.pid, signal.SIGKILL)
        wait_gone(actor.pid)
    keys = (opened_by(filled, KEY), opened_by(filled, OTHER_KEY))
    assert keys == ((NOTHING, ALL) if committed else (ALL, NOTHING))


WORKER = """
import os, sys
from pathlib import Path
from hermes_actor import AgentStore, Scheduler

path, log, stand = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "stand"
log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def run(schedule, run):
    os.write(log, f"{schedule['schedule_id']} {run['id']}\\n".encode())
    if stand:
        print("running", flush=True)
        sys.stdin.readline()


with AgentStore.global_(path, timeout=60) as store:
    Scheduler(store, run, lease_seconds=float(sys.argv[4])).tick()
"""


def worker(path, log, *, stand=False, lease=600.0):
    words = [sys.executable, "-c", WORKER, str(path), str(log), "stand" if stand else "go"]
    return subprocess.Popen(
        [*words, str(lease)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def lines_of(log):
    return [line.split() for line in log.read_text().splitlines()]


def test_claim_of_a_killed_worker_expires_and_is_claimed_once_more(path, tmp_path):
    log = tmp_path / "runs.log"
    with open_agents("actor", path) as store:
        one = store.of("a")
        one.schedules.create("once", "p", run_at=one.now(), schedule_id="s")
        with worker(path, log, stand=True, lease=3.0) as dead:
            assert dead.stdout.readline() == "running\n"
            dead.kill()
        lost = one.schedules.runs("s")[0]
        # Its claim holds until it expires, and no longer.
        assert one.schedules.claim("early", now=lost["started_at"]) == []
        # Counted from its last renewal, if the machine let it come so far.
        (held,) = store.rows("schedules")
        wait_for(lambda: one.now() > held["claim_expires_at"])
        others = [worker(path, log) for _ in range(3)]
        assert [other.wait(60) for other in others] == [0] * 3
        for other in others:
            other.stdin.close()
            other.stdout.close()
        second, first = one.schedules.runs("s")
        assert (first["id"], first["status"], first["error"]) == (
            lost["id"], "failed", "lease expired",
        )  # fmt: skip
        assert second["status"] == one.schedules.get("s")["status"] == "completed"
        assert lines_of(log) == [["s", str(first["id"])], ["s", str(second["id"])]]
        with pytest.raises(Conflict):
            one.schedules.complete("a", first["id"], "dead", "completed")


def test_events_are_appended_once_under_kills_and_handoffs(path):
    """Four threads send each message twice, by its id; the log has all that was acknowledged."""
    acknowledged, stop = Counter(), threading.Event()
    ways = ["kill", "hand-off", "drain"] * 3

    def append(name):
        with open_agents("actor", path) as store:
            one, number = store.of("a"), 0
            while not stop.is_set():
                for _ in range(2):
                    entry = {"role": "user", "content": f"{name} {number}"}
                    try:
                        one.events.record_message("s1", entry, message_id=f"{name}.{number}")
                    except HermesActorError as error:
                        assert error.executed == "unknown"
                        continue
                    acknowledged[f"{name}.{number}"] += 1
                number += 1

    with open_agents("actor", path) as store:
        session(store.of("a"))
        threads = [threading.Thread(target=append, args=(f"t{n}",)) for n in range(4)]
        for thread in threads:
            thread.start()
        for way in ways:
            before, pid = len(acknowledged), wait_for(lambda: actor_pid(path))
            if way == "hand-off":
                with contextlib.suppress(HermesActorError):
                    request_handoff(resolve_paths(path), sys.executable)
            else:
                os.kill(pid, signal.SIGKILL if way == "kill" else signal.SIGTERM)
                wait_gone(pid)
            wait_for(lambda: len(acknowledged) > before + 8)  # noqa: B023
        stop.set()
        for thread in threads:
            thread.join(120)
        entries = [one["entry"] for one in store.of("a").events.entries("s1")]
        found = Counter(one["messageId"] for one in entries)
        assert set(found.values()) == {1}
        assert set(acknowledged) <= set(found)
        assert store.of("a").sessions.get("s1")["message_count"] == len(found)
        for name in ("t0", "t1", "t2", "t3"):
            own = [int(one["content"].split()[1]) for one in entries
                   if one["content"].startswith(f"{name} ")]  # fmt: skip
            assert own == sorted(own)


MARK = "walrus-under-the-pier"


def test_no_secret_is_anywhere_in_plain_text(path, tmp_path, caplog):
    """Database, WAL, side files, log, status, change feed, errors: the bytes of none hold it."""
    seen = []
    with open_agents("actor", path) as store:
        one = store.of("a")
        feed = store.subscribe()
        one.secrets.set("KEY", MARK)
        one.secrets.replace_all({"KEY": MARK, "OTHER": f"{MARK} 2"})
        one.credentials.set("whatsapp", "default", "creds", MARK)
        token = one.channels.create_external("shop")["token"]
        store.secrets.rekey(Vault(OTHER_KEY))
        one = store.of("a")
        for call in (
            lambda: one.secrets.set("no name", MARK),
            lambda: one.secrets.set("X" * 192, MARK),
            lambda: one.secrets.replace_all({"A": MARK, "B" * 192: MARK}),
            lambda: one.credentials.set("w" * 65, "p", "k", MARK),
            lambda: one.secrets.set_pass_through("MISSING", True),
        ):
            with pytest.raises(BadValue) as caught:
                call()
            seen.append(f"{caught.value!r} {caught.value}")
        with pytest.raises(NotFound):
            one.secrets.resolve(["MISSING"])
        seen += [repr(store), repr(one.secrets), str(store.secrets.masked), caplog.text]
        seen += [repr(change) for change in _changes(feed, 4)]
        seen.append(repr(ask_status(resolve_paths(path), 10)))
        seen.append(json.dumps(store.rows("agent_secrets")))
        files = [file for root in (path.parent, folder_of(path)) for file in root.rglob("*")
                 if file.is_file()]  # fmt: skip
        assert path.with_name("agents.db-wal") in files
        held = b"".join(file.read_bytes() for file in files)
    stop_actor(path)
    held += path.read_bytes()
    for word in (MARK, token[6:]):
        assert word.encode() not in held
        assert not any(word in text for text in seen)


def _changes(feed, count):
    """The next *count* changes of *feed*."""
    with contextlib.closing(feed):
        return [next(feed) for _ in range(count)]
