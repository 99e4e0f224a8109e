"""Faults of servers: writers that record what they saw, crashes, cut connections."""

import contextlib
import os
import signal
import socket
import tempfile
import threading
import time
import zlib
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import select

from hermes_actor.providers.sql import tables
from hermes_actor.testing.history import Row, Violation, Write, check
from hermes_actor.testing.writer_pool import WriterPool
from support.servers import Server


class ServerWriters:
    """Processes that write to a store on a server, each to a session of its own."""

    def __init__(self, url: str, count: int, timeout: float = 30.0) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="hermes-actor-server-faults-")
        self._pool = WriterPool(url, Path(self._folder.name) / "records")
        self._pool.add(count, timeout=timeout, words=100)
        self._pool.start()
        self._pool.go()

    def wait_for_more(self, more: int = 3, timeout: float = 90.0) -> None:
        """Wait until every writer has got some more acknowledgements."""
        self._pool.wait_for_more(more, timeout)

    def end(self) -> tuple[list[Write], list[str]]:
        """Have all of them finish; return their changes, and the names of the errors they met."""
        assert self._pool.stop(100.0) == 0, self._pool.last_words()
        recorded = self._pool.recorded
        self._folder.cleanup()
        assert recorded.errors == []
        # A refusal is "NAME NUMBER at TIME ERROR: text"; an error without a type has two words.
        errors = [text.split(" ", 4)[4].partition(":")[0] for text in recorded.refusals]
        return [write._replace(place=None) for write in recorded.writes], errors


def violations(db: Any, writes: list[Write]) -> list[Violation]:
    """Return what breaks the rules of a history in the store that the writers leave.

    Places are the numbers of the notes. They have gaps on a server, and readers of a snapshot do
    not see them; all other rules apply.
    """
    rows, orphans, wrong = db._port.database.read(_contents, (), 30.0, False)
    places = {row.result: row.place for row in rows}
    placed = [write._replace(place=places.get(write.result)) for write in writes]
    return check(placed, rows, orphans=orphans, structure=wrong)


def _contents(conn: Any) -> tuple[list[Row], list[int], list[str]]:
    """Return the rows, the numbers of notes without a row, and sessions that count wrong."""
    changes, messages, sessions = tables.changes.c, tables.messages.c, tables.sessions.c
    appended = changes.op == "message.append"
    notes = {
        msgspec.msgpack.decode(result): place
        for place, result in conn.tuples(select(changes.commit_no, changes.result).where(appended))
    }
    rows = [
        Row(notes.pop(ident, None), name, int(text.split()[1]), zlib.crc32(text.encode()), ident)
        for ident, name, text in conn.tuples(
            select(messages.id, messages.session_id, messages.content)
        )
    ]
    wrong = [
        f"{name} counts {count} messages"
        for name, count in conn.tuples(select(sessions.id, sessions.message_count))
        if count != sum(row.client == name for row in rows)
    ]
    return rows, list(notes.values()), wrong


def crash(server: Server) -> None:
    """Kill all of a server at once, as a crash does."""
    assert server.process is not None
    pid = server.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    server.process.kill()
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(child), signal.SIGKILL)
    server.process.wait()
    server.process = None
    # What they shared is free only when the last of them is gone.
    until = time.monotonic() + 20
    while any(Path(f"/proc/{child}").exists() and not _is_dead(child) for child in children):
        assert time.monotonic() < until
        time.sleep(0.01)


def _is_dead(pid: str) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


class Proxy:
    """Stands between a client and the socket of a server, and can cut at a commit.

    A commit is the word COMMIT, or a statement that is a transaction of its own. ``cut`` is
    ``before``: it never reaches the server; or ``after``: it does, and the answer never reaches the
    client. Each cut happens once.
    """

    _COMMITS = (b"COMMIT", b"NOTED AS")

    def __init__(self, server: Path | str, path: Path) -> None:
        self._server = server
        self.cuts: list[str] = []
        self.done: list[str] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(str(self._server))
                threading.Thread(target=self._serve, args=(client, server), daemon=True).start()

    def _serve(self, client: socket.socket, server: socket.socket) -> None:
        back = threading.Thread(target=self._copy, args=(server, client), daemon=True)
        back.start()
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 16):
                if self.cuts and any(word in data.upper() for word in self._COMMITS):
                    self._cut(self.cuts.pop(0), data, client, server)
                    return
                server.sendall(data)
        self._end(client, server)

    def _cut(self, how: str, data: bytes, client: socket.socket, server: socket.socket) -> None:
        self.done.append(how)
        if how == "after":
            # Nothing goes back from here on; the server works on until it has answered.
            client.shutdown(socket.SHUT_RDWR)
            server.sendall(data)
            time.sleep(0.3)
        self._end(client, server)

    def _copy(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 16):
                client.sendall(data)
        self._end(client, server)

    @staticmethod
    def _end(*sockets: socket.socket) -> None:
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
