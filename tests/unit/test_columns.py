"""The one description of the columns agrees with the operations, the file and the servers."""

from contextlib import closing

import msgspec
import pytest

from hermes_actor import SessionDB
from hermes_actor.providers.sql import tables
from hermes_actor.sqlite import connect_reader
from hermes_actor.store.columns import COUNTERS, MESSAGES, SESSIONS, Form
from hermes_protocol.operations import MessageRow, SessionRow, SessionTokens

COUNTED = {"message_count", "tool_call_count"}
HANDOFF = {"handoff_state", "handoff_platform", "handoff_error"}


def names(columns):
    return [column.name for column in columns]


def test_message_of_an_operation_has_every_column_that_a_caller_gives():
    carried = set(MessageRow.__struct_fields__) - {"calls"}
    assert carried == set(names(MESSAGES)) - {"id", "session_id"}


def test_message_is_stored_alike_whether_it_is_appended_or_part_of_a_transcript():
    forms = {
        Form.CONTENT: {"text": "a"},
        Form.JSON: [{"id": 1}],
        Form.COUNT: 3,
        Form.TEXT: "b",
    }
    given = {
        column.name: forms[column.form]
        for column in MESSAGES
        if column.name not in ("id", "session_id", "timestamp")
    }
    given["role"] = "assistant"
    appended = SessionDB.append_message.builder(None, "s", **given).operation.message
    (replaced,) = SessionDB.replace_messages.builder(None, "s", [given]).operation.messages
    assert msgspec.structs.replace(replaced, timestamp=appended.timestamp) == appended
    assert all(getattr(appended, name) is not None for name in given)


def test_imported_session_has_every_column_but_what_the_store_keeps_itself():
    assert set(SessionRow.__struct_fields__) == set(names(SESSIONS)) - COUNTED - HANDOFF


def test_tokens_are_booked_for_every_counter():
    assert set(COUNTERS) <= set(SessionTokens.__struct_fields__)
    assert len(COUNTERS) == 5


@pytest.mark.parametrize(("table", "columns"), [("sessions", SESSIONS), ("messages", MESSAGES)])
def test_file_and_server_have_these_columns_in_this_order(tmp_path, table, columns):
    path = tmp_path / "state.db"
    SessionDB(path, mode="embedded").close()
    with closing(connect_reader(path)) as conn:
        found = conn.execute(f"PRAGMA table_info({table})").fetchall()
    assert [(row[1], row[2]) for row in found] == [
        (column.name, column.declared.split()[0]) for column in columns
    ]
    served = [column.name for column in tables.metadata.tables[table].c if column.name != "place"]
    assert served == names(columns)


def test_columns_that_an_index_of_a_server_uses_are_bounded():
    """MySQL refuses an index on text without a length."""
    for table, columns in (("sessions", SESSIONS), ("messages", MESSAGES)):
        forms = {column.name: column.form for column in columns}
        indexed = {
            column.name
            for index in tables.metadata.tables[table].indexes
            for column in index.columns
        }
        assert {name for name in indexed if forms.get(name) in (Form.TEXT, Form.JSON)} == set()
