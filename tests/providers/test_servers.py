"""What only a store on a server can meet: other processes, lost connections, restarts."""

import gc
import os
import threading
import time
from contextlib import closing

import pytest
import sqlalchemy
from support import servers
from support.processes import run_python
from support.stores import SERVERS, Stores, chosen_kinds

from hermes_actor import Changed, Gap, SessionDB
from hermes_actor.errors import (
    BadConfig,
    Busy,
    Closed,
    DeadlineExceeded,
    IncompatibleFormat,
    OutcomeUnknown,
    PermissionDenied,
    TitleInUse,
    TurnBusy,
    Unreachable,
    Unsupported,
    ValueTooLarge,
)
from hermes_actor.providers.sql import receipts, registry, schema, tables
from hermes_actor.providers.sql.dialect import Classification, RetryAction
from hermes_actor.providers.sql.session_db import ServerSessionDB
from hermes_actor.store import dispatch, queries
from hermes_actor.store.gateway import reads as _gateway_reads  # noqa: F401 (registers answers)
from hermes_actor.store.registry import ANSWER, APPLY
from hermes_protocol import operations as ops


@pytest.fixture(scope="module", params=[kind for kind in SERVERS if kind in chosen_kinds()])
def kind(request):
    return request.param


@pytest.fixture
def stores(kind):
    stores = Stores(kind)
    yield stores
    stores.close()


@pytest.fixture
def url(stores):
    return stores.url("store")


@pytest.fixture
def db(stores):
    db = stores.open("store")
    db.create_session("s", "cli")
    return db


def engine_of(db):
    return db._port.database.engine


def test_every_operation_on_rows_is_applied():
    assert issubclass(ServerSessionDB, SessionDB)  # imported for what it registers
    assert dispatch.apply  # likewise
    about_files = {ops.SqlStatement, ops.SqlLease}
    assert set(registry.APPLY) == (set(APPLY) - about_files) | {ops.Vacuum}


def test_every_query_is_answered_by_files_and_by_servers():
    declared = {query for query in vars(queries).values() if isinstance(query, queries.Query)}
    assert len(declared) > 30
    assert set(registry.ANSWER) == set(ANSWER) == declared


TEN = """
    import os, sys
    from hermes_actor import SessionDB
    from hermes_actor.providers.resolve import choose_by_url, provider_class
    url = sys.argv[1]
    provider_class(choose_by_url(url).name)  # imported once, so that all begin at one moment
    waiting, go = os.pipe()
    pids = []
    for number in range(10):
        pids.append(os.fork())
        if pids[-1] == 0:
            os.close(go)
            os.read(waiting, 1)
            db = SessionDB(url)
            db.create_session(f"s{number}", "cli")
            db.append_message(f"s{number}", "user", "x")
            db.close()
            sys.exit()
    os.close(go)
    print([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids])
"""


def test_ten_processes_make_the_tables_at_once(url):
    assert run_python(TEN, url) == [0] * 10
    db = SessionDB(url)
    assert db.session_count() == db.message_count() == 10
    db.close()


# --- exactly once ----------------------------------------------------------------------------


def lose(monkeypatch, db, times, *, after_commit):
    """Commits fail by a lost connection: after the server has done them, or before.

    A statement that is a transaction of its own counts as its commit.
    """
    dialect, left = engine_of(db).dialect, [times]
    real, execute = dialect.do_commit, dialect.do_execute

    def do_execute(cursor, statement, parameters, context=None):
        if left[0] and "noted AS" in statement:
            left[0] -= 1
            if after_commit:
                execute(cursor, statement, parameters, context)
            cursor.connection.close()
        execute(cursor, statement, parameters, context)

    def do_commit(connection):
        if left[0]:
            left[0] -= 1
            if after_commit:
                real(connection)
            connection.dbapi_connection.close()
        real(connection)

    monkeypatch.setattr(dialect, "do_commit", do_commit)
    monkeypatch.setattr(dialect, "do_execute", do_execute)


