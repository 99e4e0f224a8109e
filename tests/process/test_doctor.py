"""doctor through the real command: findings with what to do, and an exit code that means it."""

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from support.actors import folder_of, paused
from support.fake_builds import command, serving
from support.peer import FOLDER
from support.processes import own_mounts
from support.terminal import terminal

from hermes_actor import SessionDB, exit_codes
from hermes_actor.gateway import GatewayConfig, Hooks, SessionSource, SessionStore
from hermes_actor.system.filesystems import from_mountinfo


@pytest.fixture
def store(path):
    db = SessionDB(path, mode="embedded")
    db.create_session("s", "cli")
    for number in range(200):
        db.append_message("s", "user", f"message {number} " + "x" * 500)
    db.close()
    return path


@pytest.fixture
def quiet(store, tmp_path, monkeypatch):
    """No copies of other accidents of this user."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return store


def examine(path, *words, **env):
    done = command("doctor", "--db", path, "--json", *words, **env)
    assert "Traceback" not in done.stderr, done.stderr
    found = json.loads(done.stdout)
    assert found["healthy"] == (done.returncode == 0)
    for one in found["findings"]:
        assert one["advice"] or one["level"] == "ok", one
    return done.returncode, found["findings"]


def of(findings, area, *levels):
    return [one for one in findings if one["area"] == area and one["level"] in levels]


def damage(path):
    with contextlib.closing(sqlite3.connect(path)) as conn:
        sql = "SELECT pageno FROM dbstat WHERE name = 'messages' AND pagetype = 'leaf'"
        page = conn.execute(sql).fetchall()[5][0]
    with path.open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(b"\xff" * 4096)


def test_a_healthy_store(quiet):
    before = quiet.read_bytes()
    code, found = examine(quiet)
    assert code == 0
    assert {one["area"] for one in found} == {
        "versions", "home", "settings", "permissions", "disk", "sqlite", "hermes-agent", "actor",
        "processes", "backup", "integrity",
    }  # fmt: skip
    assert of(found, "integrity", "ok")
    assert not of(examine(quiet, "--quick")[1], "integrity", "ok", "broken")
    assert quiet.read_bytes() == before
    shown = command("doctor", "--db", quiet)
    assert shown.returncode == 0, shown.stderr
    assert "ok      integrity: no table is damaged" in shown.stdout
    assert f"        do: hermes-actor backup --db {quiet}\n" in shown.stdout
    assert "\x1b" not in shown.stdout


def test_nothing_is_made_where_there_is_no_store(path):
    code, _ = examine(path)
    assert code == 0
    assert not path.exists()
    assert not folder_of(path).exists()


def test_settings_that_are_wrong_are_named(quiet):
    config = quiet.with_name("config.yaml")
    config.write_text("sessiondb: {dsn: 'postgresql://${DB_USER}:${DB_PASS}@h/x'}")
    code, found = examine(quiet, "--quick", DB_USER="ann")
    (one,) = of(found, "settings", "warning")
    assert (code, one["text"]) == (1, "sessiondb.dsn uses ${DB_PASS}, which is not set")
    assert one["advice"].startswith("set DB_PASS")
    config.write_text("a: [\n")
    code, found = examine(quiet, "--quick")
    assert "config.yaml, line 2" in of(found, "settings", "warning")[0]["text"]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("actor: {drain_seconds: abc}", "actor.drain_seconds must be a number"),
        ("actor: {idle_exit: abc}", "actor.idle_exit must be a number"),
        ("actor: {upgrade: sometimes}", "actor.upgrade must be auto or ask or never"),
        ("sessiondb: {pool_size: 0}", "sessiondb.pool_size must be a whole number, 1 or more"),
        ("updates: {backup_keep: many}", "updates.backup_keep must be a whole number"),
        ("actor: {idle_exitt: 5}", "unknown key actor.idle_exitt"),
        ("actr: {idle_exit: 5}", "unknown key actr"),
        ("model: x\nactor: {idle_exit: abc}\nlist: [1\n", "actor.idle_exit must be a number"),
    ],
)
def test_every_setting_is_read_as_its_user_reads_it(quiet, monkeypatch, text, named):
    monkeypatch.delenv("HERMES_ACTOR_IDLE_EXIT", raising=False)
    quiet.with_name("config.yaml").write_text(text)
    code, found = examine(quiet, "--quick")
    assert code == 1
    assert any(named in one["text"] for one in of(found, "settings", "warning")), found
    assert not of(found, "settings", "ok")


@pytest.fixture
def reachable(quiet):
    """The store in a folder that every user can enter."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        moved = Path(folder) / "state.db"
        moved.write_bytes(quiet.read_bytes())
        moved.chmod(0o600)
        yield moved


