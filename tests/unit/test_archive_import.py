"""Archive, removal by id, import, kept and default titles: what the command line stands on."""

import contextlib
import sqlite3

import pytest
from support import newer_files
from support.actors import end_actors

from hermes_actor.errors import ConstraintFailed, TitleInUse
from hermes_protocol.operations import Imported, MessageRow, SessionRow


def listed(db):
    return [row["id"] for row in db.list_sessions_rich()]


def lineage(db, clock):
    """root → tip over compression, a delegate of the root, and another session."""
    for at, session_id, parent in ((1, "root", None), (2, "delegate", "root"), (5, "other", None)):
        clock.at(at)
        db.create_session(session_id, "cli", parent_session_id=parent)
    clock.at(10)
    db.continue_session("root", "tip")


# --- archive ---------------------------------------------------------------------------------


def test_archive_hides_the_lineage_and_nothing_else(db, clock):
    lineage(db, clock)
    assert db.archive_session("tip") == ["root", "tip"]
    assert db.archive_session("root") == []
    assert listed(db) == ["other"]
    assert db.list_sessions_rich(order_by_last_active=True) == db.list_sessions_rich()
    assert db.archive_session("root", archived=False) == ["root", "tip"]
    assert listed(db) == ["other", "tip"]


def test_archive_without_a_session(db):
    assert db.archive_session("nobody") == []


def test_archive_mark_goes_with_the_session(db, clock):
    lineage(db, clock)
    db.archive_session("other")
    db.delete_session("other")
    clock.at(20)
    db.create_session("other", "cli")
    assert "other" in listed(db)


def test_archive_uses_the_column_of_newer_files(open_store, tmp_path):
    path = newer_files.build(tmp_path / "state.db", 22)
    db = open_store(path)
    db.create_session("s", "cli")
    assert db.archive_session("s") == ["s"]
    row = db.get_session("s")
    assert row["archived"] == 1
    assert db._conn.execute("SELECT COUNT(*) FROM hermes_actor_archived").fetchone()[0] == 0
    assert "s" not in listed(db)


def test_lineage_of_a_circle_ends(db, clock):
    lineage(db, clock)
    db._conn.execute(
        "UPDATE sessions SET parent_session_id = 'tip', started_at = 99 WHERE id = 'root'"
    )
    db._conn.execute(
        "UPDATE sessions SET ended_at = 50, end_reason = 'compression' WHERE id = 'tip'"
    )
    assert sorted(db.archive_session("root")) == ["root", "tip"]


# --- removal ---------------------------------------------------------------------------------


def test_remove_takes_ended_sessions_only(db, tmp_path):
    folder = tmp_path / "sessions"
    folder.mkdir()
    for session_id in ("ended", "open"):
        db.create_session(session_id, "cli")
        db.append_message(session_id, "user", "needle")
        (folder / f"{session_id}.json").touch()
    db.end_session("ended", "x")
    told = []
    assert db.remove_sessions(["ended", "open", "nobody"], folder, told.append) == ["ended"]
    assert told[-1] == 1
    assert {path.name for path in folder.iterdir()} == {"open.json"}
    assert [hit["session_id"] for hit in db.search_messages("needle")] == ["open"]


def test_remove_goes_on_in_slices(db):
    with db.pipeline() as pipeline:
        for number in range(450):
            pipeline.create_session(f"s{number}", "cli")
            pipeline.end_session(f"s{number}", "x")
    db.replace_messages("s0", [{"role": "user", "content": "x"}] * 2500)
    ids = [f"s{number}" for number in range(450)]
    told = []
    assert sorted(db.remove_sessions(ids, progress=told.append)) == sorted(ids)
    assert len(told) >= 4
    assert db.session_count() == db.message_count() == 0


# --- import ----------------------------------------------------------------------------------


def session(session_id, **columns):
    return SessionRow(id=session_id, source="cli", started_at=5.0, **columns)


def test_import_counts_by_itself(db):
    rows = [
        MessageRow(role="user", timestamp=6.0, content="needle"),
        MessageRow(role="assistant", timestamp=7.0, tool_calls="[{}, {}]", calls=2),
    ]
    assert db.import_session(session("s", title="t"), rows) == Imported(imported=True, title="t")
    row = db.get_session("s")
    assert (row["message_count"], row["tool_call_count"], row["started_at"]) == (2, 2, 5.0)
    assert len(db.search_messages("needle")) == 1
    assert db.import_session(session("s"), []) == Imported()
    assert db.message_count("s") == 2


