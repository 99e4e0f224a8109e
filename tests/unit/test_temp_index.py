"""A search that no actor can prepare is complete all the same, or says that it is not."""

from contextlib import closing

import pytest
from support.files import raw

from hermes_actor import SessionDB
from hermes_actor.client.reader import Reader
from hermes_actor.errors import IndexBehind, SpawnFailed
from hermes_actor.paths import resolve_paths
from hermes_actor.store.search.matches import search_messages
from hermes_actor.store.search.query import Filters

TEXTS = [
    "a walrus in the harbour", "北京烤鸭很好吃", "京", "nothing to see", "walrus walrus", "烤鸭",
    "docker deploy", "the harbour", "北京 walrus",
]  # fmt: skip
QUERIES = ["walrus", "harbour OR docker", '"the harbour"', "walrus NOT 北京", "dock*", "北京", "京",
           "烤鸭", "北京烤鸭", "nobody"]  # fmt: skip


@pytest.fixture
def path(tmp_path):
    """A file that no process owns."""
    path = tmp_path / "state.db"
    with closing(SessionDB(path, mode="embedded")) as db:
        db.create_session("s", "cli")
        db.create_session("t", "cron")
        for number, text in enumerate(TEXTS):
            db.append_message("st"[number % 2], "user", text)
        db.search_messages("walrus")
    return path


def forget_index(path, watermark):
    """As if the writer had gone before it indexed the rows above *watermark*."""
    with raw(path) as conn:
        conn.execute("BEGIN IMMEDIATE")
        for table in ("messages_fts", "messages_fts_trigram"):
            conn.execute(f"DELETE FROM {table} WHERE rowid > ?", (watermark,))
        conn.execute("UPDATE hermes_actor_meta SET value = ? WHERE key = 'watermark'", (watermark,))
        conn.execute("COMMIT")


def look(path, text, limit=20, offset=0, sources=None, until=float("inf")):
    with closing(Reader(resolve_paths(path))) as reader:
        hits = reader.snapshot(
            search_messages, text, Filters(sources=sources), limit, offset, until
        )
    return [(hit["id"], hit["snippet"]) for hit in hits]


@pytest.mark.parametrize("watermark", [0, 4, len(TEXTS) - 1])
def test_search_alone_finds_what_is_not_indexed(path, watermark):
    expected = {text: sorted(look(path, text, until=None)) for text in QUERIES}
    assert sum(map(len, expected.values())) > len(QUERIES)
    forget_index(path, watermark)
    for text in QUERIES:
        assert sorted(look(path, text)) == expected[text], text


def test_newest_come_first_and_pages_fit_together(path):
    forget_index(path, 4)
    hits = look(path, "walrus")
    assert hits[0][0] > 4
    assert [look(path, "walrus", 1, n)[0] for n in range(len(hits))] == hits
    assert look(path, "walrus", sources=["cron"]) == []
    assert len(look(path, "北京", sources=["cron"])) == 1


def test_search_alone_says_what_it_could_not_look_at(path):
    forget_index(path, 4)
    with pytest.raises(IndexBehind) as caught:
        look(path, "walrus", until=0.0)
    assert caught.value.total == len(TEXTS)
    assert len(look(path, "walrus")) == 3


def test_search_of_a_store_whose_actor_cannot_be_had(path, monkeypatch):
    def no_actor(*_arguments, **_options):
        raise SpawnFailed("no actor")

    with closing(SessionDB(path, mode="embedded")) as db:
        forget_index(path, 4)
        monkeypatch.setattr(db._port, "catch_up", no_actor)
        assert len(db.search_messages("walrus")) == 3


@pytest.mark.parametrize("times", [1, 2])
def test_search_is_complete_although_the_index_is_lost_once_more_meanwhile(tmp_path, mode, times):
    """As by a restore, or a rebuild, between the owner's answer and the search itself."""
    path, lost = tmp_path / "state.db", 0
    with closing(SessionDB(path, mode=mode)) as db:
        db.create_session("s", "cli")
        expected = [db.append_message("s", "user", text) for text in TEXTS if "walrus" in text]
        catch_up = db._port.catch_up

        def catch_up_in_vain(*args, **kwargs):
            nonlocal lost
            catch_up(*args, **kwargs)
            if lost < times:
                lost += 1
                forget_index(path, 0)

        db._port.catch_up = catch_up_in_vain
        assert sorted(hit["id"] for hit in db.search_messages("walrus")) == expected
        # The actor may have filled it by itself before the second look.
        assert lost == times or (mode == "actor" and lost)
