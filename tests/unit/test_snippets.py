"""Snippets of texts with very many hits: FTS5 alone would take hours, and cannot be stopped."""

import subprocess
import sys

import pytest

from hermes_actor import SessionDB
from hermes_actor.sqlite import connect_alone
from hermes_actor.store import queries
from hermes_actor.store.search import snippets
from hermes_actor.store.search.query import Filters
from hermes_actor.store.search.snippets import CUT, cut_safely

CROWD = 300_000

PROGRAM = """
import sys
from hermes_actor import SessionDB

with SessionDB(sys.argv[1], mode="embedded") as db:
    db.create_session("s", "cli")
    db.append_message("s", "tool", sys.argv[2] * int(sys.argv[3]))
    db.append_message("s", "user", sys.argv[2])
    hits = db.search_messages(sys.argv[2])
    print(len(hits), *sorted(len(hit["snippet"]) for hit in hits))
"""


@pytest.mark.parametrize("word", ["walrus ", "Élan ", "漢字大 "])
def test_text_of_one_word_is_found(word, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path / "state.db", word, str(CROWD)],
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    count, *lengths = map(int, done.stdout.split())
    assert count == 2
    assert max(lengths) < 2_000
    assert min(lengths) > len(word)


def by_fts5(match, text, trigrams):
    conn = connect_alone()
    tokenizer = ", tokenize='trigram'" if trigrams else ""
    conn.execute(f"CREATE VIRTUAL TABLE hits USING fts5(content{tokenizer})")
    conn.execute("INSERT INTO hits(rowid, content) VALUES (1, ?)", (text,))
    sql = f"SELECT rowid, {CUT.format(table='hits')} FROM hits WHERE hits MATCH ?"
    found = dict(conn.execute(sql, (match,)).fetchall())
    conn.close()
    return found


FILLER = "one two three four five six seven eight nine ten. " * 300


@pytest.mark.parametrize(
    ("match", "text", "trigrams"),
    [
        ("walrus", "a walrus", False),
        ("walrus", FILLER + "a walrus swims" + FILLER, False),
        ("wal*", FILLER + "two walruses" + FILLER + "walrus", False),
        ("walrus AND otter", "walrus " + FILLER + "otter", False),
        ('"two three"', FILLER, False),
        ('"elan vital"', FILLER + "Élan vital", False),
        ('"漢字大"', FILLER + "漢字大全", True),
        ("absent", FILLER, False),
    ],
)
def test_other_texts_are_cut_as_fts5_cuts_them(match, text, trigrams):
    assert cut_safely(match, [(1, text)], trigrams=trigrams) == by_fts5(match, text, trigrams)


def test_crowded_text_is_cut_around_its_first_hit(monkeypatch):
    monkeypatch.setattr(snippets, "_CROWDED", 20)
    text = FILLER + "a walrus swims. " + "walrus " * 40
    (cut,) = cut_safely("walrus", [(7, text)], trigrams=False).values()
    assert ">>>walrus<<<" in cut
    assert cut.startswith("...")


def test_part_that_does_not_hold_all_is_shown_as_it_is():
    text = "walrus " * 2_000 + "otter"
    (cut,) = cut_safely("walrus AND otter", [(7, text)], trigrams=False).values()
    assert "walrus" in cut
    assert len(cut) < 500


@pytest.mark.parametrize("order", [{}, {"newest_first": True}, {"by_id": True}])
def test_long_and_short_hits_stand_in_one_page(order, tmp_path):
    with SessionDB(tmp_path / "state.db", mode="embedded") as db:
        db.create_session("s", "cli")
        for text in ("a walrus", FILLER + "a walrus " + FILLER, "walrus " * 3_000):
            db.append_message("s", "user", text)
        hits = db._query(queries.search_messages, "walrus", Filters(**order), 20, 0)
    found = {hit["id"]: hit["snippet"] for hit in hits}
    assert all(">>>walrus<<<" in found[number] for number in (1, 2, 3))
