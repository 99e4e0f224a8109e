"""Files of every older version become current, whatever they lack, and keep what they hold."""

import sqlite3

import pytest
from support import old_files
from support.files import (
    FTS_TABLES,
    MESSAGE_COLUMNS,
    SESSION_COLUMNS,
    assert_current,
    columns,
    dump,
    fts_rows,
    names,
    query,
    raw,
    versions,
)

STEPS = sorted(old_files.ADDED_COLUMNS)


def found(db, text):
    return [hit["id"] for hit in db.search_messages(text)]


def table_rows(path, table):
    with raw(path) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(f"SELECT * FROM {table} ORDER BY rowid")]


# What each version brought.


@pytest.mark.parametrize("step", STEPS)
def test_columns_of_a_version_are_added_with_their_defaults(open_store, path, step):
    open_store(old_files.build(path, step - 1)).close()
    for table, added in zip(("sessions", "messages"), old_files.ADDED_COLUMNS[step], strict=True):
        for column in added:
            name, _, rest = column.partition(" ")
            default = 0 if "DEFAULT 0" in rest else None
            assert query(path, f"SELECT DISTINCT {name} FROM {table}") == [(default,)]
            declared = query(
                path,
                "SELECT type, dflt_value FROM pragma_table_info(?) WHERE name = ?",
                table,
                name,
            )
            assert declared == [(rest.split()[0], None if default is None else "0")]


def test_version_4_titles_become_unique(open_store, path):
    db = open_store(old_files.build(path, 3))
    assert db.get_session_title("s1") == "old title"
    with pytest.raises(ValueError, match="already in use"):
        db.set_session_title("s2", "old title")
    with pytest.raises(sqlite3.IntegrityError):
        db._conn.execute("UPDATE sessions SET title = 'old title' WHERE id = 's2'")


@pytest.mark.parametrize("version", [8, 9])
def test_version_10_trigram_index_is_made_and_filled(open_store, path, version):
    db = open_store(old_files.build(path, version))
    assert len(fts_rows(db, "messages_fts_trigram")) == 2
    assert found(db, "京烤鸭") == [1]


@pytest.mark.parametrize("version", [1, 9, 10])
def test_version_11_indexes_cover_tools_and_follow_every_change(open_store, path, version):
    db = open_store(old_files.build(path, version))
    counts = [
        db._conn.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
        for table in (*FTS_TABLES, "messages")
    ]
    assert counts == [2, 2, 2]
    assert found(db, "OLDTOOLX") == [2]
    db._conn.execute("UPDATE messages SET content = 'changed words' WHERE id = 1")
    assert (found(db, "salt"), found(db, "changed")) == ([], [1])
    db.clear_messages("s1")
    assert [fts_rows(db, table) for table in FTS_TABLES] == [[], []]
    assert db.append_message("s1", "user", "fresh words") == 3
    assert found(db, "fresh") == [3]


@pytest.mark.parametrize("version", range(1, 11))
def test_old_values_are_kept(open_store, path, version):
    old_files.build(path, version)
    before = {table: table_rows(path, table) for table in ("sessions", "messages")}
    open_store(path).close()
    for table, rows in before.items():
        after = table_rows(path, table)
        assert [{k: new[k] for k in old} for old, new in zip(rows, after, strict=True)] == rows


@pytest.mark.parametrize("version", range(1, 11))
def test_added_columns_land_at_the_end(open_store, path, version):
    old_files.build(path, version)
    before = {table: columns(path, table) for table in ("sessions", "messages")}
    db = open_store(path)
    assert columns(path, "sessions")[: len(before["sessions"])] == before["sessions"]
    assert columns(path, "messages")[: len(before["messages"])] == before["messages"]
    assert list(db.get_session("s1")) == columns(path, "sessions")
    assert set(db.get_session("s1")) == set(SESSION_COLUMNS)
    assert set(db.get_messages("s1")[0]) == set(MESSAGE_COLUMNS)


