"""The public names of ``hermes_state``, with their signatures, are those that programs rely on."""

import inspect
import logging
import os
import sqlite3

import pytest
from support.files import MESSAGE_COLUMNS, SESSION_COLUMNS
from support.processes import run_python

import hermes_actor
from hermes_actor import SessionDB, hermes_state

# Every public method with its parameters; `*` stands before keyword-only ones.
SIGNATURES = {
    "create_session": "session_id source **",
    "ensure_session": "session_id source='unknown' model=None **",
    "end_session": "session_id end_reason",
    "reopen_session": "session_id",
    "get_session": "session_id",
    "update_system_prompt": "session_id system_prompt",
    "update_token_counts": """
        session_id input_tokens=0 output_tokens=0 model=None cache_read_tokens=0
        cache_write_tokens=0 reasoning_tokens=0 estimated_cost_usd=None actual_cost_usd=None
        cost_status=None cost_source=None pricing_version=None billing_provider=None
        billing_base_url=None billing_mode=None api_call_count=0 absolute=False""",
    "close": "",
    "append_message": """
        session_id role content=None tool_name=None tool_calls=None tool_call_id=None
        token_count=None finish_reason=None reasoning=None reasoning_content=None
        reasoning_details=None codex_reasoning_items=None codex_message_items=None""",
    "replace_messages": "session_id messages",
    "clear_messages": "session_id",
    "get_messages": "session_id",
    "get_messages_as_conversation": "session_id include_ancestors=False",
    "sanitize_title": "title",
    "set_session_title": "session_id title",
    "get_session_title": "session_id",
    "get_session_by_title": "title",
    "resolve_session_by_title": "title",
    "get_next_title_in_lineage": "base_title",
    "resolve_session_id": "session_id_or_prefix",
    "get_compression_tip": "session_id",
    "resolve_resume_session_id": "session_id",
    "list_sessions_rich": """
        source=None exclude_sources=None limit=20 offset=0 include_children=False
        project_compression_tips=True order_by_last_active=False""",
    "search_sessions": "source=None limit=20 offset=0",
    "search_messages": """
        query source_filter=None exclude_sources=None role_filter=None limit=20 offset=0""",
    "session_count": "source=None",
    "message_count": "session_id=None",
    "export_session": "session_id",
    "export_all": "source=None",
    "delete_session": "session_id sessions_dir=None",
    "prune_sessions": "older_than_days=90 source=None sessions_dir=None",
    "prune_empty_ghost_sessions": "sessions_dir=None",
    "finalize_orphaned_compression_sessions": "",
    "get_meta": "key",
    "set_meta": "key value",
    "vacuum": "",
    "maybe_auto_prune_and_vacuum": """
        retention_days=90 min_interval_hours=24 vacuum=True sessions_dir=None""",
    "apply_telegram_topic_migration": "",
    "enable_telegram_topic_mode": """
        * chat_id user_id has_topics_enabled=None allows_users_to_create_topics=None""",
    "disable_telegram_topic_mode": "* chat_id clear_bindings=True",
    "is_telegram_topic_mode_enabled": "* chat_id user_id",
    "get_telegram_topic_binding": "* chat_id thread_id",
    "bind_telegram_topic": """
        * chat_id thread_id user_id session_key session_id managed_mode='auto'""",
    "is_telegram_session_linked_to_topic": "* session_id",
    "list_unlinked_telegram_sessions_for_user": "* chat_id user_id limit=10",
    "request_handoff": "session_id platform",
    "get_handoff_state": "session_id",
    "list_pending_handoffs": "",
    "claim_handoff": "session_id",
    "complete_handoff": "session_id",
    "fail_handoff": "session_id error",
}


def parameters(function):
    words, keyword_only = [], False
    for p in inspect.signature(function).parameters.values():
        if p.name in ("self", "turn"):  # a keyword of our own, which no caller of the past knows
            continue
        if p.kind is p.VAR_KEYWORD:
            words.append("**")
            continue
        if p.kind is p.KEYWORD_ONLY and not keyword_only:
            words.append("*")
            keyword_only = True
        words.append(p.name if p.default is p.empty else f"{p.name}={p.default!r}")
    return words


def test_every_public_method_has_a_contract():
    bare = [
        name
        for name, method in inspect.getmembers(SessionDB, callable)
        if not name.startswith("_") and not (method.__doc__ or "").strip()
    ]
    assert bare == []


class RefusesWal:
    """A connection whose file system cannot do WAL (and perhaps not even DELETE)."""

    def __init__(self, connection, message, *, refuse_delete=False):
        self.connection = connection
        self.message = message
        self.refuse_delete = refuse_delete
        self.statements = []

    def execute(self, sql, *args):
        text = "".join(sql.lower().split())
        self.statements.append(text)
        if "journal_mode=wal" in text:
            raise sqlite3.OperationalError(self.message)
        if "journal_mode=delete" in text and self.refuse_delete:
            raise sqlite3.OperationalError("no delete either")
        return self.connection.execute(sql, *args)


