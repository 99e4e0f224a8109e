"""Sessions by latest activity: the walk gives what the survey gives, whatever its windows are."""

import random

import pytest

from hermes_actor import SessionDB
from hermes_actor.store.sessions import activity

SESSIONS = 60


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Sessions with and without messages, many at the same time, some continued by others."""
    path = tmp_path_factory.mktemp("activity") / "state.db"
    draw = random.Random(7)
    sessions = [
        (f"s{n:02}", draw.randrange(40), draw.choice([None, None, "compression"]),
         f"s{draw.randrange(n):02}" if n and draw.random() < 0.4 else None)
        for n in range(SESSIONS)
    ]  # fmt: skip
    messages = [(f"s{draw.randrange(0, SESSIONS, 2):02}", draw.randrange(60)) for _ in range(150)]

    def fill(face):
        face.executemany(
            "INSERT INTO sessions (id, source, started_at, end_reason, parent_session_id)"
            " VALUES (?, 'cli', ?, ?, ?)",
            sessions,
        )
        face.executemany(
            "INSERT INTO messages (session_id, role, content, timestamp)"
            " VALUES (?, 'user', 'x', ?)",
            messages,
        )

    with_db = SessionDB(path, mode="embedded")
    with_db._execute_write(fill)
    with_db.close()
    return path


@pytest.mark.parametrize("window", [1, 2, 7, 256])
@pytest.mark.parametrize("children", [False, True], ids=["top level", "children"])
def test_walk_and_survey_agree_on_every_page(path, monkeypatch, window, children):
    monkeypatch.setattr(activity, "_SMALL_SOURCE", 1)
    monkeypatch.setattr(activity, "_FIRST_WINDOW", window)
    db = SessionDB(path, mode="embedded")

    def pages():
        return [
            [row["id"] for row in db.list_sessions_rich(
                order_by_last_active=True, include_children=children, limit=limit, offset=offset,
                project_compression_tips=False,
            )]
            for limit in (1, 3, 20, SESSIONS) for offset in (0, 1, 9, 30)
        ]  # fmt: skip

    walked = pages()
    monkeypatch.setattr(activity, "_walk", lambda *_: None)
    surveyed = pages()
    db.close()
    assert walked == surveyed
    assert sum(map(len, walked)) > 100
