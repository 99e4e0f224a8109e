"""Terms that are too short for a trigram: the indexes find what reading every message finds."""

import random
import sqlite3
from contextlib import closing

import pytest

from hermes_actor import SessionDB
from hermes_actor.store.schema import NOT_ASCII_TOOL

CHARACTERS = "数据日本aB _-~!é\0\t\U0002a6d6"
TERMS = ["数", "数据", "据日", "a数", "数B", "据_", "日é", "本 数", "\U0002a6d6a", "日\t"]


@pytest.fixture
def db(path):
    with closing(SessionDB(path, mode="embedded")) as db:
        db.create_session("s", "cli")
        yield db


def found(db):
    return {
        term: sorted(hit["id"] for hit in db.search_messages(term, limit=1000)) for term in TERMS
    }


@pytest.mark.parametrize("seed", range(4))
def test_tool_names_and_texts_are_found_with_and_without_the_index(path, seed):
    chance = random.Random(seed)

    def text(most, characters=CHARACTERS):
        return "".join(chance.choices(characters, k=chance.randrange(most)))

    with closing(SessionDB(path, mode="embedded")) as db:
        db.create_session("s", "cli")
        with db.pipeline() as pipeline:
            for _ in range(300):
                pipeline.append_message(
                    "s", "tool", text(8), tool_name=text(4, CHARACTERS.replace("\0", ""))
                )
        with_index = found(db)
    with closing(sqlite3.connect(path)) as foreign:
        foreign.execute("DROP INDEX hermes_actor_messages_tool_cjk")
    with closing(SessionDB(path, mode="embedded")) as db:
        assert found(db) == with_index
    assert sum(map(bool, with_index.values())) > len(TERMS) / 2


def test_index_of_tool_names_holds_those_that_a_short_term_can_be_in(path, db):
    """Every name with a character that is not ASCII; any other would cost a page for nothing."""
    odd = ["数据", "run_数", "é", "tab\tname", "\U0002a6d6x", "数\0据"]
    for name in [*odd, "read_file", "A b-c.d~!", "", None]:
        db.append_message("s", "tool", "x", tool_name=name)
    sql = f"SELECT tool_name FROM messages WHERE {NOT_ASCII_TOOL}"
    with closing(sqlite3.connect(path)) as conn:
        held = {name for (name,) in conn.execute(sql)}
        plan = str(conn.execute(f"EXPLAIN QUERY PLAN {sql}").fetchall())
    assert held == set(odd)
    assert "hermes_actor_messages_tool_cjk" in plan