@pytest.mark.parametrize("after_commit", [True, False])
def test_a_change_is_applied_once_although_its_connection_is_lost(monkeypatch, db, after_commit):
    lose(monkeypatch, db, 3, after_commit=after_commit)
    first = db.append_message("s", "user", "one")
    second = db.append_message("s", "user", "two")
    assert [row["id"] for row in db.get_messages("s")] == [first, second]
    assert db.get_session("s")["message_count"] == 2


def test_a_pipeline_is_applied_once_although_its_connection_is_lost(monkeypatch, db):
    lose(monkeypatch, db, 2, after_commit=True)
    with db.pipeline() as p:
        answers = [p.append_message("s", "user", str(number)) for number in range(10)]
    rows = db.get_messages("s")
    assert [row["content"] for row in rows] == [str(number) for number in range(10)]
    assert [row["id"] for row in rows] == [answer.result() for answer in answers]


def test_a_change_that_cannot_be_asked_about_is_unknown(monkeypatch, stores, db):
    hasty = stores.open("store", timeout=0.2)
    lose(monkeypatch, hasty, 10**6, after_commit=True)
    with pytest.raises(OutcomeUnknown) as caught:
        hasty.append_message("s", "user", "x")
    assert caught.value.executed == "unknown"


def test_a_refused_change_of_a_pipeline_does_not_take_the_others_with_it(db):
    p = db.pipeline()
    p.set_session_title("s", "T")
    p.create_session("other", "cli")
    refused = p.set_session_title("other", "T")
    last = p.append_message("other", "user", "x")
    with pytest.raises(TitleInUse):
        refused.result()
    assert last.result() == db.get_messages("other")[0]["id"]


def test_a_call_comes_after_the_pipeline_before_it(db):
    for number in range(10):
        p = db.pipeline()
        p.append_message("s", "user", f"{number} first")
        p.flush()
        db.append_message("s", "user", f"{number} second")
    wanted = [f"{number} {word}" for number in range(10) for word in ("first", "second")]
    assert [row["content"] for row in db.get_messages("s")] == wanted


def test_writers_of_one_session_keep_their_order(stores, db):
    def write(name):
        own = SessionDB(stores.url("store"))
        for number in range(15):
            own.append_message("s", "user", f"{name} {number}")
        own.close()

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    contents = [row["content"] for row in db.get_messages("s")]
    for name in "abcd":
        own = [text for text in contents if text.startswith(name)]
        assert own == [f"{name} {number}" for number in range(15)]
    assert db.get_session("s")["message_count"] == 60