@pytest.mark.parametrize("version", range(1, 11))
def test_message_ids_go_on_and_the_lineage_holds(open_store, path, version, clock):
    clock.at(300)
    db = open_store(old_files.build(path, version))
    assert db.append_message("s2", "user", "next") == 3
    assert db.get_compression_tip("s1") == "s2"
    assert [s["id"] for s in db.list_sessions_rich()] == ["s2"]
    with pytest.raises(sqlite3.IntegrityError):
        db.create_session("s3", "cli", parent_session_id="nope")


@pytest.mark.parametrize("version", range(1, 12))
def test_every_later_open_changes_nothing(open_store, path, version):
    open_store(old_files.build(path, version)).close()
    before = dump(path, ours=False)
    for _ in range(2):
        open_store(path).close()
        assert dump(path, ours=False) == before


# Reconciliation looks at columns, not at numbers.


def test_file_that_claims_more_than_it_has_gets_the_missing_column(open_store, path):
    db = open_store(old_files.build(path, 6, numbers=[7]))
    assert db.get_messages("s1")[0]["reasoning_content"] is None
    db.close()
    assert_current(path)


def test_current_number_does_not_hide_missing_columns(open_store, path):
    old_files.build(path, 11)
    with raw(path) as connection:
        connection.execute("ALTER TABLE sessions DROP COLUMN handoff_error")
        connection.execute("DROP TABLE state_meta")
    db = open_store(path)
    db.set_meta("k", "v")
    db.fail_handoff("s1", "why")
    assert db.get_handoff_state("s1") == {"state": "failed", "platform": None, "error": "why"}
    db.close()
    assert_current(path)


def test_extra_columns_tables_and_indexes_are_left_alone(open_store, path):
    old_files.build(path, 5)
    with raw(path) as connection:
        connection.execute("ALTER TABLE sessions ADD COLUMN extra TEXT DEFAULT 'mine'")
        connection.execute("CREATE TABLE notes (text)")
        connection.execute("INSERT INTO notes VALUES ('keep')")
        connection.execute("CREATE INDEX notes_text ON notes(text)")
    db = open_store(path)
    assert db.get_session("s1")["extra"] == "mine"
    db.close()
    assert query(path, "SELECT text FROM notes") == [("keep",)]
    assert "notes_text" in names(path, "index")


def test_foreign_keys_are_not_added_to_a_table_without_them(open_store, path):
    with raw(path) as connection:
        connection.execute(
            "CREATE TABLE sessions (id TEXT PRIMARY KEY, source TEXT NOT NULL,"
            " parent_session_id TEXT, started_at REAL NOT NULL)"
        )
    db = open_store(path)
    db.create_session("s1", "cli", parent_session_id="unknown")
    assert db.get_session("s1")["parent_session_id"] == "unknown"
    assert query(path, "SELECT * FROM pragma_foreign_key_list('sessions')") == []


def test_column_that_cannot_be_added_is_passed_over(open_store, path):
    with raw(path) as connection:
        for statement in old_files.split(old_files.VERSION_1):
            connection.execute(statement.replace("role TEXT NOT NULL,\n", ""))
        connection.execute("INSERT INTO schema_version VALUES (1)")
        old_files.insert(connection, "sessions", *old_files.SESSIONS)
        old_files.insert(connection, "messages", *old_files.MESSAGES)
    open_store(path).close()
    assert versions(path) == [11]
    assert set(columns(path, "messages")) == set(MESSAGE_COLUMNS) - {"role"}


def test_meta_table_is_made_in_an_old_file(open_store, path):
    db = open_store(old_files.build(path, 10))
    db.set_meta("k", "v")
    assert db.get_meta("k") == "v"


# Numbers.


@pytest.mark.parametrize("number", [0, -1])
def test_zero_and_negative_numbers_mean_the_oldest(open_store, path, number):
    db = open_store(old_files.build(path, 10, numbers=[number]))
    assert (found(db, "OLDTOOLX"), found(db, "北京烤鸭")) == ([2], [1])
    db.close()
    assert_current(path)


