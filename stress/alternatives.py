"""What a user would pick instead of this project, each with the two calls of a turn.

Every alternative keeps a message and the counters of its session in one durable step, on the
smallest tables that do it. None has receipts, and only those that say so have a search index.
"""

from __future__ import annotations

import contextlib
import http.client
import importlib
import json
import sqlite3
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import unquote

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ALTERNATIVES", "Alternative"]
_WAIT_SECONDS = 60
_COLUMNS = (
    "session_id", "role", "at", "content", "tool_name", "tool_call_id", "tool_calls",
    "token_count", "finish_reason",
)  # fmt: skip


def _values(session: str, message: dict[str, Any]) -> tuple[Any, ...]:
    calls = message.get("tool_calls")
    given = {
        **message,
        "session_id": session,
        "at": time.time(),
        "tool_calls": json.dumps(calls) if calls else None,
    }
    return tuple(given.get(name) for name in _COLUMNS)


class Alternative:
    """A connection of one process to a store. Created stores have the sessions of all writers."""

    title: ClassVar[str]
    search: ClassVar[str] = "none"
    """The search index that a message is in when it is acknowledged."""

    def __init__(self, address: str) -> None:
        raise NotImplementedError

    @classmethod
    def create(cls, address: str, sessions: Sequence[str]) -> None:
        """Create an empty store with *sessions*."""
        raise NotImplementedError

    @classmethod
    def count(cls, address: str) -> int:
        """Return the number of messages that the store holds."""
        raise NotImplementedError

    def append_message(self, session: str, **message: Any) -> Any:
        """Add a message and count it; return once that is durable."""
        raise NotImplementedError

    def update_token_counts(self, session: str, **counts: Any) -> None:
        """Add to the counters of a session; return once that is durable."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the connection."""


class PlainSqlite(Alternative):
    """A file that every process opens for writing: WAL, FULL, a busy timeout, BEGIN IMMEDIATE."""

    title = "sqlite3, WAL and busy timeout"

    def __init__(self, address: str) -> None:
        self._conn = sqlite3.connect(address, isolation_level=None, timeout=_WAIT_SECONDS)
        self._conn.execute("PRAGMA synchronous=FULL")

    @classmethod
    def create(cls, address: str, sessions: Sequence[str]) -> None:
        with contextlib.closing(sqlite3.connect(address)) as conn:
            conn.execute("PRAGMA journal_mode=WAL")
            conn.executescript(
                "CREATE TABLE sessions(id TEXT PRIMARY KEY, messages INT DEFAULT 0,"
                " input INT DEFAULT 0, output INT DEFAULT 0);"
                "CREATE TABLE messages(id INTEGER PRIMARY KEY AUTOINCREMENT,"
                f" {', '.join(_COLUMNS)});"
                "CREATE INDEX of_session ON messages(session_id, at);"
            )
            conn.executemany("INSERT INTO sessions(id) VALUES (?)", [(one,) for one in sessions])
            conn.commit()

    @classmethod
    def count(cls, address: str) -> int:
        with contextlib.closing(sqlite3.connect(address)) as conn:
            return int(conn.execute("SELECT COUNT(*) FROM messages").fetchone()[0])

    def append_message(self, session: str, **message: Any) -> Any:
        with self._changing() as conn:
            added = conn.execute(_insert("?"), _values(session, message)).lastrowid
            conn.execute("UPDATE sessions SET messages = messages + 1 WHERE id = ?", (session,))
        return added

    def update_token_counts(self, session: str, **counts: Any) -> None:
        with self._changing() as conn:
            conn.execute(_book("?"), (counts["input_tokens"], counts["output_tokens"], session))

    @contextlib.contextmanager
    def _changing(self) -> Any:
        self._conn.execute("BEGIN IMMEDIATE")
        try:
            yield self._conn
            self._conn.execute("COMMIT")
        except BaseException:
            if self._conn.in_transaction:
                self._conn.execute("ROLLBACK")
            raise

    def close(self) -> None:
        self._conn.close()


def _insert(mark: str) -> str:
    marks = ", ".join([mark] * len(_COLUMNS))
    return f"INSERT INTO messages({', '.join(_COLUMNS)}) VALUES ({marks})"


def _book(mark: str) -> str:
    return f"UPDATE sessions SET input = input + {mark}, output = output + {mark} WHERE id = {mark}"


class Litestream(PlainSqlite):
    """The same while Litestream copies the write-ahead log away, into a folder of the same disk."""

    title = "sqlite3 beside Litestream 0.3.13"


