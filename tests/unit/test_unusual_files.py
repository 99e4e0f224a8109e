"""Files of old and newer versions, incomplete ones, locked ones, and those that are refused."""

import os
import shutil
import sqlite3
from pathlib import Path

import pytest
from support import newer_files, old_files
from support.actors import stop_actor
from support.files import (
    FTS_TABLES,
    TRIGGERS,
    assert_current,
    columns,
    dump,
    fts_rows,
    is_inline,
    names,
    query,
    raw,
    versions,
    write_lock,
)
from support.processes import own_mounts, run_python

from hermes_actor import SessionDB, errors, hermes_state

PEER_FILE = Path(__file__).parent.parent / "data" / "hermes-agent-0.14.0.db"
W1_ROWS = [(1, "salt 北京烤鸭 pepper  "), (2, " OLDTOOLX [1]")]


def found(db, text):
    return [hit["id"] for hit in db.search_messages(text)]


def drop(path, *objects):
    with raw(path) as connection:
        for kind, name in objects:
            connection.execute(f"DROP {kind} {name}")


def titled(*rows):
    return [{"id": name, "source": "cli", "started_at": at, "title": "T"} for name, at in rows]


# New files and the two ways to say "new".


def test_missing_file_is_created_with_its_folders(open_store, tmp_path):
    path = tmp_path / "a" / "b" / "state.db"
    open_store(path).close()
    assert_current(path)


def test_empty_file_becomes_a_database(open_store, path):
    path.touch()
    open_store(path).close()
    assert_current(path)


def test_new_file_keeps_sqlite_defaults(open_store, path):
    open_store(path).close()
    for pragma, value in {
        "journal_mode": "wal",
        "page_size": 4096,
        "user_version": 0,
        "application_id": 0,
        "auto_vacuum": 0,
    }.items():
        assert query(path, f"PRAGMA {pragma}") == [(value,)], pragma


def test_a_path_may_be_a_text(mode, path):
    with SessionDB(str(path), mode=mode) as db:
        assert db.db_path == path


def test_db_path_is_the_given_path(open_store, path):
    assert open_store(path).db_path == path


def test_two_files_in_one_folder_work_at_the_same_time(open_store, tmp_path):
    one, two = open_store(tmp_path / "one.db"), open_store(tmp_path / "two.db")
    for db, text in ((one, "first"), (two, "second")):
        db.create_session("s", "cli")
        db.append_message("s", "user", text)
    assert [m["content"] for m in one.get_messages("s")] == ["first"]
    assert [m["content"] for m in two.get_messages("s")] == ["second"]
    assert (found(one, "second"), found(two, "second")) == ([], [1])


# Versions and numbers.


@pytest.mark.parametrize("version", range(1, 11))
def test_old_version_becomes_11(open_store, path, version):
    db = open_store(old_files.build(path, version))
    assert [fts_rows(db, table) for table in FTS_TABLES] == [W1_ROWS, W1_ROWS]
    assert (found(db, "OLDTOOLX"), found(db, "北京烤鸭")) == ([2], [1])
    db.close()
    assert_current(path)


@pytest.mark.parametrize("version", range(1, 11))
def test_second_open_changes_nothing(open_store, path, version):
    open_store(old_files.build(path, version)).close()
    before = dump(path, ours=False)
    open_store(path).close()
    assert dump(path, ours=False) == before


def test_file_of_the_peer_opens_and_keeps_all_it_holds(open_store, path):
    shutil.copy(PEER_FILE, path)
    before = dump(path)
    db = open_store(path)
    assert (found(db, "peer"), found(db, "port_scan"), found(db, "北京烤鸭")) == ([1], [3], [1])
    db.append_message("p1", "user", "written by us 上海小笼包")
    assert (sorted(found(db, "written")), found(db, "上海小笼包")) == ([1, 4], [4])
    assert db.delete_session("p1")
    assert [fts_rows(db, table) for table in FTS_TABLES] == [[], []]
    db.close()
    assert dump(path, ours=False)["schema"] == before["schema"]


@pytest.mark.parametrize("number", [0, -3])
def test_version_zero_or_negative_gets_the_full_migration(open_store, path, number):
    db = open_store(old_files.build(path, 1, numbers=[number]))
    assert [fts_rows(db, table) for table in FTS_TABLES] == [W1_ROWS, W1_ROWS]
    db.close()
    assert_current(path)


