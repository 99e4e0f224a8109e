"""``backup`` of a store on a server: a portable export, and the way back."""

import contextlib
import json
import stat

import pytest
from support import servers
from support.fake_builds import command
from test_migrate import fill

from hermes_actor import SessionDB, exit_codes
from hermes_actor.cli.safety import _server_backup
from hermes_actor.tools.import_records import BadRecord, count_records


@pytest.fixture(params=["postgresql", "mysql"])
def url(request):
    url = servers.new_store(request.param)
    with contextlib.closing(SessionDB(url)) as db:
        fill(db, messages=5)
        db.archive_session("empty")
    return url


@pytest.fixture
def home(tmp_path):
    home = tmp_path / "home"
    home.mkdir()

    def run(url, *words):
        (home / "config.yaml").write_text(json.dumps({"sessiondb": {"dsn": url}}))
        done = command(*words, HERMES_HOME=str(home))
        assert "Traceback" not in done.stderr, done.stderr
        return done

    run.path = home
    return run


def records(text):
    """The sessions of an export, without the numbers that the target gives its messages."""
    found = [json.loads(line) for line in text.splitlines()]
    for record in found:
        for message in record["messages"]:
            del message["id"]
            del message["session_id"]
    return sorted(found, key=lambda record: record["id"])


def test_backup_of_a_server_comes_back_into_a_server_and_into_a_file(url, home, tmp_path):
    done = home(url, "backup", "--json")
    assert done.returncode == 0, done.stderr
    (copy,) = home.path.joinpath("backups").iterdir()
    told = json.loads(done.stdout)
    assert (told["path"], told["kept"]) == (str(copy), [str(copy)])
    assert told["bytes"] == copy.stat().st_size
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    kept = records(copy.read_text())
    assert [record["id"] for record in kept] == ["child", "empty", "root"]
    assert [bool(record.get("archived")) for record in kept] == [False, True, False]

    new = servers.new_store("mysql" if "mysql" in url else "postgresql")
    done = home(new, "sessions", "import", "--no-limits", str(copy))
    assert done.stdout == "Imported 3, skipped 0, detached 0.\n", done.stderr
    assert records(home(new, "sessions", "export", "-").stdout) == kept
    done = home(new, "sessions", "import", "--no-limits", str(copy))
    assert done.stdout == "Imported 0, skipped 3, detached 0.\n"

    file = tmp_path / "state.db"
    done = command("sessions", "import", "--no-limits", str(copy), "--db", str(file))
    assert done.returncode == 0, done.stderr
    assert records(command("sessions", "export", "-", "--db", str(file)).stdout) == kept


def test_backups_of_a_server_are_listed_and_pruned_and_not_restored_over_it(url, home):
    copies = [home(url, "backup", "--keep", "2").stdout.strip() for _ in range(3)]
    listed = json.loads(home(url, "restore", "--list", "--json").stdout)
    assert [one["path"] for one in listed] == copies[1:]
    done = home(url, "restore", "--yes")
    assert done.returncode == exit_codes.REFUSED
    assert "hermes-actor sessions import --no-limits FILE" in done.stderr
    assert "are on a server" in done.stderr


def test_backup_of_a_server_is_written_where_it_is_asked_for(url, home, tmp_path):
    target = tmp_path / "copy.jsonl"
    assert home(url, "backup", "--to", str(target)).stdout == f"{target}\n"
    again = home(url, "backup", "--to", str(target))
    assert again.returncode == exit_codes.REFUSED
    assert "exists; use --force" in again.stderr
    assert home(url, "backup", "--to", str(target), "--force").returncode == 0
    assert records(home(url, "backup", "--to", "-").stdout) == records(target.read_text())
    assert not home.path.joinpath("backups").exists()


@pytest.mark.parametrize("fault", ["short", "torn"])
def test_backup_of_a_server_that_cannot_be_read_back_gets_no_name(
    url, tmp_path, monkeypatch, fault
):
    """The disk gives back less than was written."""
    from hermes_actor.cli import run

    def count(lines):
        if fault == "torn":
            raise BadRecord("not JSON: truncated")
        sessions, messages = count_records(lines)
        return sessions, messages - 1

    monkeypatch.setattr(_server_backup, "count_records", count)
    (tmp_path / "config.yaml").write_text(json.dumps({"sessiondb": {"dsn": url}}))
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    monkeypatch.setattr("hermes_actor.session_db.DEFAULT_DB_PATH", tmp_path / "state.db")
    assert run(["backup"]) == exit_codes.REFUSED
    assert list(tmp_path.joinpath("backups").iterdir()) == []
