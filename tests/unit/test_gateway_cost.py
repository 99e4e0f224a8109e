"""The cost of a message by the number of chats, counted in steps of SQLite and in bytes."""

import os

import hermes_protocol.operations as ops
from hermes_actor import SessionDB
from hermes_actor.gateway import GatewayConfig, Hooks, SessionSource, SessionStore
from hermes_actor.sqlite import connect_reader
from hermes_actor.store.gateway.entries import dumps
from hermes_actor.store.gateway.reads import route_state

CHAT = SessionSource(platform="telegram", chat_id="7", user_id="u")
FEW, MANY = 10, 10_000


def opened(folder, chats):
    db = SessionDB(folder / "state.db", mode="embedded")
    config = GatewayConfig(write_jsonl=False)
    store = SessionStore(config=config, db=db, hooks=Hooks(entry_points=False))
    entry = store.get_or_create_session(CHAT)
    for begin in range(0, chats, 1000):
        put = {}
        for number in range(begin, min(begin + 1000, chats)):
            key = f"{entry.session_key}{number}"
            put[key] = dumps(entry.to_dict() | {"session_key": key, "session_id": f"s{number}"})
        db._submit(ops.RoutesWrite(scope=store.scope, now=1.0, put=put))
    store.get_or_create_session(CHAT)
    store.flush()
    return db, store, entry


def steps_of_a_read(db, store, key):
    conn = connect_reader(db.db_path)
    steps = [0]

    def count():
        steps[0] += 1
        return 0

    assert route_state(conn, store.scope, key) is not None  # the schema is read
    conn.set_progress_handler(count, 1)
    assert route_state(conn, store.scope, key) is not None
    conn.set_progress_handler(None, 0)
    conn.close()
    return steps[0]


def measured(folder, chats):
    """Steps of the read of a message, its changes of the database, and writes of the index."""
    folder.mkdir()
    db, store, entry = opened(folder, chats)
    try:
        steps = steps_of_a_read(db, store, entry.session_key)
        index = store.sessions_dir / "sessions.json"
        before = os.stat(index).st_mtime_ns, os.stat(f"{db.db_path}-wal").st_size
        for _ in range(20):
            assert store.get_or_create_session(CHAT).session_id == entry.session_id
        after = os.stat(index).st_mtime_ns, os.stat(f"{db.db_path}-wal").st_size
        assert before == after  # neither the database nor the index file is written
        db._submit(ops.RouteChange(scope=store.scope, key=entry.session_key, set="{}", now=2e9))
        return steps, os.stat(f"{db.db_path}-wal").st_size - after[1]
    finally:
        store.close()
        db.close()


def test_a_message_costs_the_same_whatever_the_number_of_chats(tmp_path):
    few, written_by_few = measured(tmp_path / "few", FEW)
    many, written_by_many = measured(tmp_path / "many", MANY)
    assert many <= 1.3 * few
    # A deeper tree has more pages on the way to a row, of 4 KiB each.
    assert written_by_many <= written_by_few + 4 * 4200
