"""What only PostgreSQL has."""

import logging
import threading
import time
from urllib.parse import quote

import psycopg
import pytest
import sqlalchemy
from support import servers
from support.actors import wait_for
from support.stores import chosen_kinds

from hermes_actor import SessionDB
from hermes_actor.errors import BadConfig, Unsupported
from hermes_actor.providers.postgresql import PostgreSQLSessionDBProvider
from hermes_protocol.operations import MessageAppend, MessageRow, SessionTokens

pytestmark = pytest.mark.skipif(
    "postgresql" not in chosen_kinds(), reason="another kind of store was asked for"
)


@pytest.fixture
def url():
    return servers.new_store("postgresql")


@pytest.fixture
def db(url):
    db = SessionDB(url)
    db.create_session("s", "cli")
    yield db
    db.close()


def test_words_are_found_by_their_stem(db):
    db.append_message("s", "user", "the agents were running in circles")
    (hit,) = db.search_messages("run agent")
    assert hit["snippet"] == "the >>>agents<<< were >>>running<<< in circles  "
    assert len(db.search_messages("the")) == 1
    assert len(db.search_messages("circ*")) == len(db.search_messages("runn*")) == 1
    assert db.search_messages('"agent run"') == []
    assert db.search_messages("circles NOT agents") == []
    assert len(db.search_messages("circles NOT agent")) == 1


def test_files_hosts_and_numbers_are_words_as_in_a_file(db):
    db.append_message("s", "user", "see hermes_state.py on db1.example.com, v1.25, a/b/deep-link")
    for query in (
        "state",
        "example",
        "db1",
        "25",
        "link",
        '"deep link"',
        "hermes_state.py",
        "deep",
    ):
        assert len(db.search_messages(query)) == 1, query


def test_without_trigrams_searches_are_right_and_the_log_says_so(url, db, caplog):
    db.append_message("s", "user", "上周的北京烤鸭")
    with db._port.database.engine.begin() as conn:
        conn.execute(sqlalchemy.text("DROP INDEX hermes_actor_messages_parts"))
    with caplog.at_level(logging.WARNING):
        other = SessionDB(url)
    assert "CREATE EXTENSION pg_trgm" in caplog.text
    assert [hit["id"] for hit in other.search_messages("北京烤鸭")] == [1]
    other.close()


