"""How SQLite answers the statements that are really run; no statement is repeated here."""

import sqlite3
from typing import NamedTuple
from urllib.parse import quote

import pytest

from hermes_actor import SessionDB
from hermes_actor.client import reader
from hermes_actor.engine.environment import Environment
from hermes_actor.engine.jobs import Request
from hermes_actor.engine.writer import Writer
from hermes_actor.paths import resolve_paths
from hermes_actor.sqlite import Connection
from hermes_protocol import operations as ops

SORT = "USE TEMP B-TREE FOR ORDER BY"


class Plan(NamedTuple):
    """A statement that was run, and its plan: each step with the steps that it is part of."""

    sql: str
    steps: list[tuple[str, ...]]

    @property
    def lines(self):
        return [step[-1] for step in self.steps]


class Recorder:
    def __init__(self):
        self.plans = []

    def connect(self, path, mode):
        recorder = self

        class Cursor(sqlite3.Cursor):
            def execute(self, sql, parameters=()):
                recorder.explain(self.connection, sql, parameters)
                return super().execute(sql, parameters)

        class Recording(Connection):
            def execute(self, sql, parameters=()):
                recorder.explain(self, sql, parameters)
                return super().execute(sql, parameters)

            def executemany(self, sql, rows):
                rows = list(rows)
                if rows:
                    recorder.explain(self, sql, rows[0])
                return super().executemany(sql, rows)

            def cursor(self, factory=Cursor):
                return super().cursor(factory)

        return sqlite3.connect(
            f"file:{quote(str(path))}?mode={mode}", uri=True, timeout=0, isolation_level=None,
            check_same_thread=False, factory=Recording,
        )  # fmt: skip

    def explain(self, conn, sql, parameters):
        """Explain on the very connection and at the very moment of the statement."""
        if sql.split(None, 1)[0].upper() not in ("SELECT", "WITH", "INSERT", "UPDATE", "DELETE"):
            return
        paths = {0: ()}
        rows = sqlite3.Connection.execute(conn, f"EXPLAIN QUERY PLAN {sql}", parameters).fetchall()
        for number, parent, _, detail in rows:
            paths[number] = (*paths[parent], detail)
        self.plans.append(Plan(" ".join(sql.split()), list(paths.values())[1:]))

    def of(self, call):
        """The plans of everything that *call* runs on the tables of the store."""
        self.plans.clear()
        call()
        return [
            plan
            for plan in self.plans
            if "sqlite_master" not in plan.sql and "hermes_actor_meta" not in plan.sql
        ]


@pytest.fixture
def recorder(monkeypatch):
    recorder = Recorder()
    monkeypatch.setattr(reader, "connect_reader", lambda path: recorder.connect(path, "ro"))
    return recorder


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """More sessions of one source than are surveyed one by one."""
    path = tmp_path_factory.mktemp("plans") / "state.db"
    db = SessionDB(path, mode="embedded")

    def fill(face):
        face.executemany(
            "INSERT INTO sessions (id, source, user_id, started_at) VALUES (?, ?, 'u', ?)",
            [(f"s{n}", "cli" if n % 10 else "telegram", n) for n in range(300)],
        )
        face.executemany(
            "INSERT INTO messages (session_id, role, content, tool_name, timestamp)"
            " VALUES (?, 'user', '北京 hello 上海烤鸭店', ?, ?)",
            [(f"s{n}", f"tool{n % 3}", 1000 + n) for n in range(300)],
        )

    db._execute_write(fill)
    db.continue_session("s7", "continued")
    db.append_message("continued", "user", "x")
    db.search_messages("hello")
    db.close()
    return path


@pytest.fixture
def db(recorder, path):
    db = SessionDB(path, mode="embedded")
    yield db
    db.close()


def the(plans, fragment):
    """The one plan whose statement contains *fragment*."""
    (plan,) = [plan for plan in plans if fragment in plan.sql]
    return plan


def scans(plans, *tables):
    """Steps that walk through a whole table or index."""
    names = {f"SCAN {table}" for table in tables}
    return [line for plan in plans for line in plan.lines if " ".join(line.split()[:2]) in names]


def uses(plan, index, how="SEARCH"):
    return any(line.startswith(how) and index in line for line in plan.lines)


def sorts_everything(plan):
    """A sort of more than the page: one inside the subquery that cuts the page."""
    return any(step[-1] == SORT and len(step) > 1 for step in plan.steps)


# Lists.


