"""Random programs against a store and against a model of it: every read method must agree.

``--hypothesis-profile=long`` runs many more and longer ones.
"""

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.programs import GHOST_OF_A_GHOST, LONG, SOURCES, programs, run_on

from hermes_actor import SessionDB
from hermes_actor.sqlite import Connection
from hermes_actor.store.schema import OWN_INDEXES, SCHEMA_SQL, statements
from hermes_actor.store.sessions import activity
from hermes_actor.store.sessions.activity import Listed, by_activity


@pytest.mark.timeout(7200 if LONG else 300)
@settings(
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(programs())
def test_store_and_model_agree(program):
    run(program)


@pytest.mark.parametrize("program", [GHOST_OF_A_GHOST], ids=["ghost of a ghost"])
def test_programs_that_were_found(program):
    run(program)


def run(program):
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(SessionDB(Path(folder) / "state.db", mode="embedded")) as db,
    ):
        run_on(db, program)


# --- two plans, equal pages ----------------------------------------------------------------------

TIMES = st.integers(1, 6).map(float)


@st.composite
def families(draw):
    """Sessions and messages as any program may have written them, cycles included."""
    count = draw(st.integers(1, 8))
    everybody = [f"s{n}" for n in range(count)]
    sessions = [
        (
            name,
            draw(st.sampled_from(SOURCES)),
            draw(st.sampled_from([None, None, *everybody])),
            draw(TIMES),
            *draw(
                st.one_of(
                    st.just((None, None)),
                    st.tuples(TIMES, st.sampled_from(["compression", "branched", None])),
                )
            ),
        )
        for name in everybody
    ]
    messages = draw(st.lists(st.tuples(st.sampled_from(everybody), TIMES), max_size=12))
    return sessions, messages


@pytest.fixture(scope="module")
def memory():
    """A store's tables in memory, with the extra indexes; foreign keys are not looked at."""
    conn = sqlite3.connect(":memory:", isolation_level=None, factory=Connection)
    for statement in statements(SCHEMA_SQL):
        conn.execute(statement)
    for name, target in OWN_INDEXES.items():
        conn.execute(f"CREATE INDEX {name} ON {target}")
    yield conn
    conn.close()


@given(
    families(),
    st.sampled_from([("1", ()), ("s.source = ?", ("cli",)), ("s.parent_session_id IS NULL", ())]),
    st.sampled_from([-1, 0, 1, 2, 3, 20]),
    st.integers(0, 5),
    st.booleans(),
    st.sampled_from([0, 1, 3, 20_000]),
)
def test_walk_and_survey_give_equal_pages(
    memory, family, condition, limit, offset, through_lineage, budget
):
    sessions, messages = family
    where, parameters = condition
    listed = Listed(where, parameters, parameters[0] if parameters else None)
    memory.execute("BEGIN")
    try:
        memory.executemany(
            "INSERT INTO sessions (id, source, parent_session_id, started_at, ended_at, end_reason)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            sessions,
        )
        memory.executemany(
            "INSERT INTO messages (session_id, role, timestamp) VALUES (?, 'user', ?)", messages
        )
        pages = []
        for drop in ("", "DROP INDEX hermes_actor_messages_time"):
            memory.execute(drop)
            memory.layout = None
            with (
                patch.object(activity, "_SMALL_SOURCE", 0),
                patch.object(activity, "_WALK_BUDGET", budget),
                patch.object(activity, "_survey", wraps=activity._survey) as survey,
            ):
                page = by_activity(
                    memory, listed, limit=limit, offset=offset, through_lineage=through_lineage
                )
            pages.append(page)
            if budget == 20_000 and limit > 0:
                assert survey.called is bool(drop)
        assert pages[0] == pages[1]
    finally:
        memory.execute("ROLLBACK")
        memory.layout = None


# --- what no model can say -----------------------------------------------------------------------


def test_bytes_that_are_no_text_do_not_break_lists(db):
    db.create_session("odd", "cli")
    db.append_message("odd", "user", b"\xff\xfe walrus")
    db.create_session("plain", "cli")
    db.append_message("plain", "user", "hello")
    previews = {row["id"]: row["preview"] for row in db.list_sessions_rich()}
    assert previews["plain"] == "hello"
    assert isinstance(previews["odd"], str)
    assert db.get_messages("odd")[0]["content"] == b"\xff\xfe walrus"
    assert {row["id"] for row in db.list_sessions_rich(order_by_last_active=True)} == {
        "odd",
        "plain",
    }


@pytest.mark.parametrize("query", ["walrus", "walr*", "北京烤鸭"])
def test_bytes_that_are_no_text_are_found(db, query):
    db.create_session("odd", "cli")
    db.append_message("odd", "user", b"\xff\xfe walrus " + "北京烤鸭".encode() + b" \xff")
    db.append_message("odd", "user", "walrus 北京烤鸭")
    hits = db.search_messages(query)
    assert sorted(hit["id"] for hit in hits) == [1, 2]
    assert all(isinstance(hit["snippet"], str) for hit in hits)
    assert db.get_messages("odd")[0]["content"].startswith(b"\xff")


@pytest.mark.parametrize("query", ["walrus", "北京", "北京烤鸭", "北 walrus"])
def test_page_without_a_limit_is_refused(db, query):
    db.create_session("s", "cli")
    db.append_message("s", "user", "walrus 北京烤鸭")
    with pytest.raises(sqlite3.IntegrityError):
        db.search_messages(query, limit=None)