def test_locale_that_hides_cjk_text_is_reported_and_searches_are_right(url, db, caplog):
    name = "locale_c"
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute(f"DROP DATABASE IF EXISTS {name}")
        conn.execute(f"CREATE DATABASE {name} TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
    address = psycopg.conninfo.make_conninfo(url, dbname=name, options="")
    with caplog.at_level(logging.WARNING):
        other = PostgreSQLSessionDBProvider(address)
    assert "LC_CTYPE C) pg_trgm does not see CJK text" in caplog.text
    other.create_session("s", "cli")
    other.append_message("s", "user", "上周的北京烤鸭")
    assert [hit["id"] for hit in other.search_messages("北京烤鸭")] == [1]
    other.close()
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_trigrams_answer_searches_for_cjk_text(db, caplog):
    assert "CJK" not in caplog.text
    with db._port.database.engine.begin() as conn:
        # Without any an index on them is used as well, and looked at from end to end.
        cut = conn.execute(sqlalchemy.text("SELECT public.show_trgm('北京烤鸭')")).scalar()
        assert len(cut) >= 2
        conn.execute(sqlalchemy.text("SET LOCAL enable_seqscan = off"))
        from hermes_actor.providers.sql.postgresql.search import part_match
        from hermes_actor.providers.sql.tables import messages

        statement = sqlalchemy.select(messages.c.id).where(part_match("北京烤鸭"))
        compiled = statement.compile(conn.engine, compile_kwargs={"literal_binds": True})
        plan = "\n".join(conn.exec_driver_sql(f"EXPLAIN {compiled}").scalars())
    assert "hermes_actor_messages_parts" in plan


def test_similar_texts_are_found_only_when_asked_for(url, db):
    db.append_message("s", "user", "the giraffe walked by")
    with pytest.raises(Unsupported):
        db.search_similar("girafe")
    other = PostgreSQLSessionDBProvider(url, settings={"similarity": True})
    assert "similarity" in other.capabilities.search
    (hit,) = other.search_similar("girafe")
    assert hit["id"] == 1
    assert 0.3 < hit["similarity"] <= 1
    other.close()


def test_synchronous_commit_is_declared(url, db):
    assert db.capabilities.durability == "synced"
    other = PostgreSQLSessionDBProvider(url, settings={"synchronous_commit": False})
    assert other.capabilities.durability == "relaxed"
    assert other._port.statistics()["durability"] == "relaxed"
    with other._port.database.engine.connect() as conn:
        assert conn.execute(sqlalchemy.text("SHOW synchronous_commit")).scalar() == "off"
    other.close()
    with pytest.raises(BadConfig, match="synchronous_commit"):
        PostgreSQLSessionDBProvider(url, settings={"synchronous_commit": "maybe"})


def test_of_several_servers_the_one_that_answers_is_used(url, tmp_path):
    parameters = psycopg.conninfo.conninfo_to_dict(url)
    host = parameters["host"]
    several = f"postgresql://hermes@/postgres?host={quote(f'{tmp_path},{host}', safe='')}"
    db = SessionDB(f"{several}&options={quote(parameters['options'])}")
    db.create_session("s", "cli")
    assert db.session_count() == 1
    db.close()


class Pool:
    """The part of psycopg's pool that is needed."""

    def __init__(self, url):
        self.url, self.free, self.given = url, [], 0

    def getconn(self):
        self.given += 1
        return self.free.pop() if self.free else psycopg.connect(self.url)

    def putconn(self, conn):
        conn.rollback()
        self.given -= 1
        self.free.append(conn)


def test_a_ready_pool_stays_the_caller_s(url):
    pool = Pool(url)
    db = PostgreSQLSessionDBProvider()
    db.initialize(pool=pool)
    db.create_session("s", "cli")
    assert db.session_count() == 1
    db.close()
    assert pool.given == 0
    assert not any(conn.closed for conn in pool.free)
    for conn in pool.free:
        conn.close()


def _requests_of(db, tmp_path, change):
    """Return the requests that *change* sends: each ends with a Sync or is a simple Query."""
    with db._port.database.engine.connect() as conn:
        pgconn = conn.connection.driver_connection.pgconn
    log = tmp_path / "trace"
    with open(log, "wb") as file:
        pgconn.trace(file.fileno())
        change()
        pgconn.untrace()
    sent = [line.split("\t") for line in log.read_text().splitlines()]
    return [line for line in sent if "F" in line and {"Sync", "Query"} & set(line)]


@pytest.mark.parametrize("role", ["user", "assistant"])
def test_a_message_takes_one_round_trip(db, tmp_path, role):
    for number in range(6):  # the driver prepares a statement after five executions
        db.append_message("s", role, str(number))
    assert len(_requests_of(db, tmp_path, lambda: db.append_message("s", role, "x"))) == 1
    assert db.message_count("s") == 7


def test_tokens_take_one_round_trip(db, tmp_path):
    requests = _requests_of(db, tmp_path, lambda: db.update_token_counts("s", input_tokens=5))
    assert len(requests) == 1
    assert db.get_session("s")["input_tokens"] == 5


def test_a_single_read_takes_one_round_trip(db, tmp_path):
    assert len(_requests_of(db, tmp_path, lambda: db.get_session("s"))) == 1


def test_one_statement_finds_its_receipt(db):
    """A change that is sent twice is made once, and the second time returns the first result."""
    database = db._port.database
    append = MessageAppend(
        session_id="s", message=MessageRow(role="user", timestamp=1.0, content="once")
    )
    tokens = SessionTokens(id="s", started_at=1.0, input_tokens=3)
    for operation in (append, tokens):
        ticket = database.tickets.issue(operation)
        results = [database.write([ticket], time.monotonic() + 60) for _ in range(3)]
        assert results[0] == results[1] == results[2]
    assert db.message_count("s") == 1
    assert db.get_session("s")["input_tokens"] == 3


def test_pipelines_of_all_threads_share_transactions(url, db):
    """While one commit is under way, what all pipelines send gathers for the next one."""

    def write():
        with db.pipeline() as pipeline:
            for number in range(10):
                pipeline.append_message("s", "user", str(number))

    threads = [threading.Thread(target=write) for _ in range(4)]
    waits = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE %s = ANY(pg_blocking_pids(pid)))"
    with psycopg.connect(url) as holder, psycopg.connect(url, autocommit=True) as conn:
        holder.execute("SELECT FROM sessions WHERE id = 's' FOR UPDATE")
        threads[0].start()
        wait_for(lambda: conn.execute(waits, (holder.info.backend_pid,)).fetchone()[0])
        for thread in threads[1:]:
            thread.start()
        wait_for(lambda: db._port._queue.qsize() >= 30)
        holder.commit()
        for thread in threads:
            thread.join(60)
        noted = "SELECT count(*), count(DISTINCT xid) FROM hermes_actor_changes WHERE commit_no > 1"
        assert conn.execute(noted).fetchone() == (40, 2)
    assert db.message_count("s") == 40