@pytest.mark.parametrize("number", [22, 99])
def test_newer_version_number_is_left_untouched(open_store, path, number):
    db = open_store(old_files.build(path, 11, numbers=[number]))
    db.append_message("s2", "user", "new words")
    assert found(db, "words") == [3]
    db.close()
    assert versions(path) == [number]


def test_newer_number_runs_no_step_but_gets_missing_columns(open_store, path):
    open_store(old_files.build(path, 9, numbers=[99])).close()
    assert versions(path) == [99]
    assert {"handoff_state", "handoff_error"} < set(columns(path, "sessions"))


@pytest.mark.parametrize("statement", ["DELETE FROM schema_version", "DROP TABLE schema_version"])
def test_old_file_without_a_number_is_judged_by_its_index(open_store, path, statement):
    old_files.build(path, 5)
    with raw(path) as connection:
        connection.execute(statement)
    db = open_store(path)
    assert [fts_rows(db, table) for table in FTS_TABLES] == [W1_ROWS, W1_ROWS]
    assert (found(db, "OLDTOOLX"), found(db, "北京烤鸭")) == ([2], [1])
    db.close()
    assert_current(path)


@pytest.mark.parametrize(
    ("numbers", "after"), [([10, 7], [11, 11]), ([7, 10], [11, 11]), ([99, 7], [99, 7])]
)
def test_first_of_two_numbers_decides_and_all_are_raised(open_store, path, numbers, after):
    open_store(old_files.build(path, 10, numbers=numbers)).close()
    assert versions(path) == after


# Indexes that are missing or of another shape.


def test_missing_full_text_tables_are_created_and_filled(open_store, path):
    old_files.build(path, 11)
    drop(path, *(("TRIGGER", name) for name in TRIGGERS), *(("TABLE", name) for name in FTS_TABLES))
    db = open_store(path)
    assert found(db, "salt") == [1]
    assert [fts_rows(db, table) for table in FTS_TABLES] == [W1_ROWS, W1_ROWS]
    db.append_message("s1", "user", "salt again")
    assert sorted(found(db, "salt")) == [1, 3]
    db.close()
    assert_current(path)


def test_missing_triggers_are_created_and_what_they_missed_is_indexed(open_store, path):
    old_files.build(path, 11)
    drop(path, *(("TRIGGER", name) for name in TRIGGERS))
    with raw(path) as connection:
        connection.execute("DELETE FROM messages WHERE id = 1")
        connection.execute("UPDATE messages SET tool_name = 'NEWTOOLX' WHERE id = 2")
        old_files.insert(
            connection,
            "messages",
            {"session_id": "s1", "role": "user", "content": "unseen 上海小笼包", "timestamp": 3.0},
        )
    db = open_store(path)
    assert (found(db, "unseen"), found(db, "上海小笼包")) == ([3], [3])
    assert (found(db, "salt"), found(db, "OLDTOOLX"), found(db, "NEWTOOLX")) == ([], [], [2])
    db.close()
    assert_current(path)


@pytest.mark.parametrize("trigger", sorted(TRIGGERS))
def test_a_single_missing_trigger_is_made_again(open_store, path, trigger):
    old_files.build(path, 11)
    drop(path, ("TRIGGER", trigger))
    db = open_store(path)
    db.append_message("s1", "user", "fresh 上海小笼包")
    assert (found(db, "fresh"), found(db, "上海小笼包")) == ([3], [3])
    db.clear_messages("s1")
    assert [fts_rows(db, table) for table in FTS_TABLES] == [[], []]
    db.close()
    assert_current(path)


def test_missing_trigram_table_is_created_and_filled(open_store, path):
    old_files.build(path, 11)
    drop(
        path,
        *(("TRIGGER", name) for name in TRIGGERS if "trigram" in name),
        ("TABLE", "messages_fts_trigram"),
    )
    db = open_store(path)
    assert (found(db, "北京烤鸭"), found(db, "北京")) == ([1], [1])
    assert fts_rows(db, "messages_fts_trigram") == W1_ROWS
    db.close()
    assert_current(path)


