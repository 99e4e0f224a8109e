"""Bad weather for servers: writers that write down what they saw, crashes, cut connections."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import zlib
from pathlib import Path

import msgspec
from sqlalchemy import select

from hermes_actor.providers.sql import tables
from hermes_actor.testing.history import Row, Write, check
from support.processes import SCRIPTS

WRITER = """
    import json, os, select, sys, time, zlib
    from hermes_actor import SessionDB
    from hermes_actor.errors import HermesActorError
    url, name, seen, timeout = sys.argv[1:5]
    db = SessionDB(url, timeout=float(timeout))
    db.ensure_session(name, "weather")
    number = 0
    with open(seen, "w", buffering=1) as history:
        os.write(1, b"ready\\n")
        while not select.select([0], [], [], 0)[0]:
            number += 1
            text = f"{name} {number} " + "x" * (number % 700)
            began, place = time.monotonic(), None
            try:
                place, outcome, error = db.append_message(name, "user", text), "ok", ""
            except HermesActorError as caught:
                outcome = {"no": "failed", "unknown": "unknown"}[caught.executed]
                error = type(caught).__name__
            except BaseException as caught:
                outcome, error = "unknown", f"untyped {caught!r}"
            payload, ended = zlib.crc32(text.encode()), time.monotonic()
            line = [number, payload, began, ended, outcome, place, error]
            history.write(json.dumps(line) + "\\n")
    db.close()
"""


class Crew:
    """Processes that write, each to a session of its own, until they are told to end."""

    def __init__(self, url, count, timeout=30.0):
        self.url = url
        self.folder = Path(tempfile.mkdtemp(prefix="hermes-actor-weather-"))
        self.names = [f"writer-{number}" for number in range(count)]
        self.processes = [self._start(name, timeout) for name in self.names]
        for process in self.processes:
            assert process.stdout.readline() == b"ready\n", process.stderr.read()

    def _start(self, name, timeout):
        words = [self.url, name, str(self.folder / name), str(timeout)]
        return subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(WRITER), *words],
            env={**os.environ, "PYTHONPATH": str(SCRIPTS)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def lines(self, name):
        return [json.loads(line) for line in (self.folder / name).read_text().splitlines()]

    def acknowledged(self):
        return {name: sum(line[4] == "ok" for line in self.lines(name)) for name in self.names}

    def wait_for_more(self, more=3, timeout=90.0):
        """Until everybody has got some more acknowledgements."""
        wanted = {name: count + more for name, count in self.acknowledged().items()}
        until = time.monotonic() + timeout
        while any(count < wanted[name] for name, count in self.acknowledged().items()):
            assert time.monotonic() < until, self.acknowledged()
            time.sleep(0.02)

    def end(self):
        """Have everybody finish; what they saw, and the names of the errors they met."""
        for process in self.processes:
            process.stdin.close()
        for process in self.processes:
            assert process.wait(timeout=100) == 0, process.stderr.read()
            process.stdout.close()
            process.stderr.close()
        writes, errors = [], []
        for name in self.names:
            for number, payload, began, ended, outcome, result, error in self.lines(name):
                writes.append(Write(name, number, payload, began, ended, outcome, None, result))
                errors += [error] if error else []
            (self.folder / name).unlink()
        self.folder.rmdir()
        return writes, errors


def violations(db, writes):
    """What the rules of a history say to the store that the writers leave.

    Places are the numbers of the notes. They have gaps on a server, and readers of a snapshot do
    not see them; all other rules apply.
    """
    rows, orphans, wrong = db._port.database.read(_contents, (), 30.0, False)
    places = {row.result: row.paths for row in rows}
    told = [write._replace(paths=places.get(write.result)) for write in writes]
    return check(told, rows, orphans=orphans, structure=wrong)


def _contents(conn):
    """The rows, the numbers of notes without a row, and sessions that count wrong."""
    changes, messages, sessions = tables.changes.c, tables.messages.c, tables.sessions.c
    appended = changes.op == "message.append"
    notes = {
        msgspec.msgpack.decode(result): paths
        for paths, result in conn.tuples(select(changes.commit_no, changes.result).where(appended))
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


def crash(server):
    """Kill all of a server at once, as a crash does."""
    pid = server.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    server.process.kill()
    for child in map(int, children):
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    server.process.wait()
    server.process = None
    # What they shared is free only when the last of them is gone.
    until = time.monotonic() + 20
    while any(Path(f"/proc/{child}").exists() and not _is_dead(child) for child in children):
        assert time.monotonic() < until
        time.sleep(0.01)


def _is_dead(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


class Proxy:
    """Stands between a client and the socket of a server, and can cut at the word COMMIT.

    ``cut`` is ``before``: the word never reaches the server; or ``after``: it does, and the answer
    never reaches the client. Each cut happens once.
    """

    def __init__(self, server, path):
        self._server = server
        self.cuts = []
        self.done = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        self._listener.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(str(self._server))
                threading.Thread(target=self._serve, args=(client, server), daemon=True).start()

    def _serve(self, client, server):
        back = threading.Thread(target=self._copy, args=(server, client), daemon=True)
        back.start()
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 16):
                if self.cuts and b"COMMIT" in data.upper():
                    return self._cut(self.cuts.pop(0), data, client, server)
                server.sendall(data)
        self._end(client, server)
        return None

    def _cut(self, how, data, client, server):
        self.done.append(how)
        if how == "after":
            # Nothing goes back from here on; the server works on until it has answered.
            client.shutdown(socket.SHUT_RDWR)
            server.sendall(data)
            time.sleep(0.3)
        self._end(client, server)

    def _copy(self, server, client):
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 16):
                client.sendall(data)
        self._end(client, server)

    @staticmethod
    def _end(*sockets):
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
