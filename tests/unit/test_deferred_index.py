"""The index follows the messages: deferred, once, in bounded slices."""

import pytest
from support.actors import own
from support.direct_writer import (
    FakeTime,
    append,
    assert_index_is_true,
    batch,
    index_everything,
    indexed,
    put,
    run,
    sql,
)
from support.files import FTS_TABLES as INDEXES
from support.files import names, query, raw

from hermes_actor import limits
from hermes_actor.engine.environment import Environment
from hermes_protocol.operations import (
    MessagesClear,
    SessionCreate,
)


def test_insert_is_indexed_later_and_once(writer, path):
    ids = run(writer, append("one walrus"), append("two walruses"))
    assert [indexed(path, table) for table in INDEXES] == [[], []]
    assert own(path, "watermark") == 0
    assert writer.index.run_slice(1.0) is False
    assert own(path, "watermark") == ids[-1] == writer.index.watermark
    assert_index_is_true(path)
    assert writer.index.run_slice(1.0) is False
    assert_index_is_true(path)


def test_triggers_stay_in_the_file(writer, path):
    run(writer, append("ours"))
    with raw(path) as foreign:
        foreign.execute("INSERT INTO messages (session_id, role, timestamp) VALUES ('s', 'u', 1)")
    assert indexed(path, "messages_fts") == [2]


def test_rows_of_a_foreign_program_are_not_indexed_twice(writer, path):
    foreign_sql = "INSERT INTO messages (session_id, role, content, timestamp) VALUES (?, ?, ?, ?)"
    with raw(path) as foreign:
        run(writer, append("ours 1"))
        foreign.execute(foreign_sql, ("s", "user", "theirs 2", 2))
        run(writer, append("ours 3"))
        foreign.execute(foreign_sql, ("s", "user", "theirs 4", 2))
    index_everything(writer)
    assert_index_is_true(path)
    assert own(path, "watermark") == 4


def test_update_of_a_row_that_is_not_indexed_yet(writer, path):
    run(writer, append("before"), append("other"))
    run(writer, sql("UPDATE messages SET content = 'after' WHERE id = 1"))
    index_everything(writer)
    assert_index_is_true(path)


def test_delete_of_a_row_that_is_not_indexed_yet(writer, path):
    run(writer, append("gone"), append("kept"), append("gone"))
    run(writer, sql("DELETE FROM messages WHERE content = 'gone'"))
    index_everything(writer)
    assert_index_is_true(path)
    run(writer, append("new"))
    index_everything(writer)
    assert_index_is_true(path)


def test_update_and_delete_of_indexed_rows_are_noted_and_settled_later(writer, path):
    run(writer, append("first"), append("second"), append("third"))
    index_everything(writer)
    run(writer, sql("UPDATE messages SET content = 'changed' WHERE id = 1"))
    run(writer, sql("DELETE FROM messages WHERE id = 2"))
    run(writer, sql("UPDATE messages SET finish_reason = 'stop' WHERE id = 3"))
    assert query(path, "SELECT aside, id FROM hermes_actor_stale") == [(0, 1), (0, 2)]
    index_everything(writer)
    assert_index_is_true(path)
    assert query(path, "SELECT aside, id FROM hermes_actor_stale") == []


def test_insert_inside_the_operation_that_also_deletes(writer, path):
    run(writer, append("old"))
    index_everything(writer)
    batch(writer, sql("DELETE FROM messages"), append("new"), append("x", "nobody"))
    index_everything(writer)
    assert_index_is_true(path)


def test_other_triggers_run(writer, path):
    run(
        writer,
        sql("CREATE TABLE audit (id)"),
        sql(
            "CREATE TRIGGER audit_insert AFTER INSERT ON messages"
            " BEGIN INSERT INTO audit VALUES (new.id); END"
        ),
    )
    run(writer, append("x"))
    assert query(path, "SELECT id FROM audit") == [(1,)]
    assert indexed(path, "messages_fts") == []


def test_foreign_shape_keeps_its_triggers(writer, path):
    run(writer, append("deferred"))
    index_everything(writer)
    with raw(path) as foreign:
        foreign.execute("DROP TRIGGER messages_fts_insert")
        foreign.execute(
            "CREATE TRIGGER messages_fts_insert AFTER INSERT ON messages BEGIN"
            " INSERT INTO messages_fts(rowid, content) VALUES (new.id, upper(new.content)); END"
        )
    run(writer, append("at once"))
    assert [indexed(path, table) for table in INDEXES] == [[1, 2], [1, 2]]
    assert query(path, "SELECT content FROM messages_fts WHERE rowid = 2") == [("AT ONCE",)]
    assert writer.index.run_slice(1.0) is False


def test_deferring_begins_again_with_the_known_shape(writer, path):
    known = query(path, "SELECT sql FROM sqlite_master WHERE name = 'messages_fts_insert'")[0][0]
    with raw(path) as foreign:
        foreign.execute("DROP TRIGGER messages_fts_insert")
        foreign.execute(known.replace("new.content", "trim(new.content)"))
    run(writer, append("at once"))
    with raw(path) as foreign:
        foreign.execute("DROP TRIGGER messages_fts_insert")
        foreign.execute(known)
    run(writer, append("later"))
    assert indexed(path, "messages_fts") == [1]
    index_everything(writer)
    assert_index_is_true(path)


def forget_owner(path):
    """Make the file one that no owner of ours has ever met."""
    with raw(path) as foreign:
        for name in names(path, "table", "hermes_actor_%"):
            foreign.execute(f"DROP TABLE {name}")


