"""Rows that only another program can have written: every command still answers."""

import pytest
from support.files import query

ODD = (
    "UPDATE sessions SET started_at = 'noon', ended_at = 7 WHERE id = 'text'",
    "UPDATE sessions SET started_at = 1e300, ended_at = 1e301 WHERE id = 'far'",
    "UPDATE sessions SET message_count = NULL, input_tokens = NULL, title = x'ff1b', model = x'ff'"
    " WHERE id = 'null'",
    "UPDATE messages SET timestamp = 'noon', content = x'fffe' WHERE session_id = 'bytes'",
    "UPDATE messages SET tool_calls = '{{', reasoning_details = '}}' WHERE session_id = 'calls'",
    "UPDATE sessions SET model_config = '{{', source = '', end_reason = 'compression',"
    " started_at = -1e15 WHERE id = 'past'",
)
IDS = ("text", "far", "null", "bytes", "calls", "past")


@pytest.fixture
def odd(home):
    with home.store() as db:
        for session_id in IDS:
            db.create_session(session_id, "cli")
            db.append_message(session_id, "user", "some words")
            db.append_message(session_id, "assistant", "an answer")
            db.end_session(session_id, "cli_close")
    for change in ODD:
        query(home.db_path, change)
    return home


@pytest.mark.parametrize(
    "command",
    ["sessions list", "sessions list --json", "sessions stats", "sessions export -",
     "sessions export - --only user-prompts", "sessions prune --older-than 0 --dry-run",
     "insights --top 5", "insights --json --top 5", "search words --context 1", "resume -c --peek",
     'tool session-search {"query":"words"}', 'tool session-search {"query":"words","window":2}'],
)  # fmt: skip
def test_lists_and_reports(odd, command):
    found = odd(*command.split(" "))
    assert found.code == 0
    assert found.out


@pytest.mark.parametrize("session_id", IDS)
def test_one_session(odd, session_id):
    for command in ("sessions show", "resume --peek -r", "resume --hint", "title",
                    "sessions export - --format md --session-id"):  # fmt: skip
        found = odd(*command.split(" "), session_id)
        assert found.code == 0, command
        assert "\x1b" not in found.out
