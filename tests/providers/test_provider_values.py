"""What goes in comes out, on every kind of store."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_actor.errors import BadValue
from hermes_actor.providers.sql.types import decode_text, encode_text

ODD = [
    "", " ", "trailing ", "\x00", "a\x00b", "\x00\x00", "\x1a", "\x1a\x1a", "\x1a\x1b\x00",
    "\x1a\x1c00", "'\"\\%_;--", "é e\u0301", "😀🇩🇪", "مرحبا", "\u202eabc", "\ufeff", "\uffff",
    "\U0010ffff", "\r\n\t",
    b"", b"\x00\xff raw", 0, -5, 1.5, 1e20, True, [1, "\x00", None], {"a": "\x1a"}, [],
]  # fmt: skip
LARGE = "needle 北京 \x00 😀 " + "hay\nstack " * 220_000 + "\x1a"


@given(st.one_of(st.text(), st.text("\x00\x1a\x1b\x1ca"), st.binary()))
def test_the_rule_for_text_is_reversible(value):
    kept = encode_text(value)
    assert "\x00" not in kept
    assert decode_text(kept) == value


@given(st.text("\x00\x1a\x1bab", max_size=12), st.integers(0, 24))
def test_a_text_that_was_cut_is_still_a_beginning(text, length):
    assert text.startswith(decode_text(encode_text(text)[:length]))


def stored(value):
    """What a text column of SQLite makes of a value."""
    numbers = {0: "0", -5: "-5", 1.5: "1.5", 1e20: "1.0e+20", True: "1"}
    plain = isinstance(value, (int, float))
    return numbers[value] if plain else value


def test_content_comes_back_as_it_was(db):
    db.create_session("s", "cli")
    for value in ODD:
        db.append_message("s", "user", value)
    got = [message["content"] for message in db.get_messages("s")]
    assert got == [stored(value) for value in ODD]
    assert [type(value) for value in got] == [type(stored(value)) for value in ODD]


def test_other_columns_hold_odd_text_too(db):
    for number, text in enumerate(value for value in ODD if isinstance(value, str)):
        db.create_session(f"{number} {text}", text, user_id=text, system_prompt=text, model=text)
        row = db.get_session(f"{number} {text}")
        assert (row["source"], row["user_id"], row["system_prompt"], row["model"]) == (text,) * 4
        db.set_meta(f"k{text}", text)
        assert db.get_meta(f"k{text}") == text


def test_a_key_is_not_the_same_with_a_blank_or_in_capitals(db):
    for key in ("k", "k ", "K", "ķ", "k\x00"):
        db.set_meta(key, repr(key))
    assert [db.get_meta(key) for key in ("k", "k ", "K", "ķ", "k\x00")] == [
        repr(key) for key in ("k", "k ", "K", "ķ", "k\x00")
    ]


def test_a_large_message(db):
    db.create_session("s", "cli")
    db.append_message("s", "user", LARGE, reasoning=LARGE)
    (message,) = db.get_messages("s")
    assert message["content"] == LARGE
    assert message["reasoning"] == LARGE
    assert db.list_sessions_rich()[0]["preview"] == "needle 北京"
    assert [hit["id"] for hit in db.search_messages("needle")] == [message["id"]]


def test_a_large_message_of_words_that_are_all_different(db):
    """An index that has no room for them must not cost the message."""
    text = " ".join(f"w{number}x" for number in range(200_000))
    db.create_session("s", "cli")
    db.append_message("s", "user", text)
    assert db.get_messages("s")[0]["content"] == text
    # A FULLTEXT index moves so many words from its memory to its tables beside the searches, and
    # one that falls into this move does not see them.
    deadline = time.monotonic() + 60
    while not db.search_messages("w7x") and time.monotonic() < deadline:
        time.sleep(0.1)
    assert len(db.search_messages("w7x")) == 1


def test_lone_surrogates(db):
    db.create_session("s", "cli")
    with pytest.raises(UnicodeEncodeError):
        db.append_message("s", "user", "a\ud800b")
    db.set_meta("k", "a\ud800b")
    assert db.get_meta("k") == "a\ufffdb"
    assert db.message_count("s") == 0


def test_lone_surrogates_in_questions(db):
    """Half an emoji comes from texts that were cut at a number of bytes."""
    db.create_session("s\ud83d", "cli")
    assert db.get_session("s\ud83d")["id"] == "s\ufffd"
    db.append_message("s\ufffd", "user", "the yellow walrus 针灸")
    for question in ("walrus \ud83d", "\udcffwalrus", "yellow walrus\ud800"):
        assert isinstance(db.search_messages(question), list)
    assert db.search_messages("\ud83d") == []
    assert len(db.search_messages("walrus")) == 1
    assert db.search_sessions("\ud800") == []
    assert db.get_session("\udfff") is None


def test_a_value_that_is_no_number_is_refused_by_servers(stores, db):
    db.create_session("s", "cli")
    if not stores.on_server:
        db.append_message("s", "user", "x", token_count="many")
        assert db.get_messages("s")[0]["token_count"] == "many"
        return
    with pytest.raises(BadValue):
        db.append_message("s", "user", "x", token_count="many")
    assert db.message_count("s") == 0
    db.append_message("s", "user", "x", token_count="12")
    assert db.get_messages("s")[0]["token_count"] == 12
