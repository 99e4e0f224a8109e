"""Lists and conversations in pages that begin with a key, on every kind of store."""

import pytest

from hermes_actor.store import queries
from hermes_actor.store.sessions.page import Page

ORDERS = ("active", "started", "messages")


@pytest.fixture(scope="module")
def db(module_stores, tmp_path_factory):
    db = module_stores.open(tmp_path_factory.mktemp("pages") / "state.db")
    for number in range(23):
        # Equal times and counts in between: the key must tell such sessions apart.
        db.create_session(f"s{number:02}", "cli" if number % 3 else "cron")
        for _ in range(number % 4):
            db.append_message(f"s{number:02}", "user", "text")
    db.end_session("s05", "compression")
    db.create_session("tip", "cli", parent_session_id="s05")
    db.append_message("tip", "user", "continued")
    db.append_message("s11", "user", "late")
    return db


def listed(db, order, limit, after=None, source=None):
    page = Page(source, None, limit, 0, False, after=after)
    return db._query(queries.list_sessions, page, True, order)


def ids(rows):
    return [row.get("_lineage_root_id") or row["id"] for row in rows]


def walked(db, order, size, source=None):
    """Every id, page by page."""
    found, after = [], None
    while rows := ids(listed(db, order, size, after, source)):
        found += rows
        after = db._query(queries.position_in_lists, rows[-1])
    return found


@pytest.mark.parametrize("size", [1, 4, 50])
@pytest.mark.parametrize("source", [None, "cron"])
@pytest.mark.parametrize("order", ORDERS)
def test_pages_by_key_are_the_whole_list(db, order, source, size):
    assert walked(db, order, size, source) == ids(listed(db, order, -1, source=source))


@pytest.mark.parametrize("order", ORDERS)
def test_a_change_moves_no_session_into_a_later_page(stores, tmp_path, order):
    db = stores.open(tmp_path / "state.db")
    for number in range(8):
        db.create_session(f"s{number}", "cli")
        db.append_message(f"s{number}", "user", "text")
    first = ids(listed(db, order, 4))
    rest = [one for one in ids(listed(db, order, -1)) if one not in first]
    after = db._query(queries.position_in_lists, first[-1])
    db.create_session("new", "cli")
    db.append_message("new", "user", "newest of all")
    db.append_message("new", "user", "and longest")
    db.delete_session(first[-1])
    assert ids(listed(db, order, -1, after)) == rest


def test_an_unknown_session_has_no_position(db):
    assert db._query(queries.position_in_lists, "none") is None


def test_slices_of_a_conversation(stores, tmp_path):
    db = stores.open(tmp_path / "state.db")
    for name in ("a", "b"):
        db.create_session(name, "cli")
    made = [db.append_message("ab"[n % 2], "user", f"text {n}") for n in range(14)][::2]

    def part(after=None, before=None, limit=3):
        rows = db._query(queries.message_slice, "a", after, before, limit)
        return [row["id"] for row in rows]

    assert part() == made[:3]
    assert part(after=made[2]) == made[3:6]
    assert part(after=made[-1]) == []
    assert part(before=made[3]) == made[:3]
    assert part(before=2**62) == made[-3:]
    assert part(after=made[1], before=made[4]) == made[2:4]
    assert db._query(queries.message, "a", made[1])["content"] == "text 2"
    assert db._query(queries.message, "b", made[1]) is None