class Rqlite(Alternative):
    """One node of rqlite: SQL over HTTP, each change a transaction in its log of consensus."""

    title = "rqlite 8.26.8, one node"

    def __init__(self, address: str) -> None:
        self._conn = http.client.HTTPConnection(address, timeout=_WAIT_SECONDS)

    def ask(self, path: str, *statements: list[Any]) -> Any:
        """Return the results of *statements*. Raises ``RuntimeError`` if one of them fails."""
        body = json.dumps(statements)
        self._conn.request("POST", path, body, {"Content-Type": "application/json"})
        results = json.loads(self._conn.getresponse().read())["results"]
        if errors := [one["error"] for one in results if "error" in one]:
            raise RuntimeError(errors)
        return results

    @classmethod
    def create(cls, address: str, sessions: Sequence[str]) -> None:
        with contextlib.closing(cls(address)) as made:
            made.ask(
                "/db/execute?transaction",
                ["CREATE TABLE sessions(id TEXT PRIMARY KEY, messages INT DEFAULT 0,"
                 " input INT DEFAULT 0, output INT DEFAULT 0)"],
                [f"CREATE TABLE messages(id INTEGER PRIMARY KEY, {', '.join(_COLUMNS)})"],
                ["CREATE INDEX of_session ON messages(session_id, at)"],
                *(["INSERT INTO sessions(id) VALUES (?)", one] for one in sessions),
            )  # fmt: skip

    @classmethod
    def count(cls, address: str) -> int:
        found = cls(address).ask("/db/query", ["SELECT COUNT(*) FROM messages"])
        return int(found[0]["values"][0][0])

    def append_message(self, session: str, **message: Any) -> Any:
        added, _ = self.ask(
            "/db/execute?transaction",
            [_insert("?"), *_values(session, message)],
            ["UPDATE sessions SET messages = messages + 1 WHERE id = ?", session],
        )
        return added["last_insert_id"]

    def update_token_counts(self, session: str, **counts: Any) -> None:
        given = [counts["input_tokens"], counts["output_tokens"], session]
        self.ask("/db/execute?transaction", [_book("?"), *given])


class PostgreSQL(Alternative):
    """Tables by hand through psycopg: one prepared statement and one round trip for each change."""

    title = "PostgreSQL by hand"
    indexes: ClassVar[tuple[str, ...]] = ()

    def __init__(self, address: str) -> None:
        import psycopg

        self._conn = psycopg.connect(address, autocommit=True, prepare_threshold=0)

    @classmethod
    def create(cls, address: str, sessions: Sequence[str]) -> None:
        import psycopg

        kinds = {"at": "float8", "token_count": "int"}
        columns = ", ".join(f"{name} {kinds.get(name, 'text')}" for name in _COLUMNS)
        with psycopg.connect(address, autocommit=True) as conn:
            conn.execute(
                "CREATE TABLE sessions(id text PRIMARY KEY, messages int DEFAULT 0,"
                " input bigint DEFAULT 0, output bigint DEFAULT 0)"
            )
            conn.execute(f"CREATE TABLE messages(id bigserial PRIMARY KEY, {columns})")
            for index in ("(session_id, at)", *cls.indexes):
                conn.execute(f"CREATE INDEX ON messages {index}")
            for one in sessions:
                conn.execute("INSERT INTO sessions(id) VALUES (%s)", (one,))

    @classmethod
    def count(cls, address: str) -> int:
        import psycopg

        with psycopg.connect(address) as conn:
            ((count,),) = conn.execute("SELECT count(*) FROM messages").fetchall()
        return int(count)

    def append_message(self, session: str, **message: Any) -> Any:
        counted = "UPDATE sessions SET messages = messages + 1 WHERE id = %s"
        ((added,),) = self._conn.execute(
            f"WITH counted AS ({counted}) {_insert('%s')} RETURNING id",
            (session, *_values(session, message)),
        ).fetchall()
        return added

    def update_token_counts(self, session: str, **counts: Any) -> None:
        given = (counts["input_tokens"], counts["output_tokens"], session)
        self._conn.execute(_book("%s"), given)

    def close(self) -> None:
        self._conn.close()


class IndexedPostgreSQL(PostgreSQL):
    """The same with an index of words and one of trigrams."""

    title = "PostgreSQL by hand, with indexes for search"
    search = "words, trigrams"
    indexes = (
        "USING gin (to_tsvector('simple', coalesce(content, '')))",
        "USING gin (content gin_trgm_ops)",
    )