def test_rights_of_others_are_named_where_they_can_get_in(reachable):
    assert not of(examine(reachable, "--quick")[1], "permissions", "warning")
    reachable.chmod(0o644)
    code, found = examine(reachable, "--quick")
    (one,) = of(found, "permissions", "warning")
    assert (code, one["advice"]) == (1, f"chmod 600 {reachable}")
    reachable.parent.chmod(0o700)
    assert not of(examine(reachable, "--quick")[1], "permissions", "warning")


def test_rights_of_several_files_are_one_finding_and_one_command(reachable):
    names = [reachable, *(reachable.with_name(f"state.db{side}") for side in ("-wal", "-shm"))]
    for name in names:
        name.touch()
        name.chmod(0o644)
    (one,) = of(examine(reachable, "--quick")[1], "permissions", "warning")
    assert one["advice"] == " ".join(["chmod 600", *map(str, names)])


@pytest.mark.parametrize("which", ["state.db", "state.db-wal"])
def test_a_file_that_cannot_be_written_is_named(quiet, which):
    file = quiet.with_name(which)
    file.touch()
    file.chmod(0o400)
    code, found = examine(quiet, "--quick")
    (one,) = of(found, "permissions", "warning")
    assert code == 1
    assert one["text"].startswith(f"this user cannot write {file} (mode 400)")


def test_a_second_name_of_the_file_is_named(quiet):
    os.link(quiet, quiet.with_name("other.db"))
    code, found = examine(quiet, "--quick")
    (one,) = of(found, "permissions", "warning")
    assert (code, "2 hard links" in one["text"]) == (1, True)


MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
40 22 0:40 / /srv/shared rw shared:2 - nfs4 server:/x rw
41 22 0:41 / /srv/my\\040disk ro shared:3 - xfs /dev/sdb1 ro
42 22 0:42 / /srv/shared/local rw - ext4 /dev/sdc1 rw
"""


@pytest.mark.parametrize(
    ("path", "kind", "network", "read_only"),
    [
        ("/srv/state.db", "ext4", False, False),
        ("/srv/shared/home/state.db", "nfs4", True, False),
        ("/srv/shared2/state.db", "ext4", False, False),
        ("/srv/shared/local/state.db", "ext4", False, False),
        ("/srv/my disk/state.db", "xfs", False, True),
    ],
)
def test_kind_of_a_file_system(path, kind, network, read_only):
    found = from_mountinfo(Path(path), MOUNTS)
    assert (found.kind, found.is_network, found.read_only) == (kind, network, read_only)


def test_a_file_system_that_does_not_last_is_named(tmp_path):
    prefix = own_mounts()
    assert prefix, "mounts of one's own are not allowed here"
    script = 'mount -t tmpfs none "$1" && exec "$2" -m hermes_actor doctor --json --db "$1/x.db"'
    words = [*prefix, "sh", "-c", script, "sh", tmp_path, sys.executable]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == exit_codes.REFUSED, done.stderr
    (one,) = of(json.loads(done.stdout)["findings"], "disk", "warning")
    assert "tmpfs" in one["text"]


FOREIGN = """
import sqlite3, sys
conn = sqlite3.connect(sys.argv[1], isolation_level=None)
conn.execute("SELECT 1 FROM sessions").fetchall()
print("open", flush=True)
sys.stdin.read()
"""


def test_foreign_holders_are_named_and_the_actor_is_none(quiet):
    with serving(quiet) as actor, subprocess.Popen(
        [sys.executable, "-c", FOREIGN, quiet], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as foreign:  # fmt: skip
        assert foreign.stdout.readline() == b"open\n"
        code, found = examine(quiet, "--quick")
        (one,) = of(found, "processes", "warning")
        assert code == 1
        assert one["text"].startswith(f"pid {foreign.pid} (")
        assert of(found, "actor", "ok")[0]["text"].startswith(f"pid {actor.pid} is serving")
        foreign.stdin.close()


def test_an_actor_that_does_not_answer(quiet):
    with serving(quiet) as actor, paused(actor.pid):
        code, found = examine(quiet, "--quick")
    assert code == exit_codes.BROKEN
    assert of(found, "actor", "broken")[0]["advice"] == f"hermes-actor stop --db {quiet} --force"


def test_what_accidents_have_left(quiet, tmp_path):
    copies = tmp_path / "state" / "hermes-actor" / "rescued"
    copies.mkdir(parents=True)
    (copies / "x.db").touch()
    quiet.with_name("state.db.orphan-wal.7").write_bytes(b"frames")
    quiet.with_name("state.db.orphan-wal.8").touch()  # nothing was in it
    (folder_of(quiet) / "fsync-failed").touch()
    code, found = examine(quiet, "--quick")
    assert code == 1
    assert len(of(found, "leftovers", "note")) == len(of(found, "leftovers", "warning")) == 1
    assert "sync" in of(found, "disk", "warning")[0]["text"]


def test_the_peer_of_this_environment_is_looked_at_in_a_child(quiet):
    code, found = examine(quiet, "--quick", PYTHONPATH=str(FOLDER))
    (one,) = of(found, "hermes-agent", "warning")
    assert (code, "opens the file itself" in one["text"]) == (1, True)
    assert "0.14.0" in one["text"]
    assert one["advice"] == "hermes-actor attach"


def test_a_version_that_is_not_tested_is_named(quiet, tmp_path):
    peer = tmp_path / "peer"
    (peer / "hermes_agent-0.99.0.dist-info").mkdir(parents=True)
    metadata = "Metadata-Version: 2.1\nName: hermes-agent\nVersion: 0.99.0\n"
    (peer / "hermes_agent-0.99.0.dist-info" / "METADATA").write_text(metadata)
    (peer / "hermes_state.py").write_text("class SessionDB: pass\n")
    _, found = examine(quiet, "--quick", PYTHONPATH=str(peer))
    (one,) = of(found, "hermes-agent", "note")
    assert one["text"].startswith("version 0.99.0 is not among the tested ones (0.14.0, ")


def cut(path, size):
    os.truncate(path, size)


def execute(path, sql):
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as conn:
        conn.execute(sql)


def be_a_folder(path):
    path.unlink()
    path.mkdir()


RESTORE = "hermes-actor restore --db {0} --list"
REPAIR = "hermes-actor repair --db {0}"
KINDS = {
    "a page of a table": (damage, "table messages of {0}: ", REPAIR),
    "the header": (
        lambda path: path.write_bytes(b"\0" * 100 + path.read_bytes()[100:]),
        "{0} is not an SQLite database", f"{RESTORE}, or {REPAIR}",
    ),
    "cut in the middle": (
        lambda path: cut(path, path.stat().st_size // 8192 * 4096),
        "{0} is damaged", f"{RESTORE}, or {REPAIR}",
    ),
    "less than a page": (lambda path: cut(path, 1000), "{0} is damaged", f"{RESTORE}, or {REPAIR}"),
    "a table dropped": (
        lambda path: execute(path, "DROP TABLE messages"),
        "{0} has lost its table messages", RESTORE,
    ),
    "a folder": (be_a_folder, "{0} is a folder", "mv {0} {0}.aside"),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_damage_has_its_file_and_the_next_step(quiet, kind):
    harm, text, advice = KINDS[kind]
    harm(quiet)
    code, found = examine(quiet)
    assert code == exit_codes.BROKEN
    broken = [one for one in found if one["level"] == "broken"]
    assert text.format(quiet) in broken[0]["text"]
    assert {one["advice"] for one in broken} == {advice.format(quiet)}
    assert len({one["text"] for one in broken}) == len(broken)


def test_an_empty_file_and_a_version_of_the_future_are_notes(quiet):
    execute(quiet, "UPDATE schema_version SET version = 99")
    code, found = examine(quiet)
    assert code == 0
    assert f"{quiet} has schema version 99; the newest" in of(found, "file", "note")[0]["text"]
    cut(quiet, 0)
    code, found = examine(quiet)
    assert code == 0
    assert of(found, "file", "note")[0]["text"] == f"{quiet} is empty: it contains no store yet"


HOLDS = """
import sqlite3, sys
conn = sqlite3.connect(sys.argv[1], isolation_level=None)
conn.execute("BEGIN IMMEDIATE")
print("holds", flush=True)
sys.stdin.read()
"""


def test_an_index_file_that_differs_from_the_chats_is_named(quiet):
    with contextlib.closing(SessionDB(quiet, mode="embedded")) as db:
        gateway = SessionStore(config=GatewayConfig(), db=db, hooks=Hooks(entry_points=False))
        for chat in ("1", "2"):
            gateway.get_or_create_session(SessionSource(platform="echo", chat_id=chat))
        gateway.close()
    file = gateway.sessions_dir / "sessions.json"
    assert of(examine(quiet)[1], "chats", "ok")
    index = json.loads(file.read_text())
    moved = next(iter(index))
    file.write_text(json.dumps({**index, moved: {**index[moved], "session_id": "another"}}))
    code, findings = examine(quiet)
    (found,) = of(findings, "chats", "note")
    assert f"differs from the store in 1 chat: {moved}" in found["text"]
    assert code == exit_codes.OK
    file.write_text("{broken")
    assert "in 2 chats" in of(examine(quiet)[1], "chats", "note")[0]["text"]


def test_the_holder_of_the_write_lock_is_named(quiet):
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, quiet], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout.readline() == b"holds\n"
        code, found = examine(quiet, "--quick")
        (one,) = of(found, "file", "warning")
        other.stdin.close()
    assert code == 1
    assert one["text"].startswith(f"pid {other.pid} (")
    assert f"is inside a write transaction of {quiet}" in one["text"]
    assert one["advice"].endswith(f"kill {other.pid}")


def test_damage_has_its_exit_code_and_the_repair_is_offered(quiet, tmp_path):
    damage(quiet)
    code, found = examine(quiet)
    assert code == exit_codes.BROKEN
    broken = of(found, "integrity", "broken")
    assert {one["advice"] for one in broken} == {f"hermes-actor repair --db {quiet}"}
    assert not any("\n" in one["text"] or "***" in one["text"] for one in broken)
    assert len({one["text"].partition(":")[0] for one in broken}) == len(broken)
    with terminal(tmp_path, "doctor", "--db", quiet, lines=50) as screen:
        screen.wait_for("Repair it now? [y/N]")
        screen.type("y")
        screen.press("Enter")
        shown = screen.wait_for("[exit 6]")
        assert "all readable rows are in" in shown.replace("\n", "")


FILLED = """
mount -t tmpfs -o size=1m none "$1" && export HERMES_HOME="$1" || exit 99
"$2" -c 'from hermes_actor import SessionDB
db = SessionDB(mode="embedded"); db.create_session("s", "cli"); db.close()' || exit 98
"$2" -c 'import sqlite3, sys
sqlite3.connect(sys.argv[1] + "/state.db").execute("PRAGMA wal_checkpoint(TRUNCATE)")' "$1"
rm -f "$1"/state.db-shm "$1"/state.db-wal
dd if=/dev/zero of="$1/fill" bs=1k 2>/dev/null
"$2" -m hermes_actor sessions list; echo "code $?"
"$2" -m hermes_actor doctor --json --quick
"""


@pytest.mark.skipif(not own_mounts(), reason="needs a disk of its own")
def test_a_full_disk_is_no_broken_file(tmp_path):
    """Readers need a few pages of shared memory: without room for them nothing can be read."""
    done = subprocess.run(
        [*own_mounts(), "sh", "-c", FILLED, "sh", str(tmp_path), sys.executable],
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert f"no room left for {tmp_path}/state.db; free some and try again" in done.stderr, done
    first, document = done.stdout.split("\n", 1)
    assert first == "code 1"
    found = of(json.loads(document)["findings"], "file", "broken")
    assert "no room left" in found[0]["text"]
    assert found[0]["advice"] == f"free some space: df {tmp_path}"