def test_newest_of_a_source_come_from_an_index_without_sorting(db, recorder):
    plan = the(recorder.of(lambda: db.list_sessions_rich(source="cli")), "preview")
    assert uses(plan, "hermes_actor_sessions_source (source=?)")
    assert not sorts_everything(plan)
    assert scans([plan], "s", "sessions", "m", "messages") == []


@pytest.mark.parametrize("options", [{}, {"exclude_sources": ["x"]}, {"include_children": True}])
def test_newest_of_all_come_from_an_index_without_sorting(db, recorder, options):
    plan = the(recorder.of(lambda: db.list_sessions_rich(**options)), "preview")
    assert uses(plan, "idx_sessions_started", "SCAN")
    assert not sorts_everything(plan)
    assert scans([plan], "m", "messages") == []


@pytest.mark.parametrize(
    "call",
    [
        lambda db: db.list_sessions_rich(),
        lambda db: db.list_sessions_rich(source="cli"),
        lambda db: db.list_sessions_rich(order_by_last_active=True),
        lambda db: db._get_session_rich_row("s1"),
        lambda db: db.list_unlinked_telegram_sessions_for_user(chat_id=1, user_id="u"),
    ],
    ids=["newest", "source", "active", "one", "telegram"],
)
def test_previews_and_last_activity_come_from_the_index_of_a_session(db, recorder, call):
    plans = [plan for plan in recorder.of(lambda: call(db)) if "AS preview" in plan.sql]
    assert plans
    for plan in plans:
        assert "SEARCH m USING COVERING INDEX idx_messages_session (session_id=?)" in plan.lines
        assert "SEARCH m USING INDEX idx_messages_session (session_id=?)" in plan.lines
        assert scans([plan], "m", "messages") == []


@pytest.mark.parametrize(
    "call",
    [
        lambda db: db.list_sessions_rich(order_by_last_active=True),
        lambda db: db.list_sessions_rich(order_by_last_active=True, source="cli", offset=5),
        lambda db: db.list_sessions_rich(order_by_last_active=True, include_children=True),
        lambda db: db.search_sessions(),
        lambda db: db.search_sessions(source="cli"),
    ],
    ids=["rich", "rich source", "rich children", "search", "search source"],
)
def test_latest_active_are_walked_in_covering_indexes(db, recorder, call):
    plans = recorder.of(lambda: call(db))
    walk = the(plans, "FROM messages ORDER BY timestamp")
    assert walk.lines == ["SCAN messages USING COVERING INDEX hermes_actor_messages_time"]
    # A range of the index: without it, a file that has no such session is looked through whole.
    silent = the(plans, "NOT EXISTS (SELECT 1 FROM messages m WHERE m.session_id = s.id)")
    assert uses(silent, "idx_sessions_started (started_at>?)")
    assert uses(silent, "COVERING INDEX idx_messages_session (session_id=?)")
    others = [plan for plan in plans if plan not in (walk, silent)]
    assert scans(others, "s", "sessions", "m", "messages") == []
    assert not any(SORT in plan.lines for plan in (walk, silent))


def test_walk_touches_little_more_than_it_shows(db, recorder):
    plans = recorder.of(lambda: db.list_sessions_rich(order_by_last_active=True, limit=5))
    assert len(plans) < 40


def test_small_source_is_surveyed_through_its_index(db, recorder):
    plans = recorder.of(lambda: db.search_sessions(source="telegram"))
    survey = next(plan for plan in plans if "s.end_reason FROM sessions" in plan.sql)
    assert uses(survey, "(source=?)")
    assert scans(plans, "s", "sessions", "m", "messages") == []


# Messages and ids.


def test_messages_of_a_session_come_from_its_index(db, recorder):
    (plan,) = recorder.of(lambda: db.get_messages("s1"))
    assert plan.lines[0] == "SEARCH messages USING INDEX idx_messages_session (session_id=?)"


@pytest.mark.parametrize("ancestors", [False, True])
def test_replay_comes_from_the_index_of_its_sessions(db, recorder, ancestors):
    plans = recorder.of(
        lambda: db.get_messages_as_conversation("continued", include_ancestors=ancestors)
    )
    assert uses(the(plans, "reasoning_content"), "idx_messages_session (session_id=?)")
    assert scans(plans, "m", "messages", "s", "sessions") == []


