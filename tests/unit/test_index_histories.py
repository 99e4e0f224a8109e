"""Random histories: whatever happens to the indexes, the messages are those of a file in which
nothing did, and in the end both indexes hold exactly them."""

import random
import sqlite3
from contextlib import contextmanager, suppress

import pytest
from support.files import FTS_TABLES, TRIGGERS, query, raw
from support.index_damage import PAGES, damage

from hermes_actor import limits
from hermes_actor.engine.jobs import Request
from hermes_actor.engine.writer import Writer
from hermes_actor.paths import resolve_paths
from hermes_actor.store.schema import FTS_SQL, FTS_TRIGRAM_SQL, INDEXED_TEXT
from hermes_protocol.operations import (
    MessageAppend,
    MessageRow,
    MessagesClear,
    MessagesReplace,
    RowsCopy,
    SessionCreate,
    SessionDelete,
    SqlStatement,
)

BATCHES = 25

MILD = (
    "INSERT INTO messages (session_id, role, timestamp, content) VALUES ('a', 'user', 1, 'guest')",
    "INSERT OR REPLACE INTO messages (id, session_id, role, timestamp, content)"
    " VALUES ({n}, 'a', 'user', 1, 'replaced')",
    "INSERT OR IGNORE INTO messages (id, session_id, role, timestamp, content)"
    " VALUES ({n}, 'b', 'user', 1, 'ignored')",
    "UPDATE messages SET content = 'updated' WHERE id % 5 = {n} % 5",
    "UPDATE messages SET id = id + 1000 WHERE id = {n}",
    "DELETE FROM messages WHERE id % 7 = {n} % 7",
    "DELETE FROM messages WHERE id > {n} AND id < {n} + 20",
    "ALTER TABLE state_meta ADD COLUMN c{n}",
    "REINDEX",
)
HARSH = (
    "DELETE FROM messages",
    "DELETE FROM messages WHERE id > {n}",
    "DELETE FROM sqlite_sequence WHERE name = 'messages'",
    "UPDATE sqlite_sequence SET seq = {n} WHERE name = 'messages'",
)
"""What guests do, and what they do rarely: the indexes are about rows that stay."""


def operation(chance):
    session = chance.choice("abc")

    def row():
        return MessageRow(
            role="user",
            timestamp=chance.random(),
            content=chance.choice(["alpha beta", "gamma", None, "北京烤鸭 x", "d" * 50]),
            tool_name=chance.choice([None, "tool"]),
        )

    kind = chance.randrange(20)
    if kind < 12:
        return MessageAppend(session_id=session, message=row())
    if kind == 12:
        return MessagesReplace(session_id=session, messages=[row()] * chance.randrange(5))
    if kind == 13:
        return MessagesClear(session_id="c")
    if kind == 14:
        return SessionCreate(id=session, source="cli", started_at=1.0)
    if kind == 15:
        columns = ["id", "session_id", "role", "content", "timestamp"]
        rows = [[chance.randrange(-3, 80), session, "user", "copied", 1.0]]
        return RowsCopy(table="messages", columns=columns, rows=rows, update=chance.random() < 0.3)
    if kind == 16:
        return SessionDelete(id="c")
    guests = HARSH if chance.random() < 0.1 else MILD
    return SqlStatement(sql=chance.choice(guests).format(n=chance.randrange(60)))


class Owner:
    """A writer, and what its host does."""

    def __init__(self, path):
        self.path = path
        self.writer = Writer(resolve_paths(path))

    def run(self, operations):
        """Whether each was executed."""
        requests, outcomes = [Request(one) for one in operations], []
        while len(outcomes) < len(requests):
            outcomes += self.writer.run_batch(requests[len(outcomes) :])
        return [outcome.error is None for outcome in outcomes]

    def idle(self):
        for _ in range(10_000):
            pause = self.writer.idle_slice()
            if pause is None or pause > limits.BULK_LOOK_SECONDS:
                return
            if pause:
                self.writer.index.wait_for_bulk(60.0)
        pytest.fail("idle work does not come to an end")

    @contextmanager
    def away(self):
        self.writer.close()
        yield
        self.writer = Writer(resolve_paths(self.path))

    def end(self):
        self.writer.connection.conn.close()


