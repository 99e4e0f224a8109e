"""Archive, import, removal by id, queued and default titles, on every kind of store."""

import pytest

from hermes_actor.errors import TitleInUse
from hermes_protocol.operations import MessageRow, SessionRow


def listed(db):
    return [row["id"] for row in db.list_sessions_rich()]


def test_an_archived_lineage_is_not_listed(db):
    db.create_session("a", "cli")
    db.continue_session("a", "b")
    db.create_session("other", "cli")
    assert sorted(db.archive_session("b")) == ["a", "b"]
    assert db.archive_session("b") == []
    assert listed(db) == ["other"]
    assert db.get_session("a") is not None
    assert sorted(db.archive_session("a", archived=False)) == ["a", "b"]
    assert len(listed(db)) == 2
    assert db.archive_session("nobody") == []


def test_only_ended_sessions_are_removed_by_id(db):
    for name in "abc":
        db.create_session(name, "cli")
        db.append_message(name, "user", name)
    db.end_session("a", "done")
    db.end_session("b", "done")
    db.archive_session("a")
    assert sorted(db.remove_sessions(["a", "c", "nobody"])) == ["a"]
    assert sorted(listed(db)) == ["b", "c"]
    assert db.message_count() == 2


def test_a_title_is_kept_for_a_session_that_comes_later(db):
    assert db.queue_title("later", "T")
    assert db.get_queued_title("later") == "T"
    with pytest.raises(TitleInUse):
        db.queue_title("another", "T")
    db.create_session("later", "cli")
    assert db.get_session_title("later") == "T"
    assert db.get_queued_title("later") is None
    assert not db.queue_title("later", "U")


def test_a_default_title_takes_the_next_free_one(db):
    db.create_session("a", "cli")
    db.create_session("b", "cli")
    assert db.set_default_title("a", "T") == "T"
    assert db.set_default_title("b", "T") == "T #2"
    assert db.set_default_title("b", "U") is None
    assert db.set_default_title("nobody", "T") is None


def test_a_title_moves_down_its_lineage_only(db):
    db.create_session("a", "cli")
    db.set_session_title("a", "T")
    db.continue_session("a", "b")
    assert db.move_session_title("b", "T")
    assert (db.get_session_title("a"), db.get_session_title("b")) == (None, "T")
    db.create_session("c", "cli")
    with pytest.raises(TitleInUse):
        db.move_session_title("c", "T")


def test_a_session_is_imported_once(db):
    db.create_session("there", "cli")
    db.set_session_title("there", "T")
    row = SessionRow(id="a", source="cli", started_at=5.0, title="T", parent_session_id="gone")
    messages = [MessageRow(role="user", timestamp=6.0, content="\x00json:[1]", calls=2)]
    done = db.import_session(row, messages, archived=True)
    assert (done.imported, done.detached, done.title) == (True, True, "T #2")
    assert not db.import_session(row, messages).imported
    session = db.export_session("a")
    assert (session["message_count"], session["tool_call_count"]) == (1, 2)
    assert session["messages"][0]["content"] == [1]
    assert listed(db) == ["there"]


def test_merging_indexes_is_never_an_error(db):
    db.create_session("a", "cli")
    db.append_message("a", "user", "x")
    assert db.merge_indexes() >= 0


def test_only_what_was_seen_is_deleted(db):
    db.create_session("a", "cli")
    first = db.append_message("a", "user", "one")
    db.create_session("child", "cli", parent_session_id="a")
    seen = (1, first)
    second = db.append_message("a", "user", "two")
    assert not db.delete_session_if("a", *seen)
    assert not db.delete_session_if("a", 2, first)
    assert not db.delete_session_if("nobody", 0, 0)
    assert db.message_count("a") == 2
    assert db.delete_session_if("a", 2, second)
    assert db.get_session("a") is None
    assert db.get_session("child")["parent_session_id"] is None
    assert db.delete_session_if("child", 0, 0)


def test_prune_leaves_what_has_not_ended(db):
    """Where files do not mark delegates, a child that is open loses its parent and stays."""
    db.create_session("a", "cli")
    config = {"_delegate_from": "a"}
    db.create_session("open", "cli", parent_session_id="a", model_config=config)
    db.end_session("a", "done")
    assert db.prune_sessions(-1) == 1
    assert db.get_session("open")["parent_session_id"] is None
