"""Files of later schema versions are read and written, and keep what only those versions know."""

import pytest
from support.files import columns, dump, query, raw, versions
from support.newer_files import FOREIGN_ROWS, build, message

from hermes_actor.paths import resolve_paths

LATER = range(12, 23)
WITH_ACTIVE = range(14, 23)
TAKEN_BACK = {"active": 0, "compacted": 0}
SUMMARISED = {"active": 0, "compacted": 1}


def found(db, text):
    return [hit["id"] for hit in db.search_messages(text)]


def contents(db, session_id="s1"):
    return [m["content"] for m in db.get_messages(session_id)]


def kept(path):
    return [c for (c,) in query(path, "SELECT content FROM messages ORDER BY id")]


def mixed(path, **options):
    """Four messages: one taken back, one summarised away, two live."""
    return build(
        path,
        messages=(
            message("apple taken 北京烤鸭一 back", 1.0, **TAKEN_BACK),
            message("apple gone 北京烤鸭二 summed", 2.0, **SUMMARISED),
            message("apple live 北京烤鸭三 one", 3.0, active=1),
            message("apple live 北京烤鸭四 two", 4.0, active=1, role="assistant"),
        ),
        **options,
    )


# Numbers and shape.


@pytest.mark.parametrize("version", LATER)
def test_number_and_shape_stay(open_store, path, version):
    build(path, version, messages=(message("words", 1.0),))
    before = dump(path)
    open_store(path).close()
    assert versions(path) == [version]
    assert dump(path, ours=False) == before


@pytest.mark.parametrize(("version", "notes"), [(22, 0), (23, 1), (99, 1)])
def test_version_that_is_not_known_is_noted_when_the_file_is_opened(
    open_store, path, version, notes, caplog
):
    build(path, 22)
    with raw(path) as conn:
        conn.execute("UPDATE schema_version SET version = ?", (version,))
    db = open_store(path)
    db.create_session("s", "cli")
    db.append_message("s", "user", "still written")
    assert contents(db, "s") == ["still written"]
    log = resolve_paths(path).log  # of an actor
    told = caplog.text + (log.read_text() if log.exists() else "")
    note = f"{path} has schema version {version}; the newest that this build was tested with is 22"
    assert told.count(note) == told.count("schema version") == notes
    assert versions(path) == [version]


@pytest.mark.parametrize("version", LATER)
def test_file_is_read_and_written(open_store, path, version):
    db = open_store(build(path, version, messages=(message("old words", 1.0),)))
    assert db.append_message("s1", "user", "new words 北京烤鸭", tool_name="t") == 2
    assert contents(db) == ["old words", "new words 北京烤鸭"]
    assert sorted(found(db, "words")) == [1, 2]
    assert found(db, "北京烤鸭") == [2]
    db.create_session("s2", "cli", parent_session_id="s1")
    db.replace_messages("s2", [{"role": "user", "content": "copy"}])
    assert db.delete_session("s1")
    assert (contents(db, "s2"), found(db, "words")) == (["copy"], [])
    db.close()
    assert versions(path) == [version]
    assert query(path, "PRAGMA integrity_check") == [("ok",)]
    assert query(path, "PRAGMA foreign_key_check") == []


def test_columns_decide_and_not_the_number(open_store, path):
    db = open_store(build(path, 13, messages=(message("no active column", 1.0),)))
    assert contents(db) == ["no active column"]
    db.close()
    assert "active" not in columns(path, "messages")


def test_active_column_counts_whatever_the_number(open_store, path):
    mixed(path)
    query(path, "UPDATE schema_version SET version = 11")
    db = open_store(path)
    assert contents(db) == ["apple live 北京烤鸭三 one", "apple live 北京烤鸭四 two"]


def test_row_dicts_carry_the_extra_keys(open_store, path):
    db = open_store(mixed(path))
    assert list(db.get_session("s1")) == columns(path, "sessions")
    assert list(db.get_messages("s1")[0]) == columns(path, "messages")


# What is hidden.


def test_messages_taken_back_or_summarised_are_not_read(open_store, path):
    db = open_store(mixed(path))
    live = ["apple live 北京烤鸭三 one", "apple live 北京烤鸭四 two"]
    assert contents(db) == live
    assert [m["content"] for m in db.export_session("s1")["messages"]] == live