def recreate(path):
    # As far as damaged pages let it.
    with raw(path) as foreign, suppress(sqlite3.DatabaseError):
        for trigger in TRIGGERS:
            foreign.execute(f"DROP TRIGGER IF EXISTS {trigger}")
        for table in FTS_TABLES:
            foreign.execute(f"DROP TABLE IF EXISTS {table}")
        foreign.executescript(FTS_SQL + FTS_TRIGRAM_SQL)


def empty(path, where="1"):
    with raw(path) as foreign, suppress(sqlite3.DatabaseError):
        foreign.execute(f"DELETE FROM messages_fts WHERE {where}")


def interfere(chance, owner, pages):
    """What another program does, or the end of an owner, or a bad disk; whether *pages* suffer."""
    kind, number = chance.randrange(14), chance.randrange(80)
    if kind == 0:
        with owner.away():
            pass
    elif kind == 1:
        recreate(owner.path)
    elif kind == 2:
        with owner.away():
            recreate(owner.path)
    elif kind == 3:
        empty(owner.path)
    elif kind == 4:
        empty(owner.path, f"rowid % 3 = {number} % 3")
    elif kind == 5:
        owner.writer.index.rebuild()
    elif kind == 6 and pages:
        damage(owner.path, chance.choice(list(PAGES)), chance.choice(FTS_TABLES))
        return True
    elif kind in (7, 8, 9, 10):
        owner.writer.index.run_slice(0.0)
    elif kind == 11:
        owner.writer.idle_slice()
    elif kind == 12:
        # One step: what comes next meets chunks that are still on their way.
        owner.writer.index.run_bulk_slice()
        owner.writer.index.wait_for_bulk(chance.choice([0.0, 60.0]))
    return False


def is_true(path):
    wanted = query(path, f"SELECT id, {INDEXED_TEXT.format('')} FROM messages ORDER BY id")
    with raw(path) as conn:
        for table in FTS_TABLES:
            try:
                held = conn.execute(f"SELECT rowid, content FROM {table} ORDER BY rowid").fetchall()
                conn.execute(f"INSERT INTO {table}({table}) VALUES ('integrity-check')")
            except sqlite3.DatabaseError:
                return False
            if held != wanted:
                return False
    return True


def settle(owner, damaged):
    """Let idle time do what it can; then the indexes are true, unless their pages were damaged."""
    owner.idle()
    if damaged and not is_true(owner.path):
        # Pages that no change has met; a search does, and says so.
        ((schema,),) = query(owner.path, "PRAGMA schema_version")
        owner.writer.index.rebuild_if_damaged(schema)
        owner.idle()
    assert is_true(owner.path)


@pytest.mark.parametrize("pages", [False, True], ids=["whole pages", "damaged pages"])
@pytest.mark.parametrize("seed", [*range(11), 16])
def test_random_history(tmp_path, monkeypatch, seed, pages):
    monkeypatch.setattr(limits, "HOLES_AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(limits, "BULK_ROWS", 8)
    chance, damaged = random.Random(seed), False
    owner, twin = Owner(tmp_path / "state.db"), Owner(tmp_path / "twin.db")
    rows = "SELECT * FROM messages ORDER BY id"
    sessions = [SessionCreate(id=name, source="cli", started_at=1.0) for name in "abc"]
    try:
        assert owner.run(sessions) == twin.run(sessions) == [True] * 3
        for _ in range(BATCHES):
            batch = [operation(chance) for _ in range(chance.choice([1, 1, 2, 5, 12]))]
            assert owner.run(batch) == twin.run(batch)
            damaged |= interfere(chance, owner, pages)
            if chance.random() < 0.25:
                settle(owner, damaged)
                damaged = False
        assert query(owner.path, rows) == query(twin.path, rows)
        settle(owner, damaged)
        settle(twin, False)
        assert query(owner.path, "PRAGMA integrity_check") == [("ok",)]
    finally:
        owner.end()
        twin.end()
