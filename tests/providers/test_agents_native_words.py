"""Words, matches and ranks of memories beside those that PostgreSQL itself makes (A5)."""

import random
import re

import psycopg
import pytest
from support import servers
from support.agent_stores import START

from hermes_actor.agents import words
from hermes_actor.agents.times import after
from hermes_protocol.agents import AgentsCopy

WORDS = """
    deploy deployment deployments deployed deploying running runs ran database databases kubernetes
    generously skies dying news happy happily happiness the of and a for with was not only user
    users preference preferences quota incident meeting meetings agreed disagreement api backend
    redesign complete v2 v10 python3 camelCase snake_case README tuesday tuesdays they're don't it's
    Eva 用户 用户偏好 部署 deployment流程 東京 élan École naïve straße Überraschung 2026 3.14 -5 42
    2026-03-01 well-known state-of-the-art re-deploy e-mail foo@bar.com a.b.c deploy.sh
    user/usr-abc/preferences https://example.com/a/b http://x.io 10.0.0.1 C++ #tag @eva (paren) "x"
    50% a_b c\\d x=1 A/B running/tests 12:30 1,000 US$ end. one,two;three:four /usr/lib/ a/b.c
"""
TEXTS = WORDS.split()
PLAIN = [text for text in TEXTS if text.isalpha()]


@pytest.fixture(scope="module")
def conn():
    with psycopg.connect(servers.new_store("postgresql"), autocommit=True) as conn:
        yield conn


@pytest.mark.parametrize("form", ["{}", "see {} now", "{}, then", "So {}. And more."])
def test_words_and_positions(conn, form):
    sql = "SELECT lexeme, positions FROM unnest(to_tsvector('english', %s))"
    for text in (form.format(one) for one in TEXTS if not (one == "end." and "." in form)):
        if "http" in text and "." in form:
            continue  # a dot belongs to the path of a URL
        assert words.positions(text) == dict(conn.execute(sql, (text,)).fetchall()), text


@pytest.mark.parametrize("seed", range(4))
def test_matches_and_ranks(conn, seed):
    """Texts of plain words, and queries of one to three: the same ones match, in the same order."""
    chance = random.Random(seed)
    sql = (
        "SELECT to_tsvector('english', %(text)s) @@ plainto_tsquery('english', %(query)s),"
        " ts_rank(to_tsvector('english', %(text)s), plainto_tsquery('english', %(query)s))"
    )
    matching = 0
    for _ in range(150):
        text = " ".join(chance.choices(PLAIN, k=chance.randrange(1, 80)))
        query = " ".join(chance.choices(PLAIN, k=chance.randrange(1, 4)))
        matches, rank = conn.execute(sql, {"text": text, "query": query}).fetchone()
        wanted, found = words.positions(query), words.positions(text)
        assert (bool(wanted) and wanted.keys() <= found.keys()) == matches, (query, text)
        if matches:
            matching += 1
            ours = words.rank({word: found[word] for word in wanted})
            assert ours == pytest.approx(rank, rel=1e-5), (query, text)
    assert matching > 20


CORPORA, QUERIES, MEMORIES = 300, 20, 12
MARKS = (
    "50%", "a_b", "c\\d", "%", "_", "100%_\\", "x=1", "用户偏好", "部署", "北京の東京", "É",
    "日本語deploy",
)  # fmt: skip
FILL = """
    CREATE TABLE native (
        corpus int, key text, content text, updated_at text,
        words tsvector GENERATED ALWAYS AS (to_tsvector('english', content)) STORED
    )
"""
BY_WORDS = """
    SELECT key FROM native, plainto_tsquery('english', %(query)s) asked
     WHERE corpus = %(corpus)s AND words @@ asked
     ORDER BY ts_rank(words, asked) DESC, updated_at DESC, key COLLATE "C"
"""
BY_PIECES = """
    SELECT key FROM (SELECT key, updated_at, (SELECT count(*) FROM unnest(%(pieces)s::text[]) piece
       WHERE strpos(lower(key COLLATE "C.utf8"), lower(piece COLLATE "C.utf8")) > 0
          OR strpos(lower(content COLLATE "C.utf8"), lower(piece COLLATE "C.utf8")) > 0) hits
      FROM native WHERE corpus = %(corpus)s) counted
     WHERE hits > 0 ORDER BY hits DESC, updated_at DESC, key COLLATE "C"
"""


def corpus(chance):
    """Memories of Latin, CJK and mixed words, paths, hyphens and signs of patterns."""
    for number in range(MEMORIES):
        some = chance.choices([*PLAIN, *TEXTS, *MARKS], k=chance.randrange(1, 14))
        yield {
            "key": f"{chance.choice([*PLAIN, *MARKS])}/{number}",
            "content": " ".join(one for one in some if "http" not in one and one != "end."),
            "updated_at": after(START, chance.randrange(6)),
        }


def native(conn, number, query, limit):
    """The list that PostgreSQL gives by its own means."""
    values = {"corpus": number, "query": query, "pieces": [
        piece for piece in re.split(r"[\s/,;:]+", query) if piece]}  # fmt: skip
    found = [key for (key,) in conn.execute(BY_WORDS, values)][:limit]
    if len(found) < limit:
        others = [key for (key,) in conn.execute(BY_PIECES, values) if key not in found]
        found += others
    return found[:limit]


@pytest.fixture(scope="module")
def corpora(conn):
    """Every corpus, its queries, and the lists of PostgreSQL for them."""
    conn.execute(FILL)
    made = []
    for number in range(CORPORA):
        chance = random.Random(number)
        rows = list(corpus(chance))
        with conn.cursor() as cursor:
            cursor.executemany(
                "INSERT INTO native VALUES (%s, %s, %s, %s)",
                [(number, row["key"], row["content"], row["updated_at"]) for row in rows],
            )
        asked = []
        for _ in range(QUERIES):
            query = " ".join(chance.choices([*PLAIN, *PLAIN, *MARKS], k=chance.randrange(1, 4)))
            limit = chance.choice([1, 3, 10])
            asked.append((query, limit, native(conn, number, query, limit)))
        made.append((rows, asked))
    return made


@pytest.mark.slow
def test_lists_are_those_of_postgresql(corpora, agents):
    """A5: 300 corpora with 20 queries each."""
    differ, found = [], 0
    for rows, asked in corpora:
        store = agents.new()
        whole = [
            {"agent_id": store.agent_id, "memory_key": row["key"], "content": row["content"],
             "created_at": START, "updated_at": row["updated_at"],
             **words.columns(row["key"], row["content"])}
            for row in rows
        ]  # fmt: skip
        store.submit(AgentsCopy(table="memories", rows=whole))
        for query, limit, expected in asked:
            ours = [one["id"] for one in store.memories.search(query, limit=limit)]
            found += len(ours)
            if ours != expected:
                differ.append((query, limit, ours, expected, rows))
    assert not differ, f"{len(differ)} of {CORPORA * QUERIES}: {differ[:2]}"
    assert found > 2 * CORPORA * QUERIES
