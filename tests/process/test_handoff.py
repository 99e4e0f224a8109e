"""Hand-off: another process takes over, and no writer notices."""

import json
import os
import sys
from collections import Counter
from contextlib import closing

import pytest
from support.actors import actors_of, contents, descriptors, own, wait_for
from support.fake_builds import NEWER, OURS, Build, command, serving
from support.ownership_log import check_owners
from support.wire import status
from support.writer_load import writer_load

from hermes_actor import SessionDB
from hermes_actor.client.control import request_handoff
from hermes_actor.errors import Unsupported
from hermes_actor.paths import resolve_paths

LONG = bool(os.environ.get("HERMES_ACTOR_LONG"))
HANDOFFS = 200 if LONG else 20


def succeed(path, python=sys.executable):
    return request_handoff(resolve_paths(path), str(python))["pid"]


def held(pid):
    """How many descriptors of each kind a process has."""
    return Counter(name.partition(":")[0] for name in descriptors(pid))


@pytest.mark.slow
@pytest.mark.timeout(1200 if LONG else 120)
def test_many_in_a_row_under_load(path):
    with serving(path) as first:
        pids = [first.pid, succeed(path)]
        before = held(pids[-1])
        with writer_load(path, 4) as running:
            for _ in range(HANDOFFS - 1):
                running.goes_on()
                pids.append(succeed(path))
            running.goes_on()
        # No more descriptors are handed on than two, however often.
        wait_for(lambda: held(pids[-1]) == before)
        assert first.exit_code() == 0
        # The last but one stays for a while, all others are gone.
        assert actors_of(path) <= set(pids[-2:])
        assert status(path).pid == pids[-1]
    assert check_owners(path) == pids
    assert len(set(pids)) == HANDOFFS + 1
    assert own(path, "epoch") == HANDOFFS + 1


def test_command_says_who_serves_now(path, tmp_path):
    build = Build(tmp_path / "build", NEWER)
    with serving(path) as old:
        assert status(path).version == OURS
        done = command("handoff", "--db", path, "--python", build.python)
        found = status(path)
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"handed off: pid {found.pid} serves {path}, build {found.build}\n"
        assert found.version == NEWER
        assert found.pid != old.pid
        # The old one is still there for a while, and leaves when its successor hands over.
        done = command("handoff", "--db", path, "--json", python=build.python)
        assert old.exit_code() == 0
        told = json.loads(done.stdout)
        found = status(path)
        assert told == {"pid": found.pid, "build": found.build}


def test_interpreter_by_a_relative_path(path, tmp_path, monkeypatch):
    """Relative to the person who types it, not to the actor; a link stays, it names a venv."""
    build = Build(tmp_path / "build", NEWER)
    monkeypatch.chdir(tmp_path)
    with serving(path):
        done = command("handoff", "--db", path, "--python", os.path.relpath(build.python))
        assert done.returncode == 0, done.stderr
        assert status(path).version == NEWER
        back = os.path.relpath(sys.executable)
        done = command("handoff", "--db", path, "--allow-older", back, "--json")
        assert done.returncode == 0, done.stderr
        assert status(path).version == OURS
        done = command("handoff", "--db", path, "--python", "no/such/python", "--json")
        assert (done.returncode, done.stdout) == (1, "")
        assert f"{tmp_path}/no/such/python" in json.loads(done.stderr)["error"]


def test_without_an_actor_there_is_nothing_to_hand_over(path):
    done = command("handoff", "--db", path)
    assert done.returncode == 3
    assert "not running" in done.stdout
    assert actors_of(path) == set()
    assert not path.exists()


def test_no_other_process_can_own_the_store_at_any_time(path):
    with serving(path) as old, writer_load(path, 2):
        for _ in range(2):
            new = succeed(path)
            second = command("serve", "--db", path)
            assert second.returncode == 4
            assert str(new) in second.stdout + second.stderr
        assert old.exit_code() == 0
        assert command("serve", "--db", path).returncode == 4


def test_what_was_sent_before_and_is_answered_after_is_in_order(path):
    """Hundreds of changes are on their way when the actor that has taken some of them goes."""
    texts = [str(n) for n in range(4000)]
    with serving(path) as old, closing(SessionDB(path)) as db:
        db.create_session("s", "cli")
        with db.pipeline() as pipeline:
            for text in texts[:2000]:
                pipeline.append_message("s", "user", text)
            pids = [old.pid, succeed(path)]
            for text in texts[2000:]:
                pipeline.append_message("s", "user", text)
            pids.append(succeed(path))
        assert db._port.statistics()["pid"] == pids[-1]
    assert contents(path, "s") == texts
    assert own(path, "commit_no") == len(texts) + 1
    assert check_owners(path) == pids


def test_settings_are_handed_on(path):
    with serving(path, "--no-private-sql"), closing(SessionDB(path)) as db:
        for _ in range(3):
            with pytest.raises(Unsupported):
                db._execute_write(lambda conn: conn.execute("DELETE FROM sessions"))
            succeed(path)


def test_search_and_reads_go_on(path):
    with serving(path), closing(SessionDB(path)) as db, writer_load(path, 2):
        db.create_session("s", "cli")
        for number in range(3):
            db.append_message("s", "user", f"walrus {number}")
            succeed(path)
            assert len(db.search_messages("walrus")) == number + 1
            assert len(db.get_messages("s")) == number + 1