def test_file_met_for_the_first_time_with_whole_indexes(open_writer, path):
    writer = open_writer()
    run(writer, SessionCreate(id="s", source="cli", started_at=1.0), append("1"), append("2"))
    index_everything(writer)
    writer.close()
    forget_owner(path)
    writer = open_writer()
    run(writer, put("k"))
    assert own(path, "watermark") == 2
    assert own(path, "commit_no") == 1


def test_file_met_for_the_first_time_with_indexes_that_end_too_early(open_writer, path):
    writer = open_writer()
    run(writer, SessionCreate(id="s", source="cli", started_at=1.0), append("1"))
    index_everything(writer)
    run(writer, append("2"))
    writer.close()
    forget_owner(path)
    writer = open_writer()
    run(writer, put("k"))
    assert own(path, "watermark") == 0
    index_everything(writer)
    assert_index_is_true(path)


@pytest.mark.parametrize("whole", [True, False])
def test_watermark_beyond_every_id_is_derived_again(open_writer, path, whole):
    writer = open_writer()
    run(writer, SessionCreate(id="s", source="cli", started_at=1.0), append("1"), append("2"))
    if whole:
        index_everything(writer)
    writer.close()
    with raw(path) as foreign:
        foreign.execute("UPDATE hermes_actor_meta SET value = 1000 WHERE key = 'watermark'")
    writer = open_writer()
    run(writer, put("k"))
    assert own(path, "watermark") == (2 if whole else 0)
    run(writer, append("3"))
    index_everything(writer)
    assert_index_is_true(path)


def test_ids_that_begin_again_are_indexed(writer, path):
    run(writer, *(append(str(n)) for n in range(5)))
    index_everything(writer)
    run(writer, sql("DELETE FROM messages"), sql("DELETE FROM sqlite_sequence"))
    run(writer, append("first again"))
    index_everything(writer)
    assert_index_is_true(path)


@pytest.mark.parametrize("by", ["guest", "other program"])
@pytest.mark.parametrize(
    "harm",
    ["DELETE FROM sqlite_sequence", "UPDATE sqlite_sequence SET seq = 0",
     "UPDATE messages SET id = 1000 WHERE id = 5"],
)  # fmt: skip
def test_ids_that_may_fall_once_their_messages_are_gone_are_indexed(writer, path, by, harm):
    run(writer, *(append(str(n)) for n in range(5)))
    index_everything(writer)
    if by == "guest":
        run(writer, sql(harm))
    else:
        with raw(path) as foreign:
            foreign.execute(harm)
    index_everything(writer)
    run(writer, MessagesClear(session_id="s"))
    index_everything(writer)  # no note of an old row is left to catch the new one
    run(writer, append("after"))
    index_everything(writer)
    assert_index_is_true(path)


def test_slice_is_bounded_and_tells_that_more_is_left(open_writer, path):
    writer = open_writer(FakeTime().env())
    run(writer, SessionCreate(id="s", source="cli", started_at=1.0))
    rows = 2 * limits.INDEX_STEP_ROWS + 1
    # Not one by one: after so many commits a slice would be a checkpoint.
    batch(writer, *(append(str(n)) for n in range(rows)))
    seen = []
    while writer.index.run_slice(0.0):
        seen.append(own(path, "watermark"))
        assert indexed(path, "messages_fts") == list(range(1, seen[-1] + 1))
    assert seen == [limits.INDEX_STEP_ROWS, 2 * limits.INDEX_STEP_ROWS]
    assert_index_is_true(path)


def test_crash_inside_a_slice_loses_and_doubles_nothing(open_writer, path):
    class Crash(Exception):
        pass

    failing = []

    def failpoint(name):
        if name == "index.slice" and not failing:
            failing.append(name)
            raise Crash

    writer = open_writer(Environment(failpoint=failpoint))
    run(writer, SessionCreate(id="s", source="cli", started_at=1.0), append("1"), append("2"))
    with pytest.raises(Crash):
        writer.index.run_slice(1.0)
    writer.connection.conn.close()
    writer = open_writer()
    run(writer, append("3"))
    index_everything(writer)
    assert_index_is_true(path)


# --- extra indexes ---------------------------------------------------------------------------


def test_missing_extra_indexes_are_built_when_idle(open_writer, path):
    open_writer().close()
    with raw(path) as foreign:
        foreign.execute("DROP INDEX hermes_actor_messages_time")
        foreign.execute("DROP INDEX hermes_actor_sessions_source")
    writer = open_writer()
    run(writer, put("1"))
    while writer.idle_slice() == 0.0:
        pass
    built = names(path, "index", "hermes_actor_%")
    assert {"hermes_actor_messages_time", "hermes_actor_sessions_source"} <= built


def test_extra_index_of_an_earlier_build_is_dropped_when_idle(open_writer, path):
    """After the one that takes its place is there; neither is needed for an answer."""
    open_writer().close()
    with raw(path) as foreign:
        foreign.execute("DROP INDEX hermes_actor_messages_tool_cjk")
        foreign.execute("CREATE INDEX hermes_actor_messages_tool ON messages(tool_name)")
    writer = open_writer()
    run(writer, put("1"))
    seen = []
    while writer.idle_slice() == 0.0:
        seen.append(frozenset(names(path, "index", "hermes_actor_messages_tool%")))
    assert frozenset() not in seen
    assert seen[-1] == {"hermes_actor_messages_tool_cjk"}
