"""Words, matches and ranks of memories beside those that PostgreSQL itself makes (A5)."""

import random

import psycopg
import pytest
from support import servers

from hermes_actor.agents import words

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