def test_version_11_with_external_content_indexes_keeps_them_and_stays_searchable(open_store, path):
    old_files.build(path, 10, numbers=[11])
    db = open_store(path)
    db.append_message("s1", "user", "fresh 上海小笼包")
    assert (found(db, "salt"), found(db, "fresh"), found(db, "上海小笼包")) == ([1], [3], [3])
    db.clear_messages("s1")
    assert (found(db, "salt"), found(db, "fresh"), found(db, "上海小笼包")) == ([], [], [])
    db.close()
    assert [is_inline(path, table) for table in FTS_TABLES] == [False, False]


# Titles.


def test_of_two_equal_titles_the_newest_keeps_it(open_store, path):
    sessions = [*titled(("a", 10.0), ("c", 30.0), ("b", 20.0)), {**old_files.SESSIONS[0]}]
    db = open_store(old_files.build(path, 3, sessions=sessions))
    assert [db.get_session_title(name) for name in "abc"] == [None, None, "T"]
    assert db.get_session_title("s1") == "old title"
    db.close()
    assert_current(path)
    assert versions(path) == [11]


def test_equal_titles_are_repaired_in_a_current_file_too(open_store, path):
    old_files.build(path, 11, sessions=(), messages=())
    drop(path, ("INDEX", "idx_sessions_title_unique"))
    with raw(path) as connection:
        old_files.insert(connection, "sessions", *titled(("a", 10.0), ("b", 20.0)))
    db = open_store(path)
    assert [db.get_session_title(name) for name in "ab"] == [None, "T"]
    db.close()
    assert_current(path)


# Files that cannot be opened.


@pytest.mark.parametrize("column", ["source", "parent_session_id", "started_at"])
def test_sessions_without_an_indexed_column_are_refused(open_store, path, column):
    rest = [c for c in ("source", "parent_session_id", "started_at") if c != column]
    with raw(path) as connection:
        connection.execute(f"CREATE TABLE sessions (id TEXT PRIMARY KEY, {', '.join(rest)})")
        connection.execute("INSERT INTO sessions (id) VALUES ('s1')")
    before = dump(path)
    with pytest.raises(sqlite3.OperationalError, match=f"no such column: {column}"):
        open_store(path)
    assert dump(path) == before


def test_not_a_database_is_named_and_untouched(open_store, path):
    path.write_bytes(b"this is no database, " * 1000)
    before = path.read_bytes()
    hermes_state._set_last_init_error(None)
    with pytest.raises(errors.NotADatabase) as caught:
        open_store(path)
    assert isinstance(caught.value, sqlite3.DatabaseError)
    assert isinstance(caught.value, errors.StorageError)
    assert path.read_bytes() == before
    assert "file is not a database" in hermes_state.get_last_init_error()


@pytest.mark.parametrize("mode", ["actor", "embedded"])
def test_pipe_is_not_waited_for(path, mode):
    os.mkfifo(path)
    with pytest.raises(errors.CannotOpen, match="is a pipe or a device"):
        SessionDB(path, mode=mode)
    assert list(path.parent.iterdir()) == [path]


def test_directory_is_refused(open_store, tmp_path):
    with pytest.raises(errors.CannotOpen) as caught:
        open_store(tmp_path)
    assert isinstance(caught.value, sqlite3.OperationalError)
    assert isinstance(caught.value, errors.StorageError)


def many_messages(path):
    """A file of some hundred pages."""
    text = "lorem ipsum dolor sit amet " * 20
    old_files.build(
        path,
        11,
        messages=[
            {
                "session_id": "s1",
                "role": "user",
                "content": text,
                "timestamp": float(i),
                "reasoning": f"mark{i}",
            }
            for i in range(300)
        ],
    )
    assert path.stat().st_size > 100 * 4096
    return path


def overwrite(path, start, length=4096):
    with path.open("r+b") as file:
        file.seek(start)
        file.write(b"\xa5" * length)


def root_page(path, name):
    return query(path, "SELECT rootpage FROM sqlite_master WHERE name = ?", name)[0][0]