def test_replay_leaves_them_out(open_store, path):
    db = open_store(mixed(path))
    live = [
        ("user", "apple live 北京烤鸭三 one"),
        ("assistant", "apple live 北京烤鸭四 two"),
    ]
    for ancestors in (False, True):
        replay = db.get_messages_as_conversation("s1", include_ancestors=ancestors)
        assert [(m["role"], m["content"]) for m in replay] == live


def test_preview_is_of_the_first_live_message(open_store, path):
    db = open_store(mixed(path))
    assert db.list_sessions_rich()[0]["preview"] == "apple live 北京烤鸭三 one"


def test_search_finds_live_and_summarised_but_not_taken_back(open_store, path):
    db = open_store(mixed(path))
    assert sorted(found(db, "apple")) == [2, 3, 4]
    assert sorted(found(db, "北京烤鸭")) == [2, 3, 4]
    assert sorted(found(db, "北京")) == [2, 3, 4]
    assert (found(db, "taken"), found(db, "北京烤鸭一"), found(db, "鸭一")) == ([], [], [])


def test_search_before_compaction_existed_finds_live_only(open_store, path):
    build(
        path,
        14,
        messages=(message("apple taken", 1.0, active=0), message("apple live", 2.0, active=1)),
    )
    assert found(open_store(path), "apple") == [2]


def test_limit_counts_visible_hits_only(open_store, path):
    build(
        path,
        messages=(
            *(message("apple", float(i), **TAKEN_BACK) for i in range(30)),
            message("apple among longer words", 40.0, active=1),
        ),
    )
    assert [hit["id"] for hit in open_store(path).search_messages("apple", limit=1)] == [31]


def test_context_is_made_of_live_messages(open_store, path):
    build(
        path,
        messages=(
            message("before", 1.0, active=1),
            message("taken", 2.0, **TAKEN_BACK),
            message("target", 3.0, active=1),
            message("summed", 4.0, **SUMMARISED),
            message("after", 5.0, active=1),
        ),
    )
    (hit,) = open_store(path).search_messages("target")
    assert [c["content"] for c in hit["context"]] == ["before", "target", "after"]


@pytest.mark.parametrize("by_activity", [False, True])
def test_archived_and_delegate_sessions_are_not_listed(open_store, path, by_activity):
    build(
        path,
        sessions=(
            {"id": "shown", "source": "cli", "started_at": 1.0, "model_config": '{"a": 1}'},
            {"id": "plain text", "source": "cli", "started_at": 2.0, "model_config": "not json"},
            {"id": "archived", "source": "cli", "started_at": 3.0, "archived": 1},
            {
                "id": "delegate",
                "source": "cli",
                "started_at": 4.0,
                "model_config": '{"_delegate_from": "__orphaned__"}',
            },
            {"id": "s1", "source": "cli", "started_at": 5.0, "archived": 0},
        ),
    )
    db = open_store(path)
    listed = [s["id"] for s in db.list_sessions_rich(order_by_last_active=by_activity)]
    assert listed == ["s1", "plain text", "shown"]
    assert db.list_sessions_rich(limit=2, order_by_last_active=by_activity)[1]["id"] == "plain text"
    assert db.get_session("archived")["archived"] == 1
    assert db.get_session("delegate")["id"] == "delegate"


# What is touched.


def test_replace_touches_live_messages_only(open_store, path):
    db = open_store(mixed(path))
    db.replace_messages("s1", [{"role": "user", "content": "apple new"}])
    assert contents(db) == ["apple new"]
    assert db.get_session("s1")["message_count"] == 1
    assert sorted(found(db, "apple")) == [2, 5]
    db.close()
    assert kept(path) == [
        "apple taken 北京烤鸭一 back",
        "apple gone 北京烤鸭二 summed",
        "apple new",
    ]


def test_clear_touches_live_messages_only(open_store, path):
    db = open_store(mixed(path))
    db.clear_messages("s1")
    assert (contents(db), db.get_session("s1")["message_count"]) == ([], 0)
    assert found(db, "apple") == [2]
    db.close()
    assert kept(path) == ["apple taken 北京烤鸭一 back", "apple gone 北京烤鸭二 summed"]