def test_both_rows_of_a_doubled_number_are_raised(open_store, path):
    db = open_store(old_files.build(path, 7, numbers=[10, 7]))
    assert (found(db, "OLDTOOLX"), found(db, "北京烤鸭")) == ([2], [1])
    db.close()
    assert versions(path) == [11, 11]
    open_store(path).close()
    assert versions(path) == [11, 11]


# A migration that cannot be finished.


def refuse_new_number(connection):
    for event in ("INSERT", "UPDATE", "DELETE"):
        connection.execute(
            f"CREATE TRIGGER refuse_{event} BEFORE {event} ON schema_version"
            " BEGIN SELECT RAISE(ABORT, 'refused'); END"
        )


def allow_new_number(connection):
    for event in ("INSERT", "UPDATE", "DELETE"):
        connection.execute(f"DROP TRIGGER refuse_{event}")


def put_view_in_place_of_an_index(connection):
    connection.execute("DROP INDEX idx_sessions_started")
    connection.execute("CREATE VIEW idx_sessions_started AS SELECT 1")


def remove_view(connection):
    connection.execute("DROP VIEW idx_sessions_started")


def hide_source(connection):
    connection.execute("DROP INDEX idx_sessions_source")
    connection.execute("ALTER TABLE sessions RENAME COLUMN source TO hidden")


def show_source(connection):
    connection.execute("ALTER TABLE sessions RENAME COLUMN hidden TO source")


@pytest.mark.parametrize("version", [1, 4, 10])
@pytest.mark.parametrize(
    ("spoil", "mend"),
    [
        (refuse_new_number, allow_new_number),
        (put_view_in_place_of_an_index, remove_view),
        (hide_source, show_source),
    ],
)
def test_failed_migration_leaves_the_file_as_it_was(open_store, path, version, spoil, mend):
    old_files.build(path, version)
    with raw(path) as connection:
        spoil(connection)
    before = dump(path)
    for _ in range(2):
        with pytest.raises(sqlite3.Error):
            open_store(path)
        assert dump(path) == before
    with raw(path) as connection:
        mend(connection)
    db = open_store(path)
    assert (found(db, "OLDTOOLX"), found(db, "北京烤鸭")) == ([2], [1])
    db.close()
    assert_current(path)


# Large files.


@pytest.fixture
def large(path):
    """20,050 messages in a file below version 11; the words to find are at both ends."""
    texts = {1: "firstword 北京烤鸭", 20_050: "lastword 上海小笼包"}
    return old_files.build(
        path,
        9,
        messages=(
            {
                "session_id": "s1",
                "role": "user",
                "content": texts.get(i, f"w{i}"),
                "timestamp": float(i),
            }
            for i in range(1, 20_051)
        ),
    )


def test_large_old_file_is_searched_completely_at_once(open_store, large):
    db = open_store(large)
    assert (found(db, "lastword"), found(db, "firstword")) == ([20_050], [1])
    assert (found(db, "上海小笼包"), found(db, "北京烤鸭")) == ([20_050], [1])
    assert found(db, "w10000") == [10_000]
    db.append_message("s1", "user", "newest")
    assert found(db, "newest") == [20_051]
    counts = [
        db._conn.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in FTS_TABLES
    ]
    assert counts == [20_051, 20_051]
    db.close()
    assert_current(large)


def test_large_old_file_closed_before_its_indexes_are_full_goes_on_later(open_store, large):
    open_store(large).close()
    assert_current(large)
    db = open_store(large)
    db._conn.execute("DELETE FROM messages WHERE id = 20049")
    db._conn.execute("UPDATE messages SET content = 'changed' WHERE id = 20048")
    assert (found(db, "w20049"), found(db, "w20048"), found(db, "changed")) == ([], [], [20_048])
    assert (found(db, "lastword"), found(db, "北京烤鸭")) == ([20_050], [1])
    for table in FTS_TABLES:
        assert len(fts_rows(db, table)) == 20_049