@pytest.fixture
def connection(tmp_path):
    connection = sqlite3.connect(tmp_path / "w.db")
    yield connection
    connection.close()


@pytest.fixture
def warned(caplog):
    hermes_state._wal_fallback_warned_paths.clear()
    caplog.set_level(logging.DEBUG, logger="hermes_state")
    return lambda: [
        r.getMessage()
        for r in caplog.records
        if r.name == "hermes_state" and r.levelno == logging.WARNING
    ]


@pytest.fixture(autouse=True)
def no_recorded_error():
    hermes_state._set_last_init_error(None)
    yield
    hermes_state._set_last_init_error(None)


# Names.


def test_there_are_51_public_methods_with_the_given_parameters():
    assert len(SIGNATURES) == 51
    got = {name: parameters(getattr(SessionDB, name)) for name in SIGNATURES}
    assert got == {name: text.split() for name, text in SIGNATURES.items()}


def test_constants():
    assert hermes_state.SCHEMA_VERSION == 11
    assert str(hermes_state.DEFAULT_DB_PATH) == f"{os.environ['HERMES_HOME']}/state.db"
    assert hermes_state._WAL_INCOMPAT_MARKERS == (
        "locking protocol",
        "not authorized",
        "disk i/o error",
    )
    assert isinstance(hermes_state._wal_fallback_warned_paths, set)
    assert hermes_state.sqlite3 is sqlite3


def test_class_constants():
    assert SessionDB.MAX_TITLE_LENGTH == 100
    assert SessionDB._CONTENT_JSON_PREFIX == "\x00json:"
    assert SessionDB._WRITE_MAX_RETRIES == 15
    assert SessionDB._CHECKPOINT_EVERY_N_WRITES == 50


def test_session_db_is_the_same_class_everywhere():
    assert hermes_actor.SessionDB is SessionDB is hermes_state.SessionDB


def test_logger_is_named_after_the_module_it_stands_for():
    assert hermes_state.logger is logging.getLogger("hermes_state")


@pytest.mark.parametrize(
    "name",
    [
        "_sanitize_fts5_query",
        "_contains_cjk",
        "_parse_schema_columns",
        "_remove_session_files",
        "_is_duplicate_replayed_user_message",
    ],
)
def test_helper_is_static(name):
    assert isinstance(inspect.getattr_static(SessionDB, name), staticmethod)


def test_source_of_the_constructor_contains_30():
    assert "30" in inspect.getsource(SessionDB.__init__)


def test_web_server_finds_no_other_connection_before_the_real_one(db):
    assert not hasattr(db, "conn")


# The schema texts.


def live_columns(db, table):
    text = {}
    for _, name, kind, not_null, default, key in db._conn.execute(f"PRAGMA table_info({table})"):
        words = [kind]
        if not_null and not key:
            words.append("NOT NULL")
        if default is not None:
            words.append(f"DEFAULT {default}")
        text[name] = " ".join(words)
    return text


def test_schema_text_declares_what_the_live_file_has(db):
    declared = SessionDB._parse_schema_columns(hermes_state.SCHEMA_SQL)
    assert declared == {table: live_columns(db, table) for table in declared}
    assert set(declared) == {"schema_version", "sessions", "messages", "state_meta"}
    assert list(declared["sessions"]) == SESSION_COLUMNS
    assert list(declared["messages"]) == MESSAGE_COLUMNS


def test_schema_texts_make_a_working_database():
    connection = sqlite3.connect(":memory:")
    for script in (hermes_state.SCHEMA_SQL, hermes_state.FTS_SQL, hermes_state.FTS_TRIGRAM_SQL):
        connection.executescript(script)
    connection.execute("INSERT INTO sessions (id, source, started_at) VALUES ('s', 'cli', 1)")
    connection.execute(
        "INSERT INTO messages (session_id, role, content, tool_name, timestamp)"
        " VALUES ('s', 'user', 'hello', 'tool', 1)"
    )
    for table in ("messages_fts", "messages_fts_trigram"):
        rows = connection.execute(f"SELECT rowid, content FROM {table}").fetchall()
        assert rows == [(1, "hello tool ")]
    connection.close()


# WAL and its fall-back.


@pytest.mark.parametrize(
    "message", ["locking protocol", "not authorized", "disk I/O error", "Locking Protocol (15)"]
)
def test_file_system_without_wal_gets_delete_mode_and_one_warning(connection, warned, message):
    refusing = RefusesWal(connection, message)
    assert hermes_state.apply_wal_with_fallback(refusing, db_label="kanban.db (x)") == "delete"
    assert any("journal_mode=wal" in text for text in refusing.statements)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    (text,) = warned()
    for part in ("kanban.db (x)", message, "journal_mode=DELETE"):
        assert part in text