def test_delete_takes_hidden_messages_along(open_store, path):
    db = open_store(mixed(path))
    assert db.delete_session("s1")
    assert found(db, "apple") == []
    db.close()
    assert kept(path) == []


@pytest.mark.parametrize("version", WITH_ACTIVE)
@pytest.mark.parametrize("has_default", [True, False])
def test_written_messages_are_live_even_where_the_column_has_no_default(
    open_store, path, version, has_default
):
    db = open_store(build(path, version, active_default=has_default))
    db.append_message("s1", "user", "appended")
    db.create_session("s2", "cli")
    db.replace_messages("s2", [{"role": "user", "content": "replaced"}])
    assert (contents(db, "s1"), contents(db, "s2")) == (["appended"], ["replaced"])
    assert (found(db, "appended"), found(db, "replaced")) == ([1], [2])
    db.close()
    assert query(path, "SELECT active FROM messages") == [(1,), (1,)]


def test_usage_rows_go_with_their_session(open_store, path, clock):
    clock.at(100 * 86400)
    build(
        path,
        sessions=(
            {"id": "s1", "source": "cli", "started_at": 1.0},
            {"id": "old", "source": "cli", "started_at": 1.0, "ended_at": 2.0},
            {"id": "stays", "source": "cli", "started_at": 1.0},
        ),
        usage=tuple({"session_id": name, "model": "m"} for name in ("s1", "old", "stays")),
    )
    db = open_store(path)
    assert (db.delete_session("s1"), db.prune_sessions()) == (True, 1)
    db.close()
    assert query(path, "SELECT session_id FROM session_model_usage") == [("stays",)]


def test_tables_of_others_are_left_alone(open_store, path, clock):
    mixed(path)
    before = dump(path)
    db = open_store(path)
    clock.at(300)
    db.create_session("s2", "cli", parent_session_id="s1")
    db.append_message("s2", "user", "words")
    db.update_token_counts("s2", input_tokens=5, model="m")
    db.set_session_title("s2", "T")
    db.end_session("s1", "done")
    clock.at(1e9)
    assert db.prune_sessions(older_than_days=1) == 1
    db.delete_session("s2")
    db.vacuum()
    db.close()
    after = dump(path, ours=False)
    assert after["schema"] == before["schema"]
    for table in FOREIGN_ROWS:
        assert after[table] == before[table] != []


def test_columns_of_others_survive_our_updates(open_store, path):
    build(
        path,
        sessions=(
            {
                "id": "s1",
                "source": "cli",
                "started_at": 1.0,
                "session_key": "k",
                "cwd": "/home",
                "rewind_count": 3,
                "profile_name": "p",
            },
        ),
    )
    db = open_store(path)
    db.update_token_counts("s1", input_tokens=5)
    db.append_message("s1", "user", "x")
    db.set_session_title("s1", "T")
    db.end_session("s1", "done")
    row = db.get_session("s1")
    assert [row[k] for k in ("session_key", "cwd", "rewind_count", "profile_name")] == [
        "k",
        "/home",
        3,
        "p",
    ]


# Lineage: marks in model_config instead of times.

FIRST_WITH_MARKS = 19


def child(session_id, at, parent, **values):
    return {"id": session_id, "source": "cli", "started_at": at, "parent_session_id": parent,
            **values}  # fmt: skip


COMPRESSED = {"end_reason": "compression", "ended_at": 200.0}
ROOT = {"id": "root", "source": "cli", "started_at": 100.0, **COMPRESSED}
EARLY = child("early", 150.0, "root")  # started before its parent had ended
BRANCH = child("branch", 300.0, "root", model_config='{"_branched_from": "root"}')
DELEGATE = child("delegate", 310.0, "root", model_config='{"_delegate_from": "root"}')
TOOL = child("tool", 320.0, "root", source="tool")


@pytest.mark.parametrize("version", [14, 16, FIRST_WITH_MARKS, 22])
def test_continuation_is_found_by_marks_where_there_are_any(open_store, path, version):
    db = open_store(build(path, version, sessions=(ROOT, EARLY, BRANCH, DELEGATE, TOOL)))
    marked = version >= FIRST_WITH_MARKS
    assert db.get_compression_tip("root") == ("early" if marked else "tool")
    rows = {row["id"]: row for row in db.list_sessions_rich()}
    assert set(rows) == {"branch", "early" if marked else "tool"}
    if marked:
        assert rows["early"]["_lineage_root_id"] == "root"


