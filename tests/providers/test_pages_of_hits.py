"""Hits in pages that begin after the id of the hit before, on every kind of store."""

import pytest

from hermes_actor.store import queries
from hermes_actor.store.search.query import Filters

TEXTS = (
    "walrus", "walrus on ice walrus", "the walrus sleeps for most of a long day", "no animal",
    "海象在冰上睡觉 walrus", "冰",
)  # fmt: skip
QUERIES = ("walrus", "walrus NOT ice", '"walrus on"', "wal*", "海象在冰", "冰", "冰 OR 睡")


def page(db, query, size, before=None, **filters):
    asked = Filters(by_id=True, before=before, **filters)
    return [hit["id"] for hit in db._query(queries.search_messages, query, asked, size, 0)]


def walked(db, query, size, arriving=lambda: None):
    found, before = [], None
    while ids := page(db, query, size, before):
        found += ids
        before = ids[-1]
        arriving()
    return found


@pytest.fixture
def filled(stores, tmp_path):
    db = stores.open(tmp_path / "state.db")
    for number in range(60):
        session = f"s{number % 7}"
        if number < 7:
            db.create_session(session, "cli" if number % 2 else "cron")
        db.append_message(session, "user", f"{TEXTS[number % len(TEXTS)]} {number}")
    return db


@pytest.mark.parametrize("query", QUERIES)
def test_pages_are_all_hits_while_messages_arrive(filled, query):
    whole = filled._query(queries.search_messages, query, Filters(), 1000, 0)
    ids = sorted((hit["id"] for hit in whole), reverse=True)
    assert ids
    added = 0

    def arrive():
        """Many of them, and long ones: ranks of all hits change."""
        nonlocal added
        for text in TEXTS:
            added += 1
            filled.append_message("s1", "user", f"{text} {text} late {added}")

    assert walked(filled, query, 4, arrive) == ids
    assert len(page(filled, query, 1000)) > len(ids)


@pytest.mark.parametrize("query", QUERIES)
def test_pages_of_one_source(filled, query):
    whole = filled._query(queries.search_messages, query, Filters(["cron"]), 1000, 0)
    expected = sorted((hit["id"] for hit in whole), reverse=True)
    found, before = [], None
    while ids := page(filled, query, 3, before, sources=["cron"]):
        found, before = found + ids, ids[-1]
    assert found == expected


def test_a_hit_has_its_snippet_and_its_neighbours(filled):
    (hit,) = filled._query(queries.search_messages, "walrus", Filters(by_id=True), 1, 0)
    assert ">>>walrus<<<" in hit["snippet"]
    assert len(hit["context"]) == 2
