"""A hundred calls of the ``SessionDB`` of a released hermes-agent, attached or on ``sqlite3``.

Run in a process of its own: ``python -m conformance.store_calls attached|plain HOME`` prints every
answer and every row that is there in the end, as JSON. The program is run, never read.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

__all__ = ["environment", "stores_of"]

ROOT = Path(__file__).resolve().parents[2]

_TIME = re.compile(r"\b1[789]\d{8}(?:\.\d+)?\b")
Call = tuple[str, tuple[Any, ...], dict[str, Any]]


def stores_of(version: str) -> Path:
    """Return the folder of the modules of *version*, as ``make`` puts it there."""
    known = {"0.14.0": "peer", "0.19.0": "agent"}
    return ROOT / ".venv" / known.get(version, f"stores/{version}")


def environment(version: str, home: Path) -> dict[str, str]:
    """Return the variables of a process that makes the calls."""
    paths = (ROOT / "stress", ROOT, ROOT / "protocol", stores_of(version))
    return {
        **os.environ,
        "HERMES_HOME": str(home),
        "PYTHONPATH": os.pathsep.join(map(str, paths)),  # last: it has plain top-level names
    }


def calls() -> Iterator[Call]:
    """Yield the calls. A release that does not have a method says so, which is an answer."""

    def call(name: str, *arguments: Any, **named: Any) -> Call:
        return name, arguments, named

    for number in range(6):
        yield call("create_session", f"s{number}", "cli" if number % 2 else "cron", model="m-1")
        for text in ("What is red?", "天気はどう", "x" * 3000, "quote ' and \0 and ü"):
            yield call("append_message", f"s{number}", "user", f"{text} {number}")
        tool = [{"id": "c1", "function": {"name": "look", "arguments": "{}"}}]
        yield call("append_message", f"s{number}", "assistant", "One look", tool_calls=tool)
        yield call("append_message", f"s{number}", "tool", "seen", tool_name="look")
    yield call("create_session", "s0", "cli")
    yield call("create_session", "child", "cli", parent_session_id="s1")
    yield call("ensure_session", "late", "gateway", model="m-2")
    yield call("append_message", "nothing", "user", "no such session")
    for title in ("A title", "A title #2", "  padded  ", "", "x" * 200, "a\nb"):
        yield call("set_session_title", f"s{len(title) % 6}", title)
        yield call("sanitize_title", title)
    yield call("set_session_title", "s5", "A title")
    yield call("get_next_title_in_lineage", "A title")
    yield call("resolve_session_by_title", "A title")
    yield call("get_session_by_title", "A title")
    yield call("resolve_session_id", "s")
    yield call("resolve_session_id", "chil")
    yield call("resolve_resume_session_id", "s1")
    for query in ("red", '"What is"', "red OR look", "天気", "nothing AND", "re*", "'", ""):
        yield call("search_messages", query, limit=5)
    yield call("search_messages", "red", source_filter=["cli"], role_filter=["user"])
    yield call("update_token_counts", "s1", input_tokens=5, output_tokens=7, model="m-1")
    yield call("update_token_counts", "s1", input_tokens=9, absolute=True, estimated_cost_usd=0.5)
    yield call("update_system_prompt", "s1", "Be kind.")
    yield call("get_session", "s1")
    yield call("get_messages", "s1")
    yield call("get_messages_as_conversation", "s1")
    yield call("get_messages_around", "s1", 9, window=2)
    yield call("get_anchored_view", "s1", 9)
    yield call("replace_messages", "s2", [{"role": "user", "content": "only this"}])
    yield call("get_messages", "s2")
    yield call("archive_and_compact", "s3", [{"role": "user", "content": "compacted"}])
    yield call("rewind_to_message", "s1", 9)
    yield call("get_messages", "s1")
    yield call("clear_messages", "s4")
    yield call("end_session", "s4", "user_exit")
    yield call("end_session", "s1", "compression")
    yield call("create_session", "tip", "cli", parent_session_id="s1")
    yield call("get_compression_tip", "s1")
    yield call("reopen_session", "s4")
    yield call("list_sessions_rich", limit=10)
    yield call("list_sessions_rich", source="cron", order_by_last_active=True)
    yield call("search_sessions", limit=3, offset=1)
    yield call("session_count")
    yield call("session_count", source="cli")
    yield call("message_count")
    yield call("message_count", "s1")
    yield call("set_meta", "key", "value")
    yield call("get_meta", "key")
    yield call("get_meta", "none")
    yield call("request_handoff", "s1", "telegram")
    yield call("request_handoff", "s1", "telegram")
    yield call("list_pending_handoffs")
    yield call("claim_handoff", "s1")
    yield call("get_handoff_state", "s1")
    yield call("fail_handoff", "s1", "no")
    yield call("apply_telegram_topic_migration")
    yield call("enable_telegram_topic_mode", chat_id="c", user_id="u")
    topic = {"chat_id": "c", "thread_id": "t"}
    yield call("bind_telegram_topic", **topic, user_id="u", session_key="k", session_id="s1")
    yield call("get_telegram_topic_binding", **topic)
    yield call("list_unlinked_telegram_sessions_for_user", chat_id="c", user_id="u")
    yield call("is_telegram_topic_mode_enabled", chat_id="c", user_id="u")
    yield call("try_acquire_compression_lock", "s1", "me")
    yield call("try_acquire_compression_lock", "s1", "you")
    yield call("get_compression_lock_holder", "s1")
    yield call("release_compression_lock", "s1", "me")
    yield call("save_gateway_routing_entry", "k", "{}")
    yield call("load_gateway_routing_entries")
    yield call("set_session_archived", "s5", True)
    yield call("update_session_cwd", "s5", "/somewhere")
    yield call("optimize_fts")
    yield call("delete_session", "s0")
    yield call("delete_session", "s0")
    yield call("prune_empty_ghost_sessions")
    yield call("prune_sessions", older_than_days=0)
    yield call("export_session", "s2")
    yield call("export_all", source="cli")
    yield call("vacuum")
    yield call("search_messages", "only", limit=5)


def main(way: str, home: Path) -> None:
    """Make all calls and print what came of them."""
    if way == "attached":
        from hermes_actor.attach import boot

        boot.install({
            "scheme": boot.SCHEME, "names": ["hermes_state", "hermes_constants", "agent"],
            "homes": [os.path.realpath(home)], "typed": [], "warning": None, "advice": "",
        })  # fmt: skip
    import hermes_state  # type: ignore[import-not-found]

    path = home / "state.db"
    db = hermes_state.SessionDB(db_path=path)
    module = type(db._conn).__module__
    seen: list[Any] = []
    for name, arguments, named in calls():
        method = getattr(db, name, None)
        try:
            answer = "no such method" if method is None else method(*arguments, **named)
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        seen.append([name, _same(answer, home)])
    db.close()
    print(json.dumps({"module": module, "seen": seen, "rows": _rows(path, home)}))


def _rows(path: Path, home: Path) -> dict[str, Any]:
    """Every row of every table that the program itself has made, indexes included."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as conn:
        names = [name for (name,) in conn.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT GLOB 'sqlite_*'"
            " AND name NOT GLOB 'hermes_actor_*' AND name NOT GLOB '*_fts*_*'"
        )]  # fmt: skip
        rows = {name: conn.execute(f'SELECT * FROM "{name}"').fetchall() for name in sorted(names)}
        assert conn.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    return {name: sorted(json.dumps(_same(list(row), home)) for row in found)
            for name, found in rows.items()}  # fmt: skip


def _same(value: Any, home: Path) -> Any:
    """*value* as JSON has it, without what differs between any two runs."""
    text = json.dumps(value, default=repr, sort_keys=True).replace(str(home), "HOME")
    return json.loads(_TIME.sub("0", text))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
