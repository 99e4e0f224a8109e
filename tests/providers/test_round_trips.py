"""Round trips to MySQL: each costs more than most statements, and they creep in unseen.

Those to PostgreSQL are counted in ``test_postgresql.py``, by the trace of its driver.
"""

import contextlib
import threading

import pymysql
import pytest
from support import servers
from support.stores import chosen_kinds

from hermes_actor import SessionDB

pytestmark = pytest.mark.skipif(
    "mysql" not in chosen_kinds(), reason="another kind of store was asked for"
)


@pytest.fixture
def db():
    with contextlib.closing(SessionDB(servers.new_store("mysql"))) as db:
        db.create_session("s", "cli")
        yield db


@pytest.fixture
def sent(monkeypatch):
    """What this thread sends to the server, from the start of the test on."""
    statements, me = [], threading.get_ident()
    send = pymysql.connections.Connection._execute_command

    def noted(self, command, sql):
        if threading.get_ident() == me:
            statements.append(sql.decode() if isinstance(sql, bytes) else sql)
        return send(self, command, sql)

    monkeypatch.setattr(pymysql.connections.Connection, "_execute_command", noted)
    return statements


def test_a_single_read_is_its_statement_and_the_end_of_the_transaction(db, sent):
    assert db.get_session("s")["source"] == "cli"
    assert [statement.split()[0] for statement in sent] == ["SELECT", "ROLLBACK"]


def test_a_read_sees_what_another_connection_has_committed_since(db):
    assert db.get_messages("s") == []
    with contextlib.closing(SessionDB(db._port.database.key[0])) as other:
        other.append_message("s", "user", "new")
        assert [row["content"] for row in db.get_messages("s")] == ["new"]


def test_changes_take_no_more_round_trips_than_their_statements_need(db, sent):
    db.append_message("s", "user", "x")
    words = ["INSERT", "UPDATE", "INSERT", "UPDATE", "COMMIT", "ROLLBACK"]
    assert [statement.split()[0] for statement in sent] == words
    sent.clear()
    db.update_token_counts("s", input_tokens=5)
    assert [statement.split()[0] for statement in sent] == [
        "INSERT",
        "UPDATE",
        "COMMIT",
        "ROLLBACK",
    ]