@pytest.mark.parametrize(
    "call",
    [
        lambda db: db.get_session("s1"),
        lambda db: db.get_session_title("s1"),
        lambda db: db.get_session_by_title("t"),
        lambda db: db.resolve_session_id("s1"),
        lambda db: db.get_compression_tip("s7"),
        lambda db: db.resolve_resume_session_id("nobody"),
        lambda db: db._session_lineage_root_to_tip("continued"),
        lambda db: db.message_count("s1"),
        lambda db: db.session_count("cli"),
        lambda db: db.export_session("s1"),
        lambda db: db.get_handoff_state("s1"),
        lambda db: db.get_meta("k"),
    ],
)
def test_look_up_scans_nothing(db, recorder, call):
    plans = recorder.of(lambda: call(db))
    assert plans
    assert not [line for plan in plans for line in plan.lines if line.startswith("SCAN")]


# Search.


@pytest.mark.parametrize("query", ["北", "北京", "京 上海", "北 鸭"])
@pytest.mark.parametrize("options", [{}, {"limit": -1}, {"role_filter": ["user"]}, {"offset": 3}])
def test_short_cjk_terms_do_not_scan_messages(db, recorder, query, options):
    found = []
    plans = recorder.of(lambda: found.extend(db.search_messages(query, **options)))
    assert found
    # The index of texts with a NUL inside is walked as a whole: it is all but empty.
    walked = scans(plans, "m", "messages", "s", "sessions")
    assert [line for line in walked if "hermes_actor_messages_nul" not in line] == []
    vocabulary = [plan for plan in plans if "vocabulary" in plan.sql]
    assert vocabulary
    for plan in vocabulary:  # a range of terms and not all of them
        assert any("VIRTUAL TABLE INDEX" in line for line in plan.lines)
        assert not any(line.endswith("VIRTUAL TABLE INDEX 0:") for line in plan.lines)


def test_tool_names_are_looked_up_by_distinct_value(db, recorder):
    plans = recorder.of(lambda: db.search_messages("北京"))
    names = the(plans, "MIN(tool_name)")
    lines = [line for line in names.lines if "messages" in line]
    assert lines
    assert all(line.startswith("SEARCH") for line in lines)
    assert all("COVERING INDEX hermes_actor_messages_tool_cjk" in line for line in lines)


@pytest.mark.parametrize("query", ["hello", "上海烤鸭店", "hel*", "hello NOT nothing"])
def test_full_text_search_starts_from_the_index(db, recorder, query):
    found = []
    plans = recorder.of(lambda: found.extend(db.search_messages(query)))
    assert found
    assert scans(plans, "m", "messages", "s", "sessions") == []
    assert any("VIRTUAL TABLE INDEX" in plan.lines[0] for plan in plans if "MATCH" in plan.sql)


def test_context_comes_from_the_index_of_the_session(db, recorder):
    plan = recorder.of(lambda: db.search_messages("hello", limit=1))[-1]
    assert "UNION ALL" in plan.sql
    found = [line for line in plan.lines if "idx_messages_session" in line]
    assert len(found) == 2
    assert all("(session_id=? AND timestamp" in line for line in found)


# Changes.

ROW = ops.MessageRow(role="user", timestamp=1.0, content="x")


@pytest.mark.parametrize(
    "operation",
    [
        ops.SessionCreate(id="new", source="cli", started_at=1.0, parent_session_id="s1"),
        ops.SessionEnd(id="s1", ended_at=1.0),
        ops.SessionReopen(id="s1"),
        ops.SessionPrompt(id="s1", system_prompt="p"),
        ops.SessionTitle(id="s1", title="t"),
        ops.SessionTokens(id="s1", started_at=1.0, input_tokens=1),
        ops.SessionDelete(id="s1"),
        ops.MessageAppend(session_id="s1", message=ROW),
        ops.MessagesReplace(session_id="s1", messages=[ROW, ROW]),
        ops.MessagesClear(session_id="s1"),
        ops.MetaSet(key="k", value="v"),
        ops.HandoffRequest(id="s1", platform="p"),
        ops.HandoffClaim(id="s1"),
        ops.HandoffFinish(id="s1", state="completed"),
    ],
    ids=lambda operation: type(operation).__name__,
)
def test_change_scans_nothing(path, tmp_path, operation):
    copy = tmp_path / "state.db"
    copy.write_bytes(path.read_bytes())
    recorder = Recorder()
    env = Environment(connect_writer=lambda file: recorder.connect(file, "rw"))
    writer = Writer(resolve_paths(copy), env)
    try:
        writer.run_batch([Request(ops.MetaSet(key="first", value="passes the barrier"))])
        outcomes = []
        plans = recorder.of(lambda: outcomes.extend(writer.run_batch([Request(operation)])))
        assert outcomes[0].error is None
        assert plans
        assert scans(plans, "messages", "sessions", "m", "s", "c", "p") == []
    finally:
        writer.close()
