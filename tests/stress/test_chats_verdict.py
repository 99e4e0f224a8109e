"""The verdict of the job `chats`: lost, doubled or misplaced rows, and a wrong index, are found."""

import json
import sqlite3
from contextlib import closing

import pytest
from stress_chats import faults, number_of, text_of

CHATS, MESSAGES = 2, 2
TABLES = """
CREATE TABLE sessions (id TEXT PRIMARY KEY, ended_at REAL);
CREATE TABLE messages (id INTEGER PRIMARY KEY, session_id TEXT, role TEXT, content TEXT);
CREATE TABLE routes (session_key TEXT, entry_json TEXT);
"""


def found(folder, change="SELECT 1", index=lambda text: text):
    """The faults of a right store after *change* of it, and *index* of its index."""
    path, file, entries = folder / "state.db", folder / "sessions.json", {"_README": "about it"}
    with closing(sqlite3.connect(path)) as conn, conn:
        conn.executescript(TABLES)
        for chat in range(CHATS):
            entry = {"session_id": f"s{chat}", "origin": {"chat_id": number_of(chat)}}
            entries[f"k{chat}"] = entry
            conn.execute("INSERT INTO sessions VALUES (?, NULL)", (f"s{chat}",))
            conn.execute("INSERT INTO routes VALUES (?, ?)", (f"k{chat}", json.dumps(entry)))
        sql = "INSERT INTO messages(session_id, role, content) VALUES (?, ?, ?)"
        for number in range(MESSAGES):
            for chat in range(CHATS):
                text = text_of(chat, number)
                conn.execute(sql, (f"s{chat}", "user", text))
                conn.execute(sql, (f"s{chat}", "assistant", f"Heard: {text}"))
        conn.executescript(change)
    file.write_text(index(json.dumps(entries)))
    return list(faults(path, file, "routes", CHATS, MESSAGES))


def test_a_right_store_has_no_faults(tmp_path):
    assert found(tmp_path) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("DELETE FROM messages WHERE id = 4", "chat 1 is stored as"),
        (
            "INSERT INTO messages(session_id, role, content)"
            " SELECT session_id, role, content FROM messages WHERE id = 8",
            "chat 1 is stored as",
        ),
        ("UPDATE messages SET session_id = 's1' WHERE id = 1", "chat 0 is stored as"),
        ("UPDATE messages SET session_id = 'other' WHERE session_id = 's0'", "other sessions"),
        ("UPDATE sessions SET ended_at = 1 WHERE id = 's1'", "chat 1 has no open session"),
        ("DELETE FROM routes WHERE session_key = 'k0'", "differs from the 1 rows of routes"),
        ("UPDATE routes SET entry_json = '{}'", "differs from the 2 rows of routes"),
    ],
)
def test_a_changed_store_has_a_fault(change, said, tmp_path):
    assert said in " ".join(found(tmp_path, change))


@pytest.mark.parametrize(
    ("index", "said"),
    [
        (lambda text: text[:-1], "the index cannot be read"),
        (lambda text: text.replace("s1", "s2"), "chat 1 has no open session"),
        (lambda text: text.replace(number_of(0), number_of(7)), "the index names other chats"),
    ],
)
def test_a_wrong_index_is_a_fault(index, said, tmp_path):
    assert said in " ".join(found(tmp_path, index=index))