@pytest.mark.parametrize("what", ["schema", "number", "end cut off"])
def test_damage_that_opening_meets_is_named_and_the_file_untouched(open_store, path, what):
    many_messages(path)
    match what:
        case "schema":
            overwrite(path, 100, 3996)
        case "number":
            overwrite(path, (root_page(path, "schema_version") - 1) * 4096)
        case "end cut off":
            os.truncate(path, path.stat().st_size // 2 // 4096 * 4096)
    before = path.read_bytes()
    with pytest.raises(errors.Damaged) as caught:
        open_store(path)
    assert isinstance(caught.value, sqlite3.DatabaseError)
    assert isinstance(caught.value, errors.StorageError)
    assert path.read_bytes() == before


def test_damage_deep_in_the_file_is_named_when_it_is_met(open_store, path):
    many_messages(path)
    overwrite(path, path.read_bytes().index(b"mark150") // 4096 * 4096)
    with pytest.raises(errors.Damaged):
        open_store(path).get_messages("s1")
    assert query(path, "SELECT count(*) FROM sessions") == [(2,)]


def without_privileges(path, mode):
    code = (
        "import sys; from support.subprocess_env import *; open_without_privileges(*sys.argv[1:])"
    )
    return run_python(code, path, mode)


def request_handoff(path):
    if os.getuid() == 0:
        os.chown(path, 65534, 65534)


def test_read_only_file_is_named_and_untouched(mode, open_folder):
    path = old_files.build(Path(open_folder) / "state.db", 11)
    request_handoff(path)
    path.chmod(0o444)
    before = path.read_bytes()
    result = without_privileges(path, mode)
    assert "hermes_actor.errors.ReadOnly" in result["classes"], result
    assert "sqlite3.OperationalError" in result["classes"], result
    assert path.read_bytes() == before


def test_read_only_folder_is_named_and_its_file_untouched(mode, open_folder):
    path = old_files.build(Path(open_folder) / "state.db", 11)
    request_handoff(path)
    path.parent.chmod(0o555)
    before = path.read_bytes()
    result = without_privileges(path, mode)
    assert "hermes_actor.errors.ReadOnly" in result["classes"], result
    assert path.read_bytes() == before
    assert os.listdir(open_folder) == ["state.db"]


@pytest.mark.parametrize("leave", [0, 65536])
def test_opening_on_a_full_disk_is_named_and_the_file_untouched(mode, leave):
    code = """
        import sys
        from support import old_files
        from support.subprocess_env import *
        from support.files import dump

        mode, leave = sys.argv[1:]
        messages = [
            {"session_id": "s1", "role": "user", "content": f"word{i} " * 50, "timestamp": i}
            for i in range(2000)
        ]
        with small_disk() as (folder, disk):
            path = old_files.build(folder / "state.db", 5, messages=messages)
            bytes_before, before = path.read_bytes(), dump(path)
            disk.fill(int(leave))
            refused = outcome(lambda: open_and_close(path, mode))
            same_bytes = path.read_bytes() == bytes_before
            disk.free()
            same = same_bytes or dump(path) == before
            again = outcome(lambda: open_and_close(path, mode))
            tell([refused, same, again])
    """
    refused, same, again = run_python(code, mode, leave, prefix=own_mounts())
    assert "hermes_actor.errors.DiskFull" in refused["classes"], refused
    assert "hermes_actor.errors.StorageError" in refused["classes"]
    assert same
    assert again["classes"] == []


def test_write_on_a_full_disk_is_refused_and_goes_on_when_there_is_room(mode):
    code = """
        import sys
        from hermes_actor import SessionDB
        from support.subprocess_env import *

        (mode,) = sys.argv[1:]
        with small_disk() as (folder, disk):
            db = SessionDB(folder / "state.db", mode=mode)
            db.create_session("s", "cli")
            db.append_message("s", "user", "before")
            disk.fill(65536)
            refused = outcome(lambda: db.append_message("s", "user", "x" * 2_000_000))
            readable = outcome(lambda: [m["content"] for m in db.get_messages("s")])
            disk.free()
            again = outcome(lambda: db.append_message("s", "user", "after"))
            db.close()
            db = SessionDB(folder / "state.db", mode=mode)
            kept = [m["content"] for m in db.get_messages("s")]
            db.close()
            tell([refused, readable["value"], again["value"], kept])
    """
    refused, readable, again, kept = run_python(code, mode, prefix=own_mounts())
    assert "hermes_actor.errors.DiskFull" in refused["classes"], refused
    assert readable == ["before"]
    assert again == 2
    assert kept == ["before", "after"]


# Locks and several handles.


@pytest.mark.parametrize("known", [True, False], ids=["known file", "file met for the first time"])
def test_current_file_opens_while_a_foreign_writer_holds_the_lock(open_store, path, known):
    shutil.copy(PEER_FILE, path)
    if known:
        open_store(path).close()
    with write_lock(path):
        db = open_store(path)
        assert [m["role"] for m in db.get_messages("p1")] == ["user", "assistant", "tool"]
    assert db.append_message("p1", "user", "free again") == 4


def test_outdated_file_under_a_foreign_lock_is_refused_and_untouched(open_store, path):
    old_files.build(path, 10)
    query(path, "PRAGMA journal_mode=WAL")
    before = dump(path)
    with (
        write_lock(path),
        pytest.raises(sqlite3.OperationalError, match="database is locked"),
    ):
        open_store(path)
    assert dump(path) == before
    open_store(path).close()
    assert_current(path)


def test_write_under_a_foreign_lock_fails_and_works_afterwards(open_store, path, monkeypatch):
    db = open_store(path)
    db.create_session("s", "cli")
    monkeypatch.setattr(db, "_timeout", 0.5)
    with (
        write_lock(path),
        pytest.raises(sqlite3.OperationalError, match="database is locked"),
    ):
        db.append_message("s", "user", "too early")
    assert db.message_count() == 0
    assert db.append_message("s", "user", "now") == 1


def test_two_handles_see_each_other_and_leave_no_side_files(open_store, mode, path):
    one, two = open_store(path), open_store(path)
    one.create_session("s", "cli")
    one.append_message("s", "user", "hello")
    assert (two.message_count("s"), found(two, "hello")) == (1, [1])
    one.close()
    two.append_message("s", "user", "the other one goes on")
    assert two.message_count("s") == 2
    assert path.with_name("state.db-wal").exists()
    two.close()
    if mode == "actor":
        # Its anchor keeps the last close from unlinking anything under others.
        stop_actor(path)
        assert path.with_name("state.db-wal").stat().st_size == 0
        return
    assert not path.with_name("state.db-wal").exists()
    assert not path.with_name("state.db-shm").exists()


def test_handles_by_different_spellings_of_one_path_share_the_file(open_store, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    one = open_store(tmp_path / "real" / "state.db")
    two = open_store(tmp_path / "link" / "state.db")
    one.create_session("s", "cli")
    two.append_message("s", "user", "hello")
    assert one.message_count("s") == 1


def test_second_process_learns_who_owns_the_file(path):
    code = """
        import sys
        from support.subprocess_env import *
        tell(outcome(lambda: open_and_close(sys.argv[1], "embedded")))
    """
    db = SessionDB(path, mode="embedded")
    try:
        db.create_session("s", "cli")
        refused = run_python(code, path)
        assert "hermes_actor.errors.AlreadyOwned" in refused["classes"], refused
        assert str(os.getpid()) in refused["text"]
        db.append_message("s", "user", "the first goes on")
        assert db.message_count("s") == 1
    finally:
        db.close()
    assert run_python(code, path)["classes"] == []


# Telegram bindings of the first form.


def bindings_without_cascade(db, path, number):
    db.create_session("t1", "telegram", user_id="7")
    db.set_meta("telegram_dm_topic_schema_version", number)
    with raw(path) as connection:
        connection.execute(
            """CREATE TABLE telegram_dm_topic_bindings (
                chat_id TEXT NOT NULL, thread_id TEXT NOT NULL, user_id TEXT NOT NULL,
                session_key TEXT NOT NULL, session_id TEXT NOT NULL REFERENCES sessions(id),
                managed_mode TEXT NOT NULL DEFAULT 'auto', linked_at REAL NOT NULL,
                updated_at REAL NOT NULL, PRIMARY KEY (chat_id, thread_id))"""
        )
        connection.execute(
            "INSERT INTO telegram_dm_topic_bindings VALUES ('7','11','7','k','t1','auto',1.0,2.0)"
        )


def test_bindings_of_the_first_form_get_their_cascade(open_store, path):
    db = open_store(path)
    bindings_without_cascade(db, path, "1")
    with pytest.raises(sqlite3.IntegrityError):
        db.delete_session("t1")
    db.apply_telegram_topic_migration()
    assert db.get_meta("telegram_dm_topic_schema_version") == "2"
    assert db.get_telegram_topic_binding(chat_id=7, thread_id=11) == {
        "chat_id": "7",
        "thread_id": "11",
        "user_id": "7",
        "session_key": "k",
        "session_id": "t1",
        "managed_mode": "auto",
        "linked_at": 1.0,
        "updated_at": 2.0,
    }
    assert {
        "idx_telegram_dm_topic_bindings_session",
        "idx_telegram_dm_topic_bindings_user",
    } <= names(path, "index", "idx_telegram%")
    assert db.delete_session("t1") is True
    assert db.get_telegram_topic_binding(chat_id=7, thread_id=11) is None


def test_bindings_that_claim_the_second_form_are_left_alone(open_store, path):
    db = open_store(path)
    bindings_without_cascade(db, path, "2")
    db.apply_telegram_topic_migration()
    ((sql,),) = query(
        path, "SELECT sql FROM sqlite_master WHERE name = 'telegram_dm_topic_bindings'"
    )
    assert "CASCADE" not in sql.upper()
    assert db.get_telegram_topic_binding(chat_id=7, thread_id=11)["session_id"] == "t1"


# A file of a later release.


def test_file_of_version_22_is_read_and_written(open_store, path, clock):
    db = open_store(newer_files.build(path))
    assert (len(columns(path, "sessions")), len(columns(path, "messages"))) == (46, 21)
    clock.at(300)
    db.create_session("s2", "cli")
    db.append_message("s2", "user", "hello 北京烤鸭")
    assert (found(db, "hello"), found(db, "北京烤鸭")) == ([1], [1])
    assert [s["id"] for s in db.list_sessions_rich()] == ["s2", "s1"]
    db.replace_messages("s2", [{"role": "user", "content": "other"}])
    assert (found(db, "hello"), found(db, "other")) == ([], [2])
    assert db.delete_session("s2")
    db.close()
    assert versions(path) == [22]
    assert query(path, "PRAGMA integrity_check") == [("ok",)]
    assert query(path, "PRAGMA foreign_key_check") == []


# SQLite builds that lack something.


def test_without_fts5_the_store_works_and_the_index_is_made_up_for_later(open_store, mode, path):
    old_files.build(path, 11)
    code = """
        import sys
        from pathlib import Path
        from support.subprocess_env import *

        without_fts5()
        from hermes_actor import SessionDB

        new = SessionDB(Path(sys.argv[1]).with_name("new.db"), mode=sys.argv[2])
        new.create_session("s1", "cli")
        old = SessionDB(Path(sys.argv[1]), mode=sys.argv[2])
        for db in (new, old):
            db.append_message("s1", "user", "written without index 上海小笼包")
        told = [[len(db.get_messages("s1")), db.search_messages("written")] for db in (new, old)]
        old.clear_messages("s1")
        old.append_message("s1", "user", "written after clearing")
        new.close()
        old.close()
        tell(told)
    """
    assert run_python(code, path, mode) == [[1, []], [3, []]]
    new, old = open_store(path.with_name("new.db")), open_store(path)
    assert (found(new, "written"), found(new, "上海小笼包")) == ([1], [1])
    assert (found(old, "written"), found(old, "上海小笼包"), found(old, "salt")) == ([4], [], [])
    new.close()
    old.close()
    assert_current(path)
    assert_current(path.with_name("new.db"))


@pytest.mark.parametrize("version", [None, 9])
def test_without_trigram_cjk_search_falls_back_to_like(open_store, mode, path, version):
    if version:
        old_files.build(path, version, messages=())
    code = """
        import sys
        from pathlib import Path
        from support.subprocess_env import *

        without_trigram()
        from hermes_actor import SessionDB

        db = SessionDB(Path(sys.argv[1]), mode=sys.argv[2])
        db.ensure_session("s1")
        db.append_message("s1", "user", "plain words")
        db.append_message("s1", "user", "上周订了北京烤鸭")
        told = [[m["id"] for m in db.search_messages(q)] for q in ("words", "北京烤鸭", "北京")]
        db.close()
        tell(told)
    """
    assert run_python(code, path, mode) == [[1], [2], [2]]
    db = open_store(path)
    assert (found(db, "北京烤鸭"), found(db, "words")) == ([2], [1])
    assert fts_rows(db, "messages_fts_trigram") == [(1, "plain words  "), (2, "上周订了北京烤鸭  ")]
    db.close()
    assert_current(path)