def test_import_that_fails_leaves_nothing(db):
    rows = [MessageRow(role="user", timestamp=6.0), MessageRow(role=None, timestamp=7.0)]
    with pytest.raises(ConstraintFailed):
        db.import_session(session("s", title="t"), rows)
    assert (db.get_session("s"), db.message_count()) == (None, 0)
    assert db.import_session(session("s"), rows[:1]).imported


def test_import_of_a_large_session(db):
    rows = [MessageRow(role="user", timestamp=float(n), content="x" * 10_000) for n in range(400)]
    assert db.import_session(session("s"), rows, archived=True).imported
    assert db.message_count("s") == 400
    assert listed(db) == []


# --- titles ----------------------------------------------------------------------------------


def test_kept_title(db):
    assert db.queue_title("s", " my  plan ")
    assert db.get_queued_title("s") == "my plan"
    with pytest.raises(TitleInUse, match="'my plan' is already in use by session s"):
        db.queue_title("t", "my plan")
    assert db.queue_title("s", "other")
    db.create_session("s", "cli")
    assert (db.get_session_title("s"), db.get_queued_title("s")) == ("other", None)
    assert db.queue_title("s", "late") is False
    assert db.get_session_title("s") == "other"


def test_kept_title_is_not_taken_by_a_session_that_exists(db):
    db.queue_title("s", "plan")
    db.create_session("s", "cli")
    db.set_session_title("s", None)
    db.create_session("s", "cli")
    assert db.get_session_title("s") is None


def test_default_title(db):
    db.create_session("a", "cli")
    db.create_session("b", "cli")
    assert db.set_default_title("a", "fix") == "fix"
    assert db.set_default_title("a", "again") is None
    assert db.set_default_title("b", "fix") == "fix #2"
    assert db.set_default_title("nobody", "x") is None
    assert db.set_default_title("b", "\u200b") is None


def test_title_moves_from_an_ancestor_only(db, clock):
    lineage(db, clock)
    db.set_session_title("root", "talk")
    assert db.move_session_title("tip", "talk")
    assert (db.get_session_title("root"), db.get_session_title("tip")) == (None, "talk")
    for session_id in ("root", "delegate", "other", "nobody"):
        with pytest.raises(TitleInUse):
            db.move_session_title(session_id, "talk")


# --- indexes and old files -------------------------------------------------------------------


def test_merging_keeps_what_is_indexed(db):
    db.create_session("s", "cli")
    for number in range(30):
        db.append_message("s", "user", f"needle {number} 大别野")
        db.search_messages("needle")
    told = []
    assert db.merge_indexes(told.append) == 2
    assert len(db.search_messages("needle", limit=100)) == 30
    assert len(db.search_messages("大别野", limit=100)) == 30
    assert {*told} <= {"messages_fts", "messages_fts_trigram"}


def test_file_of_an_earlier_build_gets_the_new_tables(open_store, tmp_path):
    path = tmp_path / "state.db"
    db = open_store(path)
    db.create_session("s", "cli")
    before = db._conn.execute("SELECT value FROM hermes_actor_meta WHERE key = 'commit_no'")
    count = before.fetchone()[0]
    db.close()
    end_actors(path)
    with contextlib.closing(sqlite3.connect(path)) as conn:
        for table in ("archived", "titles", "stale"):
            conn.execute(f"DROP TABLE hermes_actor_{table}")
    db = open_store(path)
    assert db.queue_title("later", "kept")
    assert db.archive_session("s") == ["s"]
    after = db._conn.execute("SELECT value FROM hermes_actor_meta WHERE key = 'commit_no'")
    assert after.fetchone()[0] == count + 2


@pytest.mark.parametrize("small", [True, False])
def test_automatic_vacuum_leaves_a_large_file_to_its_user(db, clock, monkeypatch, small):
    """It would keep other writers waiting for as long as it takes."""
    if not small:
        monkeypatch.setattr("hermes_actor.api.maintenance._SMALL_BYTES", 0)
    clock.at(1_000_000.0)
    db.create_session("old", "cli")
    db.end_session("old", "done")
    clock.at(1_000_000.0 + 100 * 86_400.0)
    result = db.maybe_auto_prune_and_vacuum(retention_days=90)
    assert result == {"skipped": False, "pruned": 1, "vacuumed": small}
    db.vacuum()
