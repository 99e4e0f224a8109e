"""Commands in a home whose settings say that its sessions are elsewhere."""

import json
from contextlib import closing

import pytest

from hermes_actor import SessionDB, exit_codes

SERVER = "postgresql://agent:swordfish@db.example/hermes"


def settle(home, **settings):
    (home.db_path.parent / "config.yaml").write_text(json.dumps({"sessiondb": settings}))


def test_backup_beside_a_server_takes_no_file_for_the_store(home):
    settle(home, provider="postgresql", dsn=SERVER)
    with SessionDB(home.db_path) as db:
        db.create_session("s", "cli")
    done = home("backup")
    assert done.code != exit_codes.OK
    assert "server" in done.out + done.err
    assert not [*(home.db_path.parent / "backups").glob("*")]


@pytest.mark.parametrize(
    "words",
    [
        ("repair", "--check"), ("vacuum",), ("serve",),
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_file_beside_a_server_is_not_taken_for_the_store(home, words):
    settle(home, provider="postgresql", dsn=SERVER)
    done = home(*words)
    assert done.code == exit_codes.REFUSED
    told = done.out + done.err
    assert "are on a server (postgresql://agent:***@db.example/hermes)" in told
    assert "--db" in told
    assert "swordfish" not in told
    assert not home.db_path.exists()


@pytest.mark.parametrize(
    "words",
    [
        ("sessions", "list"), ("sessions", "list", "--json"), ("sessions", "stats"),
        ("sessions", "delete", "s", "--yes"), ("search", "walrus"), ("insights",), ("resume", "-c"),
        ("title", "s", "t"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_server_that_does_not_answer_is_named_and_no_file_is_made(home, words):
    settle(home, provider="postgresql", dsn="postgresql://agent:swordfish@127.0.0.1:1/hermes")
    done = home(*words)
    assert done.code == exit_codes.REFUSED
    assert "the server does not answer" in done.err
    assert "swordfish" not in done.out + done.err
    assert not home.db_path.exists()


def test_a_file_that_is_named_is_used(home, tmp_path):
    settle(home, provider="postgresql", dsn=SERVER)
    other = tmp_path / "other.db"
    with closing(SessionDB(other)) as db:
        db.create_session("s", "cli")
        db.append_message("s", "user", "walrus")
    done = home("search", "walrus", "--db", str(other))
    assert done.code == 0
    assert "walrus" in done.out


def test_a_file_elsewhere_is_found(home, tmp_path):
    other = tmp_path / "elsewhere" / "other.db"
    other.parent.mkdir()
    with closing(SessionDB(other)) as db:
        db.create_session("s", "cli")
        db.append_message("s", "user", "walrus")
    settle(home, dsn=f"sqlite:///{other}")
    assert "walrus" in home("search", "walrus").out
    assert json.loads(home("sessions", "stats", "--json").out)["messages"] == 1
    assert not home.db_path.exists()


def test_doctor_looks_at_the_home_and_tells(home):
    settle(home, provider="postgresql", dsn=SERVER)
    done = home("doctor")
    assert "the sessions of this home are in postgresql://agent:***@db.example/hermes" in done.out
    assert "swordfish" not in done.out + done.err
