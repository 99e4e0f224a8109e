"""What a SessionDB is, in lists and dicts: written from the specification, without any SQL.

Methods have the names and arguments of the class they stand for. Where the specification leaves
an answer open (equal times, the order of equal ranks), the model answers with all allowed ones.
"""

import json
import re
import sqlite3
import unicodedata
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from support.files import MESSAGE_COLUMNS, SESSION_COLUMNS

Row = dict[str, Any]

DAY = 86_400.0
MARKER = "\x00json:"
COUNTERS = (
    "message_count", "tool_call_count", "input_tokens", "output_tokens", "cache_read_tokens",
    "cache_write_tokens", "reasoning_tokens", "api_call_count",
)  # fmt: skip
JSON_FIELDS = ("reasoning_details", "codex_reasoning_items", "codex_message_items")
ASSISTANT_FIELDS = ("reasoning", "reasoning_content", *JSON_FIELDS)
PROJECTED = (
    "id", "ended_at", "end_reason", "message_count", "tool_call_count", "title", "last_active",
    "preview", "model", "system_prompt",
)  # fmt: skip


class OneOf(NamedTuple):
    """Any of these is right."""

    allowed: list[Any]


class Ranked(NamedTuple):
    """All hits of a full-text search, by id. Their order and their snippets are the index's."""

    rows: list[Row]


class Tied(NamedTuple):
    """Rows in order, where rows with equal keys may change places, cut to a page."""

    rows: list[Row]
    key: Callable[[Row], Any]
    limit: int = -1


# --- text ------------------------------------------------------------------------------------


def ascii_lower(text: str) -> str:
    return "".join(chr(ord(c) + 32) if "A" <= c <= "Z" else c for c in text)


def begins_like(text: str, prefix: str) -> bool:
    return ascii_lower(text).startswith(ascii_lower(prefix))


def clean_title(title: str | None) -> str | None:
    if not title:
        return None
    spans = ((0, 8), (0xB, 0xB), (0xC, 0xC), (0xE, 0x1F), (0x7F, 0x7F), (0x200B, 0x200F),
             (0x2028, 0x202E), (0x2060, 0x2069), (0xFEFF, 0xFEFF), (0xFFF9, 0xFFFC))  # fmt: skip
    kept = [c for c in title if not any(low <= ord(c) <= high for low, high in spans)]
    clean = " ".join("".join(kept).split())
    if len(clean) > 100:
        raise ValueError("too long")
    return clean or None


def until_nul(text: str) -> str:
    """What SQLite's string functions see of a text."""
    return text.partition("\0")[0]


def stored_text(value: Any) -> Any:
    """A value in a column of type TEXT."""
    if isinstance(value, bool):
        return str(int(value))
    return str(value) if isinstance(value, int | float) else value


def encode(content: Any) -> Any:
    if content is None or isinstance(content, str | bytes | int | float):
        return stored_text(content)
    return MARKER + json.dumps(content)


def decode(stored: Any) -> Any:
    if isinstance(stored, str) and stored.startswith(MARKER):
        try:
            return json.loads(stored.removeprefix(MARKER))
        except ValueError:
            pass
    return stored


def as_text(stored: Any) -> str:
    if stored is None:
        return ""
    return stored.decode() if isinstance(stored, bytes) else stored


def calls_of(tool_calls: Any) -> int:
    if tool_calls is None:
        return 0
    return len(tool_calls) if isinstance(tool_calls, list) else 1


def without_memory(text: str) -> str:
    opening, closing = r"<\s*memory-context\s*>", r"</\s*memory-context\s*>"
    text = re.sub(f"(?is){opening}.*?{closing}", "", text)
    return re.sub(f"(?i){opening}|{closing}", "", text)


def words_of(text: str) -> set[str]:
    """The tokens of a text: letters and digits, folded, without diacritics."""
    folded = "".join(
        c for c in unicodedata.normalize("NFD", text) if unicodedata.category(c) != "Mn"
    )
    return {
        word.lower()
        for word in "".join(
            c if unicodedata.category(c)[0] in "LN" else " " for c in folded
        ).split()
    }


