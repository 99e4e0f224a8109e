"""Short CJK terms on PostgreSQL: an index gives candidates, and LIKE decides."""

import contextlib
import logging
import random

import psycopg
import pytest
import sqlalchemy
from support import servers
from support.stores import chosen_kinds

from hermes_actor import SessionDB
from hermes_actor.providers.sql import transfer
from hermes_actor.providers.sql.postgresql import cjk_index
from hermes_actor.providers.sql.tables import messages

pytestmark = pytest.mark.skipif(
    "postgresql" not in chosen_kinds(), reason="another kind of store was asked for"
)

CHARACTERS = "日本中文数据한국タワ𠀀々〆、 ab%_\\\x00\x1a\né"
TERMS = [
    "日", "本", "日本", "本日", "数据", "据数", "中 文", "日本 数据", "한", "한국", "タワ", "𠀀",
    "𠀀日", "日𠀀", "々", "日々", "日a", "a日", "a日b",
    "日%本", "日_本", "文\\中", "日\x1a本", "日é",
    "日 ab", "日本 中", "、日",
]  # fmt: skip


@pytest.fixture
def url():
    return servers.new_store("postgresql")


@pytest.fixture
def db(url):
    with contextlib.closing(SessionDB(url)) as db:
        db.create_session("s", "cli")
        yield db


def drop(url):
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute(f"DROP INDEX {cjk_index.INDEX}")


def is_there(url):
    with psycopg.connect(url) as conn:
        return conn.execute(f"SELECT to_regclass('{cjk_index.INDEX}') IS NOT NULL").fetchone()[0]


def found(db, term):
    return [hit["id"] for hit in db.search_messages(term, limit=1000)]


def test_the_index_finds_what_reading_every_message_finds(url, db):
    rng = random.Random("short terms")

    def text(most):
        return "".join(rng.choices(CHARACTERS, k=rng.randrange(most)))

    with db.pipeline() as pipeline:
        for _ in range(400):
            pipeline.append_message("s", "tool", text(12), tool_name=text(4))
        pipeline.append_message("s", "tool", [{"type": "text", "text": "日本"}], tool_name="数据")
        pipeline.append_message("s", "user", "日" * 100_000 + "本")
    with_index = {term: found(db, term) for term in TERMS}
    drop(url)
    assert with_index == {term: found(db, term) for term in TERMS}
    assert sum(map(bool, with_index.values())) > len(TERMS) / 2


def test_the_index_answers_a_search(db):
    statement = sqlalchemy.select(messages.c.id).where(cjk_index.candidates(["数据", "日"]))
    with db._port.database.engine.begin() as conn:
        conn.execute(sqlalchemy.text("SET LOCAL enable_seqscan = off"))
        compiled = statement.compile(conn.engine, compile_kwargs={"literal_binds": True})
        plan = "\n".join(conn.exec_driver_sql(f"EXPLAIN {compiled}".replace("%", "%%")).scalars())
    assert f"Bitmap Index Scan on {cjk_index.INDEX}" in plan


def test_a_term_without_cjk_characters_reads_every_message(db):
    db.append_message("s", "user", "only ascii")
    db.append_message("s", "user", "网")
    assert cjk_index.candidates(["ascii", "网"]) is None
    assert sorted(found(db, "网 ascii")) == [1, 2]


def test_a_store_of_an_earlier_version_gets_the_index_when_it_is_opened(url, db):
    db.append_message("s", "user", "上周的数据")
    drop(url)
    with contextlib.closing(SessionDB(url)) as other:
        assert is_there(url)
        assert found(other, "数据") == found(db, "数据") == [1]


def test_while_rows_are_copied_an_opening_builds_no_index(url, db):
    transfer.drop_search(db._port.database)
    SessionDB(url).close()
    assert not is_there(url)


def test_a_user_who_may_make_no_function_searches_without_the_index(url, db, caplog):
    db.append_message("s", "user", "上周的数据")
    drop(url)
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("DROP FUNCTION hermes_actor_cjk")
        conn.execute("DROP ROLE IF EXISTS plain")
        conn.execute("CREATE ROLE plain")
        for right, kind in (("USAGE", "SCHEMA {0}"), ("ALL", "ALL TABLES IN SCHEMA {0}")):
            schema = conn.execute("SELECT current_schema()").fetchone()[0]
            conn.execute(f"GRANT {right} ON {kind.format(schema)} TO plain")
    with (
        caplog.at_level(logging.WARNING),
        contextlib.closing(SessionDB(f"{url}%20-crole%3Dplain")) as other,
    ):
        assert found(other, "数据") == [1]
    assert "short CJK terms cannot be made" in caplog.text
    assert "permission denied" in caplog.text
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("DROP OWNED BY plain")
        conn.execute("DROP ROLE plain")