class MariaDB(Alternative):
    """InnoDB with the flush at every commit that is its default, and FULLTEXT."""

    title = "MariaDB by hand"
    search = "words"

    def __init__(self, address: str) -> None:
        self._conn = _mariadb(address)

    @classmethod
    def create(cls, address: str, sessions: Sequence[str]) -> None:
        kinds = {"session_id": "varchar(64)", "at": "double", "token_count": "int"}
        columns = ", ".join(f"{name} {kinds.get(name, 'longtext')}" for name in _COLUMNS)
        with contextlib.closing(_mariadb(address)) as conn, conn.cursor() as cursor:
            cursor.execute(
                "CREATE TABLE sessions(id varchar(64) PRIMARY KEY, messages int DEFAULT 0,"
                " input bigint DEFAULT 0, output bigint DEFAULT 0)"
            )
            cursor.execute(
                f"CREATE TABLE messages(id bigint AUTO_INCREMENT PRIMARY KEY, {columns},"
                " INDEX (session_id, at), FULLTEXT (content))"
            )
            cursor.executemany("INSERT INTO sessions(id) VALUES (%s)", [(one,) for one in sessions])
            conn.commit()

    @classmethod
    def count(cls, address: str) -> int:
        with contextlib.closing(_mariadb(address)) as conn, conn.cursor() as cursor:
            cursor.execute("SELECT COUNT(*) FROM messages")
            return int(cursor.fetchone()[0])

    def append_message(self, session: str, **message: Any) -> Any:
        with self._conn.cursor() as cursor:
            cursor.execute(_insert("%s"), _values(session, message))
            added = cursor.lastrowid
            cursor.execute("UPDATE sessions SET messages = messages + 1 WHERE id = %s", (session,))
        self._conn.commit()
        return added

    def update_token_counts(self, session: str, **counts: Any) -> None:
        with self._conn.cursor() as cursor:
            cursor.execute(_book("%s"), (counts["input_tokens"], counts["output_tokens"], session))
        self._conn.commit()

    def close(self) -> None:
        self._conn.close()


def _mariadb(address: str) -> Any:
    import pymysql

    place, _, query = address.partition("?unix_socket=")
    return pymysql.connect(
        unix_socket=unquote(query), user="root", database=place.rpartition("/")[2],
        charset="utf8mb4",
    )  # fmt: skip


class Redis(Alternative):
    """A list of messages for each session, ``appendfsync always``."""

    title = "Redis, appendfsync always"

    def __init__(self, address: str) -> None:
        self._server = _redis(address)

    @classmethod
    def create(cls, address: str, sessions: Sequence[str]) -> None:
        with _redis(address) as server:
            server.flushall()
            for one in sessions:
                server.hset(f"session:{one}", "messages", 0)

    @classmethod
    def count(cls, address: str) -> int:
        with _redis(address) as server:
            return sum(server.llen(key) for key in server.keys("messages:*"))

    def append_message(self, session: str, **message: Any) -> Any:
        step = self._server.pipeline(transaction=True)
        step.rpush(f"messages:{session}", json.dumps(_values(session, message)))
        step.hincrby(f"session:{session}", "messages", 1)
        return step.execute()[0]

    def update_token_counts(self, session: str, **counts: Any) -> None:
        step = self._server.pipeline(transaction=True)
        step.hincrby(f"session:{session}", "input", counts["input_tokens"])
        step.hincrby(f"session:{session}", "output", counts["output_tokens"])
        step.execute()

    def close(self) -> None:
        self._server.close()


def _redis(address: str) -> Any:
    return importlib.import_module("redis").Redis(unix_socket_path=address)


class LangGraph(Alternative):
    """A checkpoint for each change, in the file of LangGraph's SqliteSaver, with FULL."""

    title = "LangGraph SqliteSaver"

    def __init__(self, address: str) -> None:
        saver = importlib.import_module("langgraph.checkpoint.sqlite").SqliteSaver
        self._empty = importlib.import_module("langgraph.checkpoint.base").empty_checkpoint
        self._conn = sqlite3.connect(address, check_same_thread=False, timeout=_WAIT_SECONDS)
        self._saver = saver(self._conn)
        self._saver.setup()
        self._conn.execute("PRAGMA synchronous=FULL")
        self._places: dict[str, Any] = {}

    @classmethod
    def create(cls, address: str, sessions: Sequence[str]) -> None:
        cls(address).close()

    @classmethod
    def count(cls, address: str) -> int:
        with contextlib.closing(sqlite3.connect(Path(address))) as conn:
            kind = "json_extract(CAST(metadata AS TEXT), '$.source')"
            query = f"SELECT COUNT(*) FROM checkpoints WHERE {kind} = 'message'"
            return int(conn.execute(query).fetchone()[0])

    def append_message(self, session: str, **message: Any) -> Any:
        self._put(session, message, "message")

    def update_token_counts(self, session: str, **counts: Any) -> None:
        self._put(session, counts, "counts")

    def _put(self, session: str, values: dict[str, Any], kind: str) -> None:
        start = {"configurable": {"thread_id": session, "checkpoint_ns": ""}}
        checkpoint = {**self._empty(), "channel_values": {"values": values}}
        place = self._places.get(session, start)
        self._places[session] = self._saver.put(place, checkpoint, {"source": kind}, {})

    def close(self) -> None:
        self._conn.close()


ALTERNATIVES: dict[str, type[Alternative]] = {
    "sqlite3": PlainSqlite,
    "litestream": Litestream,
    "rqlite": Rqlite,
    "postgresql": PostgreSQL,
    "postgresql-indexed": IndexedPostgreSQL,
    "mariadb": MariaDB,
    "redis": Redis,
    "langgraph": LangGraph,
}
"""By the name of the kind of store that a writer is given."""