def test_two_continuations_at_once_get_two_titles(stores, db):
    db.set_session_title("s", "T")
    results = []

    def go(new):
        results.append(db.continue_session("s", new))

    threads = [threading.Thread(target=go, args=(f"n{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    titles = sorted(db.get_session_title(f"n{number}") for number in range(4))
    assert titles == ["T #2", "T #3", "T #4", "T #5"]


# --- the way to the server -------------------------------------------------------------------


# PyMySQL leaves the sockets of refused connections to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_server_that_is_restarted(kind):
    # The private one, even when DATABASE_URL_TEST names another: that is not ours to restart.
    server = servers.postgresql() if kind == "postgresql" else servers.mariadb()
    db = SessionDB(server.new_store())
    db.create_session("s", "cli")
    db.append_message("s", "user", "before")
    server.stop()
    starting = threading.Timer(0.3, server.start)
    starting.start()
    try:
        db.append_message("s", "user", "after")
    finally:
        starting.join()
    assert [row["content"] for row in db.get_messages("s")] == ["before", "after"]
    db.close()
    gc.collect()


def test_a_row_that_another_transaction_holds(stores, db):
    hasty = stores.open("store", timeout=1.0)
    with engine_of(db).begin() as conn:
        conn.execute(sqlalchemy.select(tables.sessions.c.id).with_for_update())
        with pytest.raises((DeadlineExceeded, Busy)) as caught:
            hasty.append_message("s", "user", "x")
        assert caught.value.executed == "no"
    hasty.append_message("s", "user", "y")
    assert [row["content"] for row in db.get_messages("s")] == ["y"]


def test_a_pool_that_is_used_up(url):
    db = type(SessionDB(url))(url, settings={"pool_size": 1, "connect_timeout": 0.1}, timeout=0.3)
    with engine_of(db).connect(), pytest.raises(Busy, match="pool"):
        db.create_session("a", "cli")
    db.create_session("a", "cli")
    db.close()


def test_server_that_is_not_there(kind):
    with pytest.raises(Unreachable):
        SessionDB(f"{kind}://me@127.0.0.1:1/db", timeout=0.1)


def test_a_database_that_is_not_there(url):
    made = sqlalchemy.make_url(url).set(database="nowhere_at_all")
    with pytest.raises(BadConfig, match="no such database"):
        SessionDB(made.render_as_string(hide_password=False))


def test_a_user_that_the_server_does_not_know(url):
    made = sqlalchemy.make_url(url).set(username="stranger", password="wrong")
    with pytest.raises(PermissionDenied) as caught:
        SessionDB(made.render_as_string(hide_password=False))
    assert "wrong" not in str(caught.value)


def test_an_id_that_no_index_can_hold(db):
    with pytest.raises(ValueTooLarge):
        db.create_session("".join(f"{n:x}" for n in range(20_000)), "cli")
    assert db.session_count() == 1


def test_a_child_process_makes_its_own_connections(db):
    db.append_message("s", "user", "parent")
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            db.append_message("s", "user", "child")
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    db.append_message("s", "user", "parent again")
    assert len(db.get_messages("s")) == 3


def test_after_the_end(db):
    db.close()
    with pytest.raises(Closed):
        db.append_message("s", "user", "x")
    with pytest.raises(Closed):
        db.get_session("s")


def test_sql_of_callers_is_refused(db):
    with pytest.raises(Unsupported, match="server"):
        db._conn.execute("SELECT 1")
    with pytest.raises(Unsupported):
        db._execute_write(lambda conn: None)


# --- search ----------------------------------------------------------------------------------


def test_a_search_asks_as_often_for_many_hits_as_for_one(db):
    """Every statement is a way to the server and back."""
    for number in range(15):
        db.append_message("s", "user", f"giraffe {number}")
    db.append_message("s", "user", "a lone okapi")
    asked = []

    def note(conn, cursor, statement, *rest):
        asked.append(statement)

    sqlalchemy.event.listen(engine_of(db), "before_cursor_execute", note)
    counts = []
    for query in ("okapi", "giraffe"):
        asked.clear()
        hits = db.search_messages(query)
        counts.append(len(asked))
    assert len(hits) == 15
    assert [row["content"] for row in hits[3]["context"]] == [f"giraffe {n}" for n in (2, 3, 4)]
    assert counts[0] == counts[1]


# --- schema ----------------------------------------------------------------------------------


def set_format(db, value):
    with engine_of(db).begin() as conn:
        conn.execute(tables.own_meta.update().values(value=str(value)))


def test_a_store_of_a_newer_version_is_left_alone(stores, db):
    set_format(db, tables.FORMAT + 1)
    with pytest.raises(IncompatibleFormat, match="update hermes-actor"):
        SessionDB(stores.url("store"))


def test_migrations_run_in_their_order_and_once(stores, db, monkeypatch):
    ran = []
    monkeypatch.setitem(schema.MIGRATIONS, -1, lambda conn, dialect: ran.append(-1))
    monkeypatch.setitem(schema.MIGRATIONS, 0, lambda conn, dialect: ran.append(0))
    set_format(db, -1)
    for _ in range(2):
        SessionDB(stores.url("store")).close()
    assert ran == [-1, 0]
    assert db.get_session("s") is not None


def test_a_store_of_format_3_gets_the_line_for_turns(stores, db):
    with engine_of(db).begin() as conn:
        tables.turn_waiters.drop(conn)
    set_format(db, 3)
    with closing(SessionDB(stores.url("store"))) as again:
        assert again.list_turn_waiters() == []
        with again.turn("s"), pytest.raises(TurnBusy):
            again.turn("s", wait=0.5)
        assert again.get_session("s") is not None


# --- followers -------------------------------------------------------------------------------


def test_followers_see_what_others_change(stores, db):
    other = SessionDB(stores.url("store"))
    with db.subscribe() as changes:
        other.append_message("s", "user", "x")
        other.set_session_title("s", "T")
        told = [changes.get(20), changes.get(20)]
    assert [(change.op, change.session_id) for change in told] == [
        ("message.append", "s"),
        ("session.title", "s"),
    ]
    with db.subscribe(after=told[0].commit_no) as changes:
        assert changes.get(20) == told[1]
    with pytest.raises(Closed):
        changes.get(0)
    other.close()


def test_a_follower_of_another_store_sees_a_gap(db):
    with db.subscribe(after=10**9) as changes:
        gap = changes.get(20)
        assert isinstance(gap, Gap)
        db.append_message("s", "user", "x")
        assert isinstance(changes.get(20), Changed)


def test_every_change_is_delivered_once_while_many_write(stores, db):
    def write(name):
        for number in range(10):
            db.append_message("s", "user", f"{name} {number}")

    with db.subscribe() as changes:
        threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        told = [changes.get(30) for _ in range(40)]
        for thread in threads:
            thread.join()
        assert changes.get(0) is None
    numbers = [change.commit_no for change in told]
    assert len(set(numbers)) == 40


def test_old_notes_of_changes_go(db, monkeypatch):
    later = sqlalchemy.func.now() + sqlalchemy.text("INTERVAL '1' HOUR")
    monkeypatch.setattr(type(db._port.database.dialect), "one_hour_ago", lambda self: later)
    monkeypatch.setattr(receipts, "_SWEEP_EVERY", 1)
    monkeypatch.setattr(receipts, "KEPT_CHANGES", 2)
    for number in range(5):
        db.append_message("s", "user", str(number))
    with engine_of(db).connect() as conn:
        notes = conn.execute(sqlalchemy.select(tables.changes.c.commit_no)).scalars().all()
    assert len(notes) == 2
    with db.subscribe(after=1) as changes:
        assert isinstance(changes.get(20), Gap)
        assert changes.get(20).commit_no == min(notes)


def test_a_ready_engine_stays_the_caller_s(stores, db):
    engine = engine_of(db)
    given = type(db)()
    given.initialize(engine=engine)
    given.append_message("s", "user", "x")
    given.close()
    assert db.message_count("s") == 1
    with pytest.raises(TypeError):
        type(db)().initialize()


def test_the_clock_of_the_server_does_not_matter(db, monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 12.5)
    db.append_message("s", "user", "x")
    assert db.get_messages("s")[0]["timestamp"] == 12.5


def test_a_pipeline_in_a_forked_child_is_written(db):
    """The thread that writes pipelines is the parent's; a child that waited for it would hang."""
    with db.pipeline() as p:
        p.append_message("s", "user", "of the parent")
    pid = os.fork()
    if not pid:
        code = 1
        try:
            with db.pipeline() as p:
                p.append_message("s", "user", "of the child")
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    with db.pipeline() as p:
        p.append_message("s", "user", "of the parent again")
    assert [m["content"] for m in db.get_messages("s")] == [
        "of the parent", "of the child", "of the parent again"]  # fmt: skip


def test_a_child_on_a_ready_engine_is_a_client_of_its_own(stores, db):
    given = type(db)()
    given.initialize(engine=engine_of(db))
    try:
        given.append_message("s", "user", "before")
        pid = os.fork()
        if not pid:
            code = 1
            try:
                given.append_message("s", "user", "of the child")
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        given.append_message("s", "user", "of the parent")
        contents = [m["content"] for m in given.get_messages("s")]
        assert contents == ["before", "of the child", "of the parent"]
    finally:
        given.close()


TITLES = ["ΟΔΥΣΣΕΥΣ", "İstanbul", "straße", "Éa", "a%b_c\\d", "K\u212aelvin", "日本", "x'y\"z"]


@pytest.mark.parametrize("title", TITLES)
def test_a_title_with_any_letters_is_numbered_again_and_again(db, title):
    db.set_session_title("s", title)
    for number in range(2, 5):
        db.continue_session("s" if number == 2 else f"s{number - 1}", f"s{number}")
        assert db.get_session_title(f"s{number}") == f"{title} #{number}"


def test_a_follower_waits_for_a_change_whose_transaction_is_open(db):
    """Its number is drawn when it begins; a follower that passes it over would miss it."""
    db.create_session("quick", "cli")
    with db.subscribe() as changes, engine_of(db).connect() as holder:
        with holder.begin():
            lock = sqlalchemy.text("SELECT id FROM sessions WHERE id = 's' FOR UPDATE")
            holder.execute(lock)
            slow = threading.Thread(target=db.append_message, args=("s", "user", "slow"))
            slow.start()
            time.sleep(0.3)
            db.append_message("quick", "user", "quick")
            early = [changes.get(timeout=0.5) for _ in range(4)]
        slow.join()
        late = [changes.get(timeout=60) for _ in range(2 - len([one for one in early if one]))]
    seen = [one.session_id for one in [*early, *late] if one is not None]
    assert sorted(seen) == ["quick", "s"]


def test_a_change_stays_unknown_until_a_try_gets_past_its_note(monkeypatch, db):
    """After a lost commit, a try that waits for the note in vain has learnt nothing."""
    database = db._port.database
    lost = sqlalchemy.exc.OperationalError("COMMIT", None, Exception("gone"), True)
    ways = iter([RetryAction.RECONNECT, RetryAction.RETRY, RetryAction.RAISE])
    busy = Busy("the note is locked")
    monkeypatch.setattr(database, "_classify", lambda _error: Classification(next(ways), busy))

    def apply(*_arguments):
        if not tried:
            tried.append(1)
            return [None]
        raise lost

    tried = []
    monkeypatch.setattr(database, "_apply", apply)
    commit = sqlalchemy.engine.RootTransaction.commit

    def commit_and_lose(self):
        commit(self)
        raise lost

    monkeypatch.setattr(sqlalchemy.engine.RootTransaction, "commit", commit_and_lose)
    with pytest.raises(OutcomeUnknown):
        db.set_session_title("s", "x")


def test_a_store_of_format_1_is_brought_up_to_date(stores, kind, db):
    """Words that an older version has cut in another way are cut again when it is opened."""
    db.append_message("s", "user", "e\u0301clair and café")
    db.append_message("s", "user", "plain running")
    first_format = {
        "postgresql": [
            "ALTER TABLE messages DROP COLUMN words",
            "ALTER TABLE messages ADD COLUMN words tsvector GENERATED ALWAYS AS"
            " (to_tsvector('english'::regconfig, coalesce(content, ''))) STORED",
            "UPDATE hermes_actor_meta SET value = '1' WHERE key = 'format'",
        ],
        "mysql": [
            "UPDATE messages SET words = 'e__ clair cafe' WHERE id = 1",
            "UPDATE hermes_actor_meta SET value = '1' WHERE `key` = 'format'",
        ],
    }
    with engine_of(db).begin() as conn:
        for statement in first_format[kind]:
            conn.execute(sqlalchemy.text(statement))
    db.close()
    again = stores.open("store")
    assert len(again.search_messages("éclair")) == len(again.search_messages("cafe")) == 1
    assert len(again.search_messages("running")) == 1
    again.append_message("s", "user", "the next one")
    assert len(again.search_messages("the")) == 1
