"""Round trips to MySQL: each costs more than most statements, and they creep in unseen.

Those to PostgreSQL are counted in ``test_postgresql.py``, by the trace of its driver.
"""

import contextlib
import threading
import time

import pymysql
import pytest
from sqlalchemy import event, text
from support import servers
from support.actors import wait_for
from support.stores import chosen_kinds

from hermes_actor import SessionDB
from hermes_actor.errors import ConstraintFailed
from hermes_actor.providers.sql.connection import ServerConnection
from hermes_actor.providers.sql.receipts import SESSIONS, apply_and_note
from hermes_protocol.operations import MessageAppend, MessageRow

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


def await_a_lock(engine):
    """Until a change waits for the row of its session."""
    waits = text("SELECT COUNT(*) FROM information_schema.processlist WHERE state = 'Updating'")
    with engine.connect() as conn:
        wait_for(lambda: conn.execute(waits).scalar())


def words(sent):
    return [statement.split()[0] for statement in sent]


def test_changes_take_no_more_round_trips_than_their_statements_need(db, sent):
    db.append_message("s", "user", "x")
    assert words(sent) == ["UPDATE", "INSERT", "INSERT", "COMMIT"]
    sent.clear()
    db.update_token_counts("s", input_tokens=5)
    assert words(sent) == ["INSERT", "UPDATE", "COMMIT"]


def test_transaction_that_was_not_committed_is_ended_before_the_next_caller_has_it(db, sent):
    """The rollback is left out only where a commit was the last that was sent."""
    engine = db._port.database.engine
    db.append_message("s", "user", "x")
    with engine.connect() as conn:
        conn.execute(text("UPDATE sessions SET source = 'lost' WHERE id = 's'"))
    with engine.connect() as conn:
        begun = conn.connection.driver_connection
        begun.cursor().execute("UPDATE sessions SET source = 'lost' WHERE id = 's'")
    assert words(sent)[-4:] == ["UPDATE", "ROLLBACK", "UPDATE", "ROLLBACK"]
    assert db.get_session("s")["source"] == "cli"


def test_change_that_is_sent_again_is_made_once_and_has_its_first_result(db):
    database = db._port.database
    row = MessageRow(role="user", timestamp=1.0, content="once")
    ticket = database.tickets.issue(MessageAppend(session_id="s", message=row))
    results = [database.write([ticket], time.monotonic() + 60) for _ in range(3)]
    assert results[0] == results[1] == results[2]
    assert results[0][0].result == db.get_messages("s")[0]["id"]
    assert (db.message_count("s"), db.get_session("s")["message_count"]) == (1, 1)
    assert db.append_message("s", "user", "next") != results[0][0].result


def test_change_that_is_sent_again_while_the_first_attempt_is_under_way_is_made_once(db):
    """The first attempt has sent all but its commit, and its client has given its connection up."""
    database = db._port.database
    row = MessageRow(role="user", timestamp=1.0, content="once")
    ticket = database.tickets.issue(MessageAppend(session_id="s", message=row))
    again = []
    with database.engine.connect() as first:
        with first.begin():
            made = apply_and_note(ServerConnection(first, database.dialect), ticket, SESSIONS)
            second = threading.Thread(
                target=lambda: again.append(database.write([ticket], time.monotonic() + 60))
            )
            second.start()
            await_a_lock(database.engine)
        second.join(60)
    assert [outcome.result for (outcome,) in again] == [made]
    assert (db.message_count("s"), db.get_session("s")["message_count"]) == (1, 1)


def test_append_to_no_session_says_so_and_leaves_nothing(db, sent):
    with pytest.raises(ConstraintFailed):
        db.append_message("none", "user", "x")
    assert sent[-1].startswith("ROLLBACK")
    assert db.append_message("s", "user", "x")
    assert db.message_count() == 1


def test_pipelines_of_all_threads_share_transactions(db):
    """While one commit is under way, what all pipelines send gathers for the next one."""

    def write():
        with db.pipeline() as pipeline:
            for number in range(10):
                pipeline.append_message("s", "user", str(number))

    threads = [threading.Thread(target=write) for _ in range(4)]
    commits, me = [], db._port.database.engine
    event.listen(me, "commit", lambda _: commits.append(1))
    with me.connect() as holder, holder.begin() as transaction:
        holder.execute(text("SELECT 1 FROM sessions WHERE id = 's' FOR UPDATE"))
        threads[0].start()
        await_a_lock(me)
        for thread in threads[1:]:
            thread.start()
        wait_for(lambda: db._port._queue.qsize() >= 30)
        transaction.rollback()
    for thread in threads:
        thread.join(60)
    # One for what the first had sent when it met the lock, one for all the rest.
    assert len(commits) == 2
    assert db.message_count("s") == 40