def test_each_label_warns_once(connection, warned):
    for label in ("a.db", "a.db", "b.db", "a.db", "b.db"):
        refusing = RefusesWal(connection, "locking protocol")
        assert hermes_state.apply_wal_with_fallback(refusing, db_label=label) == "delete"
    assert ["a.db" in warned()[0], "b.db" in warned()[1], len(warned())] == [True, True, 2]
    hermes_state._wal_fallback_warned_paths.clear()
    hermes_state.apply_wal_with_fallback(RefusesWal(connection, "locking protocol"))
    assert "state.db" in warned()[2]


def test_label_is_state_db_by_default(connection, warned):
    hermes_state.apply_wal_with_fallback(RefusesWal(connection, "locking protocol"))
    assert "state.db" in warned()[0]


def test_other_errors_of_the_pragma_propagate(connection, warned):
    with pytest.raises(sqlite3.OperationalError, match="database is locked"):
        hermes_state.apply_wal_with_fallback(RefusesWal(connection, "database is locked"))
    assert warned() == []


def test_failure_of_the_fall_back_propagates(connection, warned):
    refusing = RefusesWal(connection, "locking protocol", refuse_delete=True)
    with pytest.raises(sqlite3.OperationalError, match="no delete either"):
        hermes_state.apply_wal_with_fallback(refusing)


def test_success_is_the_absence_of_an_error(connection, warned):
    assert hermes_state.apply_wal_with_fallback(connection) == "wal"
    memory = sqlite3.connect(":memory:")
    assert hermes_state.apply_wal_with_fallback(memory) == "wal"
    memory.close()
    assert warned() == []


def test_store_on_a_file_system_without_wal_works_in_delete_mode(tmp_path):
    code = """
        import logging, sys
        from pathlib import Path
        from support.subprocess_env import *

        class Keep(logging.Handler):
            def emit(self, record):
                kept.append(record.getMessage())

        kept = []
        logging.getLogger("hermes_state").addHandler(Keep(logging.WARNING))
        without_wal()
        from hermes_actor import SessionDB

        for name in ("one.db", "two.db"):
            db = SessionDB(Path(sys.argv[1]) / name, mode="embedded")
            db.create_session("s", "cli")
            db.append_message("s", "user", "hello")
            hits = [m["id"] for m in db.search_messages("hello")]
            journal = db._conn.execute("PRAGMA journal_mode").fetchone()[0]
            db.close()
        tell([hits, journal, len(kept), "state.db" in kept[0]])
    """
    assert run_python(code, tmp_path) == [[1], "delete", 1, True]


# The last error of opening.


def test_failed_open_is_recorded_and_success_does_not_clear_it(mode, tmp_path):
    with pytest.raises(sqlite3.OperationalError):
        SessionDB(tmp_path, mode=mode)
    recorded = "OperationalError: unable to open database file"
    assert hermes_state.get_last_init_error() == recorded
    SessionDB(tmp_path / "state.db", mode=mode).close()
    assert hermes_state.get_last_init_error() == recorded


def test_failure_before_connecting_is_not_recorded(mode, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="empty"):
        SessionDB("", mode=mode)
    with pytest.raises(OSError):  # noqa: PT011
        SessionDB(tmp_path / "file" / "state.db", mode=mode)
    assert hermes_state.get_last_init_error() is None


def test_unavailable_text_names_prefix_cause_and_hint():
    text = hermes_state.format_session_db_unavailable
    assert text() == "Session database not available."
    assert text(prefix="No history") == "No history."
    hermes_state._set_last_init_error("OperationalError: database is locked")
    assert text("P") == "P: OperationalError: database is locked."
    for cause in ("Locking Protocol", "not authorized", "disk I/O error"):
        hermes_state._set_last_init_error(f"OperationalError: {cause}")
        assert text("P").startswith(f"P: OperationalError: {cause} (")
        assert text("P").endswith(").")
        assert "NFS/SMB" in text("P")
        assert "sqlite.org/wal.html" in text("P")


# The default path.


@pytest.mark.parametrize(
    ("value", "expected"), [("{}", "{}"), ("  {}  ", "{}"), ("", "~/.hermes"), ("  ", "~/.hermes")]
)
def test_default_path_follows_hermes_home(tmp_path, value, expected):
    code = """
        import json
        from pathlib import Path
        from hermes_actor import hermes_state
        print(json.dumps(str(hermes_state.DEFAULT_DB_PATH)))
    """
    home = tmp_path / "me"
    got = run_python(code, HOME=str(home), HERMES_HOME=value.format(tmp_path / "h"))
    folder = expected.format(tmp_path / "h").replace("~", str(home))
    assert got == f"{folder}/state.db"
    assert list(tmp_path.iterdir()) == []


def test_default_path_is_taken_once(tmp_path):
    code = """
        import json, os, sys
        from hermes_actor import SessionDB
        os.environ["HERMES_HOME"] = sys.argv[1] + "/later"
        dbs = [SessionDB(mode="embedded"), SessionDB(None, mode="embedded")]
        print(json.dumps([str(db.db_path) for db in dbs]))
        for db in dbs:
            db.close()
    """
    first = tmp_path / "first"
    assert run_python(code, tmp_path, HERMES_HOME=str(first)) == [str(first / "state.db")] * 2