@pytest.mark.parametrize(
    ("children", "tip"),
    [
        ((child("open", 300.0, "root"), child("over", 400.0, "root", ended_at=500.0)), "open"),
        (
            (
                child("open", 400.0, "root"),
                child("further", 300.0, "root", ended_at=350.0, end_reason="compression"),
                child("end", 350.0, "further"),
            ),
            "end",
        ),
        ((child("one", 300.0, "root"), child("two", 400.0, "root")), "one"),
    ],
)
def test_of_several_continuations(open_store, path, children, tip):
    late = {"session_id": "one", "role": "user", "content": "late", "timestamp": 999.0}
    messages = (late,) if any(row["id"] == "one" for row in children) else ()
    db = open_store(build(path, sessions=(ROOT, *children), messages=messages))
    assert db.get_compression_tip("root") == tip


def test_activity_counts_along_marked_lineages(open_store, path):
    other = {"id": "other", "source": "cli", "started_at": 500.0}
    late = {"session_id": "early", "role": "user", "content": "late", "timestamp": 999.0}
    db = open_store(build(path, sessions=(ROOT, EARLY, other), messages=(late,)))
    rows = db.list_sessions_rich(order_by_last_active=True)
    assert [row["id"] for row in rows] == ["early", "other"]


def test_resume_goes_to_the_deepest_with_messages(open_store, path):
    chain = (
        {"id": "a", "source": "cli", "started_at": 1.0},
        child("b", 2.0, "a"),
        child("c", 3.0, "b"),
        child("d", 4.0, "c"),
        child("side", 9.0, "a", model_config='{"_branched_from": "a"}'),
    )
    texts = tuple(
        {"session_id": one, "role": "user", "content": "x", "timestamp": 5.0}
        for one in ("b", "c", "side")
    )
    db = open_store(build(path, sessions=chain, messages=texts))
    assert [db.resolve_resume_session_id(one) for one in "abcd"] == ["c", "b", "c", "d"]


def test_continuation_of_a_branch_is_no_branch(open_store, path):
    marked = {"id": "s1", "source": "cli", "started_at": 1.0,
              "model_config": '{"_branched_from": "x", "kept": 1}'}  # fmt: skip
    db = open_store(build(path, sessions=(marked,)))
    db.continue_session("s1", "s2")
    assert db.get_compression_tip("s1") == "s2"
    assert db.get_session("s2")["model_config"] == '{"kept":1}'


def test_delegates_go_with_their_session(open_store, path, tmp_path):
    below = child("below", 330.0, "delegate", model_config='{"_delegate_from": "delegate"}')
    db = open_store(build(path, sessions=(ROOT, EARLY, DELEGATE, below)))
    for one in ("delegate", "below", "early"):
        (tmp_path / f"{one}.json").touch()
    assert db.delete_session("root", tmp_path)
    assert {row["id"] for row in db.search_sessions()} == {"early"}
    assert db.get_session("early")["parent_session_id"] is None
    assert [one.name for one in tmp_path.glob("*.json")] == ["early.json"]


def test_a_continuation_stays_with_its_chat_and_place(open_store, path):
    """A gateway finds a conversation by these columns; without them a chat would lose its own."""
    build(path, 22)
    place = {
        "user_id": "u", "session_key": "k", "chat_id": "c", "chat_type": "dm", "thread_id": "t",
        "display_name": "Ann", "origin_json": "{}", "cwd": "w", "git_branch": "b",
        "git_repo_root": "r", "profile_name": "p",
    }  # fmt: skip
    of_itself = {"expiry_finalized": 1, "rewind_count": 3, "compression_failure_error": "e"}
    db = open_store(path)
    db.create_session("old", "telegram")
    columns = {**place, **of_itself}
    assigned = ", ".join(f"{name} = ?" for name in columns)
    db._conn.execute(f"UPDATE sessions SET {assigned} WHERE id = 'old'", tuple(columns.values()))
    db.continue_session("old", "new")
    child = db.get_session("new")
    assert {name: child[name] for name in place} == place
    assert [child[name] for name in of_itself] == [0, 0, None]
