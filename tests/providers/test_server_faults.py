"""Bad weather on servers: whatever happens, errors are typed and every change is applied once.

Under load the verdict is that of the history checker, on what writers in processes of their own
have seen. ``HERMES_ACTOR_LONG=1`` crashes the server twenty-five times.
"""

import contextlib
import gc
import os
import threading
import time
from urllib.parse import quote

import psycopg
import pymysql
import pytest
import sqlalchemy
from support import servers
from support.processes import own_mounts
from support.server_faults import Proxy, ServerWriters, crash, violations

from hermes_actor import SessionDB
from hermes_actor.errors import Busy, DiskFull, PermissionDenied, ReadOnly
from hermes_actor.providers.sql.receipts import sweep

CRASHES = 25 if os.environ.get("HERMES_ACTOR_LONG") else 3

pytestmark = [
    # Drivers leave the sockets of refused connections to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.timeout(3600 if CRASHES > 3 else 300),
    pytest.mark.slow,
]


@pytest.fixture(scope="module", params=["postgresql", "mysql"])
def server(request):
    """A server of our own, which may be crashed."""
    shared = servers.postgresql() if request.param == "postgresql" else servers.mariadb()
    own = type(shared)()
    yield own
    own.remove()
    gc.collect()


@pytest.fixture
def url(server):
    return server.new_store()


@pytest.fixture
def open_(url):
    opened = []

    def open_store(**options):
        opened.append(SessionDB(url, **options))
        return opened[-1]

    yield open_store
    for db in opened:
        db.close()


@pytest.fixture
def db(open_):
    db = open_()
    db.create_session("s", "cli")
    return db


def texts(db):
    return [row["content"] for row in db.get_messages("s")]


@contextlib.contextmanager
def administrator(server):
    """What an administrator types: a function of one statement."""
    if server.kind == "postgresql":
        with psycopg.connect(server.base, autocommit=True) as conn:
            yield lambda sql: conn.execute(sql)
        return
    conn = pymysql.connect(unix_socket=str(server.socket), user="root", autocommit=True)
    with contextlib.closing(conn):

        def run(sql):
            cursor = conn.cursor()
            cursor.execute(sql)
            return cursor

        yield run


# --- under load ------------------------------------------------------------------------------


def test_a_server_that_crashes_under_load(server, url, open_):
    db = open_()
    writers = ServerWriters(url, 4)
    for _ in range(CRASHES):
        writers.wait_for_more()
        crash(server)
        server.start()
    writers.wait_for_more()
    writes, errors = writers.end()
    assert violations(db, writes) == []
    # A crash is over long before any timeout ends.
    assert errors == []


def test_connections_that_are_cut_at_any_moment_under_load(server, url, open_):
    db = open_()
    writers = ServerWriters(url, 4)
    cuts = 0
    with administrator(server) as run:
        while cuts < 40:
            cuts += cut_all(server, run)
            time.sleep(0.02)
    writers.wait_for_more()
    writes, errors = writers.end()
    assert violations(db, writes) == []
    assert errors == []


def cut_all(server, run):
    """End every connection of a store; how many there were."""
    if server.kind == "postgresql":
        ended = run(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'hermes-actor'"
        )
        return len(ended.fetchall())
    found = run("SELECT id FROM information_schema.processlist WHERE db LIKE 'store%'").fetchall()
    for (number,) in found:
        with contextlib.suppress(pymysql.Error):
            run(f"KILL CONNECTION {number}")
    return len(found)


def test_writers_without_timeout_get_typed_errors_in_a_crash(server, url, open_):
    db = open_()
    writers = ServerWriters(url, 2, timeout=0.5)
    writers.wait_for_more()
    crash(server)
    time.sleep(1.5)
    server.start()
    writers.wait_for_more()
    writes, errors = writers.end()
    assert violations(db, writes) == []
    assert set(errors) <= {"Unreachable", "OutcomeUnknown", "Busy"}
    assert errors


# --- one connection --------------------------------------------------------------------------