def is_cjk(character: str) -> bool:
    spans = ((0x3000, 0x30FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xAC00, 0xD7AF),
             (0x20000, 0x2A6DF))  # fmt: skip
    return any(low <= ord(character) <= high for low, high in spans)


def page(rows: list[Any], limit: int, offset: int) -> list[Any]:
    return rows[offset:] if limit < 0 else rows[offset : offset + limit]


class Model:
    """A store in memory. The test moves :attr:`now`."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.sessions: dict[str, Row] = {}
        self.messages: list[Row] = []
        self.last_id = 0
        self.meta: dict[str, Any] = {}
        self.modes: dict[str, Row] = {}
        self.bindings: dict[tuple[str, str], Row] = {}

    # --- session rows ----------------------------------------------------------------------

    def create_session(self, session_id: str, source: str, **more: Any) -> str:
        if session_id in self.sessions:
            return session_id
        parent = more.get("parent_session_id")
        if parent is not None and parent not in self.sessions:
            raise sqlite3.IntegrityError("no parent")
        row = dict.fromkeys(SESSION_COLUMNS) | dict.fromkeys(COUNTERS, 0)
        row |= {"id": session_id, "source": source, "started_at": self.now} | more
        config = more.get("model_config")
        row["model_config"] = json.dumps(config) if config else None
        self.sessions[session_id] = row
        return session_id

    def ensure_session(
        self, session_id: str, source: str = "unknown", model: str | None = None
    ) -> str:
        return self.create_session(session_id, source, model=model)

    def continue_session(self, old: str, new: str) -> str:
        parent = self.sessions.get(old)
        if parent is None:
            raise LookupError(old)
        if parent["ended_at"] is not None and parent["end_reason"] != "compression":
            raise ValueError("ended")
        if new in self.sessions:
            raise sqlite3.IntegrityError("the id is taken")
        title = parent["title"] and self.get_next_title_in_lineage(parent["title"])
        self.end_session(old, "compression")
        inherited = ("source", "user_id", "model", "model_config", "system_prompt")
        row = dict.fromkeys(SESSION_COLUMNS) | dict.fromkeys(COUNTERS, 0)
        row |= {key: parent[key] for key in inherited}
        row |= {"id": new, "parent_session_id": old, "title": title}
        row["started_at"] = max(self.now, parent["ended_at"])
        self.sessions[new] = row
        return new

    def get_session(self, session_id: str) -> Row | None:
        row = self.sessions.get(session_id)
        return row and dict(row)

    def end_session(self, session_id: str, end_reason: str | None) -> None:
        row = self.sessions.get(session_id)
        if row and row["ended_at"] is None:
            row |= {"ended_at": self.now, "end_reason": end_reason}

    def reopen_session(self, session_id: str) -> None:
        if session_id in self.sessions:
            self.sessions[session_id] |= {"ended_at": None, "end_reason": None}

    def update_system_prompt(self, session_id: str, system_prompt: str) -> None:
        if session_id in self.sessions:
            self.sessions[session_id]["system_prompt"] = system_prompt

    def update_token_counts(self, session_id: str, *, absolute: bool = False, **given: Any) -> None:
        self.ensure_session(session_id, model=given.get("model"))
        row = self.sessions[session_id]
        for key in COUNTERS[2:]:
            row[key] = given.get(key, 0) + (0 if absolute else row[key])
        estimate, actual = given.get("estimated_cost_usd"), given.get("actual_cost_usd")
        before = 0.0 if absolute else row["estimated_cost_usd"] or 0.0
        row["estimated_cost_usd"] = before + (estimate or 0.0)
        if actual is not None:
            row["actual_cost_usd"] = actual + (0 if absolute else row["actual_cost_usd"] or 0.0)
        for key in ("cost_status", "cost_source", "pricing_version"):
            if given.get(key) is not None:
                row[key] = given[key]
        for key in ("billing_provider", "billing_base_url", "billing_mode", "model"):
            if row[key] is None:
                row[key] = given.get(key)

    # --- titles ----------------------------------------------------------------------------

    def set_session_title(self, session_id: str, title: str | None) -> bool:
        clean = clean_title(title)
        taken = [s for s in self.sessions.values() if s["title"] == clean and s["id"] != session_id]
        if clean is not None and taken:
            raise ValueError("already in use")
        if session_id not in self.sessions:
            return False
        self.sessions[session_id]["title"] = clean
        return True

    def get_session_title(self, session_id: str) -> str | None:
        row = self.sessions.get(session_id)
        return row["title"] if row else None

    def get_session_by_title(self, title: str) -> Row | None:
        return next((dict(s) for s in self.sessions.values() if s["title"] == title), None)

    def _numbered(self, base: str) -> list[Row]:
        return [
            s
            for s in self.sessions.values()
            if s["title"] is not None and begins_like(s["title"], f"{base} #")
        ]

    def resolve_session_by_title(self, title: str) -> Any:
        numbered = self._numbered(title)
        if numbered:
            latest = max(s["started_at"] for s in numbered)
            return OneOf([s["id"] for s in numbered if s["started_at"] == latest])
        exact = self.get_session_by_title(title)
        return exact and exact["id"]

    def get_next_title_in_lineage(self, base_title: str) -> str:
        base = re.sub(r" #[0-9]+\Z", "", base_title)
        used = [s["title"] for s in self._numbered(base)]
        if self.get_session_by_title(base):
            used.append(base)
        if not used:
            return base
        numbers = [re.search(r" #([0-9]+)\Z", title) for title in used]
        return f"{base} #{max([1, *(int(n.group(1)) for n in numbers if n)]) + 1}"

    # --- ids and lineage -------------------------------------------------------------------

    def resolve_session_id(self, session_id_or_prefix: str) -> str | None:
        if session_id_or_prefix in self.sessions:
            return session_id_or_prefix
        found = [s for s in self.sessions if begins_like(s, session_id_or_prefix)]
        return found[0] if len(found) == 1 else None

    def _children(self, session_id: str) -> list[Row]:
        return [s for s in self.sessions.values() if s["parent_session_id"] == session_id]

    def _continuations(self, session_id: str) -> list[Row]:
        parent = self.sessions.get(session_id)
        if parent is None or parent["end_reason"] != "compression":
            return []
        return [c for c in self._children(session_id) if c["started_at"] >= parent["ended_at"]]

    def tips(self, session_id: str) -> list[str]:
        following = self._continuations(session_id)
        latest = max((c["started_at"] for c in following), default=None)
        ways = [c["id"] for c in following if c["started_at"] == latest]
        return [tip for way in ways for tip in self.tips(way)] or [session_id]

    def get_compression_tip(self, session_id: str) -> Any:
        return OneOf(self.tips(session_id))

    def resolve_resume_session_id(self, session_id: str) -> str:
        current = session_id
        while not self._rows(current):
            children = self._children(current)
            if not children:
                return session_id
            current = max(children, key=lambda c: (c["started_at"], c["id"]))["id"]
        return current

    def _session_lineage_root_to_tip(self, session_id: str) -> list[str]:
        chain = [session_id]
        while (row := self.sessions.get(chain[0])) and row["parent_session_id"] is not None:
            chain.insert(0, row["parent_session_id"])
        return chain

    # --- messages --------------------------------------------------------------------------

    def _rows(self, session_id: str) -> list[Row]:
        return [m for m in self.messages if m["session_id"] == session_id]

    def _message(self, session_id: str, now: float, given: Row) -> Row:
        if session_id not in self.sessions or given["role"] is None:
            raise sqlite3.IntegrityError("no session or no role")
        row = dict.fromkeys(MESSAGE_COLUMNS)
        row |= {key: given.get(key) for key in MESSAGE_COLUMNS if key in given}
        row |= {"id": None, "session_id": session_id, "timestamp": now}
        row["content"] = encode(given.get("content"))
        for key in ("tool_calls", *JSON_FIELDS):
            row[key] = json.dumps(given[key]) if given.get(key) else None
        return row

    def _insert(self, row: Row) -> int:
        self.last_id += 1
        self.messages.append(row | {"id": self.last_id})
        return self.last_id

    def append_message(
        self, session_id: str, role: str | None, content: Any = None, **more: Any
    ) -> int:
        row = self._message(session_id, self.now, more | {"role": role, "content": content})
        session = self.sessions[session_id]
        session["message_count"] += 1
        session["tool_call_count"] += calls_of(more.get("tool_calls"))
        return self._insert(row)

    def replace_messages(self, session_id: str, messages: list[Row]) -> None:
        rows, now = [], self.now
        for message in messages:
            given = {"role": "unknown"} | message
            if given["role"] != "assistant":
                given = {key: v for key, v in given.items() if key not in ASSISTANT_FIELDS}
            rows.append(self._message(session_id, now, given))
            now += 1e-6
        self.clear_messages(session_id)
        for row in rows:
            self._insert(row)
        if session_id in self.sessions:
            calls = sum(calls_of(message.get("tool_calls")) for message in messages)
            self.sessions[session_id] |= {"message_count": len(rows), "tool_call_count": calls}

    def clear_messages(self, session_id: str) -> None:
        self.messages = [m for m in self.messages if m["session_id"] != session_id]
        if session_id in self.sessions:
            self.sessions[session_id] |= {"message_count": 0, "tool_call_count": 0}

    def get_messages(self, session_id: str) -> list[Row]:
        found = []
        for row in self._rows(session_id):
            calls = row["tool_calls"]
            decoded = {
                "content": decode(row["content"]),
                "tool_calls": json.loads(calls) if calls else calls,
            }
            found.append(row | decoded)
        return found

    def get_messages_as_conversation(
        self, session_id: str, include_ancestors: bool = False
    ) -> list[Row]:
        chain = self._session_lineage_root_to_tip(session_id) if include_ancestors else [session_id]
        replay: list[Row] = []
        for row in self.messages:
            if row["session_id"] not in chain:
                continue
            message = _replayed(row)
            if not (include_ancestors and _repeats(replay, message)):
                replay.append(message)
        return replay

    # --- lists -----------------------------------------------------------------------------

    def _last_active(self, row: Row) -> float:
        times = [m["timestamp"] for m in self._rows(row["id"])]
        return float(max(times, default=row["started_at"]))

    def _effective(self, row: Row) -> float:
        below = [self._effective(child) for child in self._continuations(row["id"])]
        return max([self._last_active(row), *below])

    def _preview(self, session_id: str) -> str:
        told = [
            m for m in self._rows(session_id) if m["role"] == "user" and m["content"] is not None
        ]
        if not told:
            return ""
        first = min(told, key=lambda m: (m["timestamp"], m["id"]))
        text = until_nul(as_text(first["content"])).replace("\n", " ").replace("\r", " ")
        text = text[:63].strip()
        return text if len(text) <= 60 else text[:60] + "..."

    def _get_session_rich_row(self, session_id: str) -> Row | None:
        row = self.sessions.get(session_id)
        if row is None:
            return None
        last_active, preview = self._last_active(row), self._preview(session_id)
        return row | {"last_active": last_active, "preview": preview}

    def list_sessions_rich(
        self,
        source: str | None = None,
        exclude_sources: list[str] | None = None,
        limit: int = 20,
        offset: int = 0,
        include_children: bool = False,
        project_compression_tips: bool = True,
        order_by_last_active: bool = False,
    ) -> list[Any]:
        rows = [
            s
            for s in self.sessions.values()
            if (include_children or self._stands_alone(s))
            and (not source or s["source"] == source)
            and (not exclude_sources or s["source"] not in exclude_sources)
        ]
        if order_by_last_active:
            rows.sort(key=lambda s: (self._effective(s), s["started_at"], s["id"]), reverse=True)
        else:
            rows.sort(key=lambda s: -s["started_at"])  # equal times: in the order of insertion
        listed = [self._get_session_rich_row(s["id"]) for s in page(rows, limit, offset)]
        if project_compression_tips and not include_children:
            return [OneOf(self._projections(row)) for row in listed if row]
        return listed

    def _stands_alone(self, row: Row) -> bool:
        parent = self.sessions.get(row["parent_session_id"])
        if parent is None:
            return True
        branched = parent["end_reason"] == "branched"
        return bool(branched and row["started_at"] >= parent["ended_at"])

    def _projections(self, row: Row) -> list[Row]:
        if row["end_reason"] != "compression":
            return [row]
        found = []
        for tip_id in self.tips(row["id"]):
            tip = self._get_session_rich_row(tip_id)
            assert tip is not None
            newest = {key: tip[key] for key in PROJECTED}
            moved = row | newest | {"_lineage_root_id": row["id"]}
            found.append(row if tip_id == row["id"] else moved)
        return found

    def search_sessions(
        self, source: str | None = None, limit: int = 20, offset: int = 0
    ) -> list[Row]:
        rows = [
            s | {"last_active": self._last_active(s)}
            for s in self.sessions.values()
            if not source or s["source"] == source
        ]
        rows.sort(key=lambda s: (s["last_active"], s["started_at"], s["id"]), reverse=True)
        return page(rows, limit, offset)

    def session_count(self, source: str | None = None) -> int:
        return len([s for s in self.sessions.values() if not source or s["source"] == source])

    def message_count(self, session_id: str | None = None) -> int:
        return len([m for m in self.messages if not session_id or m["session_id"] == session_id])

    # --- search ----------------------------------------------------------------------------

    def search_messages(
        self,
        query: str,
        source_filter: list[str] | None = None,
        exclude_sources: list[str] | None = None,
        role_filter: list[str] | None = None,
        limit: int = 20,
        offset: int = 0,
    ) -> Any:
        """For plain words, CJK terms, and both; operators only where they are ignored."""
        terms = [t for t in query.split() if t not in ("AND", "OR", "NOT")]
        searched = [
            m for m in self.messages if self._passes(m, source_filter, exclude_sources, role_filter)
        ]
        checked = [sum(map(is_cjk, term)) for term in terms if any(map(is_cjk, term))]
        if not checked:
            wanted = {word for term in terms for word in words_of(term)}
            hits = [m for m in searched if wanted <= words_of(_indexed(m))]
        elif min(checked) >= 3:
            hits = [
                m
                for m in searched
                if all(t.lower() in until_nul(_indexed(m)).lower() for t in terms)
            ]
        else:
            hits = [m for m in searched if any(_contains(m, term) for term in terms)]
            hits.sort(key=lambda m: (-m["timestamp"], m["id"]))
            found = [self._hit(m) | {"snippet": _excerpt(m, terms[0])} for m in hits]
            return page(found, limit, offset)
        return Ranked([self._hit(m) for m in hits])

    def _passes(
        self,
        message: Row,
        sources: list[str] | None,
        excluded: list[str] | None,
        roles: list[str] | None,
    ) -> bool:
        source = self.sessions[message["session_id"]]["source"]
        return (
            (sources is None or source in sources)
            and (excluded is None or source not in excluded)
            and (not roles or message["role"] in roles)
        )

    def _hit(self, message: Row) -> Row:
        session = self.sessions[message["session_id"]]
        near = sorted(self._rows(session["id"]), key=lambda m: (m["timestamp"], m["id"]))
        place = [m["id"] for m in near].index(message["id"])
        context = near[max(place - 1, 0) : place + 2]
        return {
            **{key: message[key] for key in ("id", "session_id", "role", "timestamp", "tool_name")},
            "source": session["source"],
            "model": session["model"],
            "session_started": session["started_at"],
            "context": [{"role": m["role"], "content": _short(m["content"])} for m in context],
        }

    # --- export and removal ----------------------------------------------------------------

    def export_session(self, session_id: str) -> Row | None:
        row = self.sessions.get(session_id)
        return row and row | {"messages": self.get_messages(session_id)}

    def export_all(self, source: str | None = None) -> list[Row]:
        return [
            row | {"messages": self.get_messages(row["id"])}
            for row in self.search_sessions(source, limit=100_000)
        ]

    def delete_session(self, session_id: str) -> bool:
        if session_id not in self.sessions:
            return False
        for child in self._children(session_id):
            child["parent_session_id"] = None
        self.messages = [m for m in self.messages if m["session_id"] != session_id]
        self.bindings = {k: b for k, b in self.bindings.items() if b["session_id"] != session_id}
        del self.sessions[session_id]
        return True

    def prune_sessions(self, older_than_days: float = 90, source: str | None = None) -> int:
        before = self.now - older_than_days * DAY
        return self._delete_all(
            s
            for s in self.sessions.values()
            if s["started_at"] < before
            and s["ended_at"] is not None
            and (not source or s["source"] == source)
        )

    def _delete_all(self, rows: Iterable[Row]) -> int:
        ids = [row["id"] for row in rows]
        for session_id in ids:
            self.delete_session(session_id)
        return len(ids)

    def prune_empty_ghost_sessions(self) -> int:
        ghosts = [
            s
            for s in self.sessions.values()
            if s["source"] == "tui"
            and s["title"] is None
            and s["ended_at"] is not None
            and s["started_at"] < self.now - DAY
            and not self._rows(s["id"])
        ]
        children = [child for ghost in ghosts for child in self._children(ghost["id"])]
        if any(child not in ghosts for child in children):
            raise sqlite3.IntegrityError("a ghost has a child")
        return self._delete_all(ghosts)

    def finalize_orphaned_compression_sessions(self) -> int:
        orphans = [
            s
            for s in self.sessions.values()
            if s["api_call_count"] == 0
            and s["ended_at"] is None
            and s["started_at"] < self.now - 7 * DAY
            and self._rows(s["id"])
            and (parent := self.sessions.get(s["parent_session_id"]))
            and parent["end_reason"] == "compression"
        ]
        for orphan in orphans:
            orphan |= {"ended_at": self.now, "end_reason": "orphaned_compression"}
        return len(orphans)

    # --- meta and upkeep -------------------------------------------------------------------

    def get_meta(self, key: str) -> str | None:
        return self.meta.get(key)

    def set_meta(self, key: str, value: Any) -> None:
        self.meta[key] = stored_text(value)

    def vacuum(self) -> None:
        pass

    def maybe_auto_prune_and_vacuum(
        self, retention_days: float = 90, min_interval_hours: float = 24, vacuum: bool = True
    ) -> Row:
        result = {"skipped": False, "pruned": 0, "vacuumed": False}
        last = self.meta.get("last_auto_prune")
        if last is not None and self.now - float(last) < min_interval_hours * 3600:
            return result | {"skipped": True}
        pruned = self.prune_sessions(retention_days)
        self.meta["last_auto_prune"] = str(self.now)
        return result | {"pruned": pruned, "vacuumed": bool(vacuum and pruned)}

    # --- Telegram topics -------------------------------------------------------------------

    def apply_telegram_topic_migration(self) -> None:
        self.meta["telegram_dm_topic_schema_version"] = "2"

    def enable_telegram_topic_mode(self, *, chat_id: Any, user_id: Any) -> None:
        self.apply_telegram_topic_migration()
        self.modes[str(chat_id)] = {"user_id": str(user_id), "enabled": True}

    def disable_telegram_topic_mode(self, *, chat_id: Any, clear_bindings: bool = True) -> None:
        if str(chat_id) in self.modes:
            self.modes[str(chat_id)]["enabled"] = False
        if clear_bindings:
            self.bindings = {k: b for k, b in self.bindings.items() if k[0] != str(chat_id)}

    def is_telegram_topic_mode_enabled(self, *, chat_id: Any, user_id: Any) -> bool:
        mode = self.modes.get(str(chat_id))
        return bool(mode and mode["enabled"] and mode["user_id"] == str(user_id))

    def bind_telegram_topic(
        self,
        *,
        chat_id: Any,
        thread_id: Any,
        user_id: Any,
        session_key: str,
        session_id: str,
        managed_mode: str = "auto",
    ) -> None:
        place = str(chat_id), str(thread_id)
        for other, binding in self.bindings.items():
            if binding["session_id"] == session_id and other != place:
                raise ValueError("already linked")
        if session_id not in self.sessions:
            raise sqlite3.IntegrityError("no session")
        self.apply_telegram_topic_migration()
        linked_at = self.bindings.get(place, {}).get("linked_at", self.now)
        self.bindings[place] = {
            "chat_id": place[0],
            "thread_id": place[1],
            "user_id": str(user_id),
            "session_key": session_key,
            "session_id": session_id,
            "managed_mode": managed_mode,
            "linked_at": linked_at,
            "updated_at": self.now,
        }

    def get_telegram_topic_binding(self, *, chat_id: Any, thread_id: Any) -> Row | None:
        return self.bindings.get((str(chat_id), str(thread_id)))

    def is_telegram_session_linked_to_topic(self, *, session_id: str) -> bool:
        return any(b["session_id"] == session_id for b in self.bindings.values())

    def list_unlinked_telegram_sessions_for_user(
        self, *, chat_id: Any, user_id: Any, limit: int = 10
    ) -> Tied:
        rows = [
            self._get_session_rich_row(s["id"])
            for s in self.sessions.values()
            if s["source"] == "telegram"
            and s["user_id"] == str(user_id)
            and not self.is_telegram_session_linked_to_topic(session_id=s["id"])
        ]
        return _tied(rows, lambda row: (-row["last_active"], -row["started_at"]), limit)

    # --- handoff ---------------------------------------------------------------------------

    def request_handoff(self, session_id: str, platform: str) -> bool:
        row = self.sessions.get(session_id)
        if row is None or row["handoff_state"] in ("pending", "running"):
            return False
        row |= {"handoff_state": "pending", "handoff_platform": platform, "handoff_error": None}
        return True

    def get_handoff_state(self, session_id: str) -> Row | None:
        row = self.sessions.get(session_id)
        return row and {key: row[f"handoff_{key}"] for key in ("state", "platform", "error")}

    def list_pending_handoffs(self) -> Tied:
        pending = [s for s in self.sessions.values() if s["handoff_state"] == "pending"]
        return _tied(pending, lambda row: row["started_at"])

    def claim_handoff(self, session_id: str) -> bool:
        row = self.sessions.get(session_id)
        if row is None or row["handoff_state"] != "pending":
            return False
        row["handoff_state"] = "running"
        return True

    def complete_handoff(self, session_id: str) -> None:
        if session_id in self.sessions:
            self.sessions[session_id] |= {"handoff_state": "completed", "handoff_error": None}

    def fail_handoff(self, session_id: str, error: str) -> None:
        if session_id in self.sessions:
            self.sessions[session_id] |= {"handoff_state": "failed", "handoff_error": error[:500]}


def _tied(rows: list[Any], key: Callable[[Row], Any], limit: int = -1) -> Tied:
    return Tied(sorted(rows, key=key), key, limit)


def _replayed(row: Row) -> Row:
    role, content = row["role"], decode(row["content"])
    if role in ("user", "assistant") and isinstance(content, str):
        content = without_memory(content).strip()
    message = {"role": role, "content": content}
    message |= {key: row[key] for key in ("tool_call_id", "tool_name") if row[key]}
    if row["tool_calls"]:
        message["tool_calls"] = json.loads(row["tool_calls"])
    if role == "assistant":
        message |= {key: row[key] for key in ("finish_reason", "reasoning") if row[key]}
        if row["reasoning_content"] is not None:
            message["reasoning_content"] = row["reasoning_content"]
        message |= {key: json.loads(row[key]) for key in JSON_FIELDS if row[key]}
    return message


def _repeats(replay: list[Row], message: Row) -> bool:
    content = message["content"]
    if message["role"] != "user" or not isinstance(content, str) or not content:
        return False
    open_prompts = []
    for earlier in replay:
        if earlier["role"] == "user":
            open_prompts.append(earlier["content"])
        elif earlier["role"] == "assistant" and (earlier["content"] or earlier.get("tool_calls")):
            open_prompts = []
    return content in open_prompts


def _indexed(message: Row) -> str:
    parts = (message["content"], message["tool_name"], message["tool_calls"])
    return " ".join(as_text(part) for part in parts)


def _contains(message: Row, term: str) -> bool:
    columns = (message["content"], message["tool_name"], message["tool_calls"])
    return any(
        ascii_lower(term) in ascii_lower(until_nul(as_text(text)))
        for text in columns
        if text is not None
    )


def _excerpt(message: Row, term: str) -> Any:
    content = message["content"]
    if content is None or isinstance(content, bytes):
        return content and content[:120]
    start = max(content.find(term) - 40, 0)
    return until_nul(content)[start : start + 120]


def _short(stored: Any) -> str:
    content = decode(stored)
    if isinstance(content, list):
        texts = [
            part.get("text")
            for part in content
            if isinstance(part, dict) and part.get("type") == "text"
        ]
        content = " ".join(text for text in texts if text).strip() or "[multimodal content]"
    return content[:200] if isinstance(content, str) else ""