@pytest.fixture
def proxied(server, url, tmp_path):
    """A store behind a proxy, and the proxy."""
    folder = server.folder / "proxy"
    folder.mkdir(exist_ok=True)
    if server.kind == "postgresql":
        real, path = server.folder / ".s.PGSQL.5432", folder / ".s.PGSQL.5432"
        there = url.replace(quote(str(server.folder), safe=""), quote(str(folder), safe=""))
    else:
        real, path = server.socket, folder / "sock"
        there = url.replace(quote(str(real), safe=""), quote(str(path), safe=""))
    assert there != url
    path.unlink(missing_ok=True)
    proxy = Proxy(real, path)
    db = SessionDB(there)
    db.create_session("s", "cli")
    yield db, proxy
    db.close()
    proxy.close()
    gc.collect()


@pytest.mark.parametrize("cuts", [["before"], ["after"], ["before", "after", "after"]])
def test_a_connection_that_is_cut_at_commit(proxied, cuts):
    db, proxy = proxied
    first = db.append_message("s", "user", "one")
    proxy.cuts += cuts
    second = db.append_message("s", "user", "two")
    assert proxy.done == cuts
    assert db.append_message("s", "user", "three") > second > first
    assert texts(db) == ["one", "two", "three"]


def test_more_threads_than_connections(server, url):
    kind = type(SessionDB(url))
    db = kind(url, settings={"pool_size": 2})
    db.create_session("s", "cli")
    threads = [
        threading.Thread(target=lambda n=n: db.append_message("s", "user", str(n)))
        for n in range(24)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(texts(db), key=int) == [str(n) for n in range(24)]
    db.close()


def test_no_connection_left_on_the_server(server, url, db):
    """Others have taken them all: wait for the deadline, then say what is wrong."""
    with contextlib.ExitStack() as taken:
        if server.kind == "mysql":
            with administrator(server) as run:
                run("CREATE USER IF NOT EXISTS few@localhost IDENTIFIED BY 'x'")
                run("GRANT ALL ON *.* TO few@localhost WITH MAX_USER_CONNECTIONS 2")
            made = sqlalchemy.make_url(url).set(username="few", password="x")
            there = made.render_as_string(hide_password=False)
            for _ in range(2):
                conn = pymysql.connect(
                    unix_socket=str(server.socket), user="few", password="x"
                )  # fmt: skip
                taken.enter_context(contextlib.closing(conn))
        else:
            with administrator(server) as run:
                run("DROP ROLE IF EXISTS few")
                run("CREATE ROLE few LOGIN SUPERUSER CONNECTION LIMIT 0")
                run("ALTER ROLE few NOSUPERUSER")
            there = url.replace("hermes@", "few@")
        with pytest.raises(Busy) as caught:
            SessionDB(there, timeout=0.5)
        assert caught.value.executed == "no"


# --- what an administrator can do ------------------------------------------------------------


@pytest.fixture
def agent(server, url, db):
    """The URL of the store for an ordinary user with a password."""
    with administrator(server) as run:
        if server.kind == "postgresql":
            hba = server.folder / "data" / "pg_hba.conf"
            if "all agent" not in hba.read_text():
                hba.write_text("local all agent scram-sha-256\n" + hba.read_text())
                run("CREATE ROLE agent LOGIN PASSWORD 'right'")
                run("SELECT pg_reload_conf()")
            (schema,) = run("SELECT nspname FROM pg_namespace ORDER BY oid DESC LIMIT 1").fetchone()
            run(f"GRANT ALL ON SCHEMA {schema} TO agent")
            run(f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO agent")
        else:
            run("CREATE USER IF NOT EXISTS agent@localhost IDENTIFIED BY 'right'")
            run("GRANT SELECT, INSERT, UPDATE, DELETE, CREATE ON `store%`.* TO agent@localhost")
    user = "hermes@" if server.kind == "postgresql" else "root@"
    return url.replace(user, "agent:right@")


def test_a_wrong_password_is_refused_and_not_repeated(server, agent):
    with contextlib.closing(SessionDB(agent)) as db:
        db.append_message("s", "user", "let in")
    with pytest.raises(PermissionDenied) as caught:
        SessionDB(agent.replace("right", "wr0ng"))
    assert "wr0ng" not in f"{caught.value} {caught.value.__cause__!r}"


def test_a_server_that_takes_no_changes(server, agent):
    """It answers questions; a change waits for the deadline, or for the end of it."""
    switch = {
        "postgresql": "ALTER SYSTEM SET default_transaction_read_only = {}",
        "mysql": "SET GLOBAL read_only = {}",
    }[server.kind]

    def read_only(state):
        with administrator(server) as run:
            run(switch.format(state))
            if server.kind == "postgresql":
                run("SELECT pg_reload_conf()")

    with (
        contextlib.closing(SessionDB(agent)) as db,
        contextlib.closing(SessionDB(agent, timeout=0.5)) as hasty,
    ):
        db.append_message("s", "user", "before")
        read_only("on")
        waiting = threading.Timer(1.0, read_only, ["off"])
        try:
            there = ["before", *taken_until_refused(hasty)]
            assert texts(db) == there
            waiting.start()
            db.append_message("s", "user", "after")
        finally:
            waiting.join() if waiting.is_alive() else read_only("off")
        assert texts(db) == [*there, "after"]


def taken_until_refused(db):
    """What is still written: a setting reaches connections a moment later."""
    taken, until = [], time.monotonic() + 10
    while time.monotonic() < until:
        try:
            db.append_message("s", "user", f"still {len(taken)}")
        except ReadOnly as error:
            assert error.executed == "no"
            return taken
        taken.append(f"still {len(taken)}")
        time.sleep(0.05)
    raise AssertionError("nothing was refused")


# Replicas of MySQL are read_only servers, which another test is about.
@pytest.mark.parametrize("server", ["postgresql"], indirect=True)
def test_a_standby_is_read_and_takes_changes_after_its_promotion(server, tmp_path):
    primary = server.new_store()
    with contextlib.closing(SessionDB(primary)) as db:
        db.create_session("s", "cli")
        db.append_message("s", "user", "replicated")
    standby = servers.Standby(server)
    try:
        there = primary.replace(
            quote(str(server.folder), safe=""), quote(str(standby.folder), safe="")
        )
        with contextlib.closing(SessionDB(there, timeout=1.0)) as db:
            assert texts(db) == ["replicated"]
            with pytest.raises(ReadOnly):
                db.append_message("s", "user", "refused")
        with contextlib.closing(SessionDB(there)) as db:
            with administrator(standby) as run:
                run("SELECT pg_promote(wait => false)")
            db.append_message("s", "user", "promoted")
            assert texts(db) == ["replicated", "promoted"]
    finally:
        standby.remove()


# PyMySQL knows one server; see the table of differences.
@pytest.mark.parametrize("server", ["postgresql"], indirect=True)
def test_another_server_takes_over_under_load(server):
    """The primary goes down in good order, so the standby has everything, and is promoted."""
    primary = server.new_store()
    with contextlib.closing(SessionDB(primary)):
        pass  # makes the tables
    standby = servers.Standby(server)
    try:
        # The standby first: it answers, and is passed over for as long as it takes no changes.
        hosts = f"{standby.folder},{server.folder}"
        both = primary.replace(quote(str(server.folder), safe=""), quote(hosts, safe=""))
        writers = ServerWriters(both, 3)
        writers.wait_for_more()
        server.stop()
        with administrator(standby) as run:
            run("SELECT pg_promote(wait => false)")
        writers.wait_for_more()
        writes, errors = writers.end()
        with contextlib.closing(SessionDB(both)) as db:
            assert violations(db, writes) == []
            assert db.message_count() == len(writes)
        assert errors == []
    finally:
        standby.remove()
        if server.process is None:
            server.start()


# --- no room ---------------------------------------------------------------------------------


def test_a_full_disk_as_the_server_tells_it(server, url, db):
    """At the level of statements: a trigger that fails as a full disk does."""
    table = "messages"
    with administrator(server) as run:
        if server.kind == "postgresql":
            (name,) = run("SELECT nspname FROM pg_namespace ORDER BY oid DESC LIMIT 1").fetchone()
            run(
                f"CREATE FUNCTION {name}.no_room() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
                " RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END $$"
            )
            run(
                f"CREATE TRIGGER no_room BEFORE INSERT ON {name}.{table} FOR EACH ROW"
                f" EXECUTE FUNCTION {name}.no_room()"
            )
            free = f"DROP FUNCTION {name}.no_room() CASCADE"
        else:
            name = sqlalchemy.make_url(url).database
            run(
                f"CREATE TRIGGER {name}.no_room BEFORE INSERT ON {name}.{table} FOR EACH ROW"
                " SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1021, MESSAGE_TEXT = 'Disk full'"
            )
            free = f"DROP TRIGGER {name}.no_room"
        with pytest.raises(DiskFull) as caught:
            db.append_message("s", "user", "refused")
        assert caught.value.executed == "no"
        assert texts(db) == []
        run(free)
    db.append_message("s", "user", "after")
    assert texts(db) == ["after"]
    assert db.get_session("s")["message_count"] == 1


# MySQL has no table spaces that could lie elsewhere; see the trigger above.
@pytest.mark.parametrize("server", ["postgresql"], indirect=True)
def test_a_disk_that_is_full(server):
    """A real one: the tables lie on a file system of a few megabytes."""
    if os.getuid() != 0 or not own_mounts():
        pytest.skip("this user may not mount a small file system; see the trigger above")
    small = servers.SmallDisk()
    try:
        with administrator(small) as run:
            run(f"CREATE TABLESPACE small LOCATION '{small.disk}'")
            run("CREATE DATABASE agents TABLESPACE small")
        url = small.base.replace("/postgres?", "/agents?")
        with contextlib.closing(SessionDB(url)) as db:
            db.create_session("s", "cli")
            sent = fill_up(db)
            assert len(texts(db)) == sent == db.get_session("s")["message_count"]
            with psycopg.connect(url, autocommit=True) as conn:
                conn.execute("DROP INDEX hermes_actor_messages_parts, hermes_actor_messages_words")
            db.append_message("s", "user", "room again")
            assert texts(db)[-1] == "room again"
    finally:
        small.remove()


def fill_up(db):
    """Write until there is no room; how many were acknowledged."""
    for number in range(2_000):
        try:
            db.append_message("s", "user", os.urandom(20_000).hex())
        except DiskFull as error:
            assert error.executed == "no"
            return number
    raise AssertionError("the disk has room for everything")


# --- clocks ----------------------------------------------------------------------------------


def test_clocks_that_differ(db, open_, monkeypatch):
    """Times are the caller's; receipts are kept and swept by the clock of the server alone."""
    day, now = 86_400.0, time.time()
    other = open_()
    clock = [now]
    monkeypatch.setattr(time, "time", lambda: clock[0])
    for number, (store, ahead) in enumerate([(db, day), (other, -day), (db, 3650 * day)]):
        clock[0] = now + ahead
        store.append_message("s", "user", str(number))
    by_id = sorted(db.get_messages("s"), key=lambda row: row["id"])
    assert [row["content"] for row in by_id] == ["0", "1", "2"]
    assert [row["timestamp"] - now for row in by_id] == [day, -day, 3650 * day]
    # A sweep ten years ahead on this side leaves the notes of this hour alone.
    database = db._port.database
    ticket = database.tickets.issue(_append(db))
    (first,) = database.write([ticket], time.monotonic() + 30)
    with database.engine.begin() as conn:
        from hermes_actor.providers.sql.connection import ServerConnection

        sweep(ServerConnection(conn, database.dialect))
    (again,) = database.write([ticket], time.monotonic() + 30)
    assert again.result == first.result
    assert db.message_count("s") == 4


def _append(db):
    from hermes_actor.api.change import build

    return build(SessionDB.append_message, db, "s", "user", "once").operation
