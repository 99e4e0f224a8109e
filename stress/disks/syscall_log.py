"""What a process asked of its disk and sent to its clients, read from a log of its system calls.

Writes count from the moment at which they begin, answers too, and syncs from the moment at which
they end: whatever is open in between is decided against the process.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

import hermes_protocol.messages as wire
from disks.recording import Sent
from hermes_protocol.framing import FrameBuffer, FrameError, decode_client, decode_server
from hermes_protocol.operations import SqlLease

__all__ = ["CALLS", "SystemCalls"]

CALLS = (
    "openat,pwrite64,write,ftruncate,fdatasync,fsync,unlink,unlinkat,"
    "sendto,sendmsg,recvfrom,recvmsg"
)
"""What must be traced."""

_LINE = re.compile(r"^(\d+) +(.*)$")
_CALL = re.compile(r"^(\w+)\((.*)\) += (-?\d+)(<[^>]*>)?")
_RESUMED = re.compile(r"^<\.\.\. (\w+) resumed>(.*)$")
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"(\.\.\.)?')
_DESCRIPTOR = re.compile(r"^(\d+|AT_FDCWD)<([^>]*)>")
_UNFINISHED = "<unfinished ...>"

_FRAME_MAX_BYTES = 1 << 26


def _bytes(escaped: str) -> bytes:
    return bytes.fromhex(escaped.replace("\\x", ""))


def _path(escaped: str) -> str:
    return _bytes(escaped).decode() if escaped.startswith("\\x") else escaped


class SystemCalls:
    """Feed it the lines of ``strace -f -y -xx``; ``events`` are those of a recording."""

    def __init__(self, db: Path) -> None:
        self._folder = str(db.parent)
        self._names = {db.name, f"{db.name}-wal", f"{db.name}-journal"}
        self._known: set[str] = set()
        self._open: dict[str, tuple[str, int]] = {}
        self._streams: dict[tuple[str, str], FrameBuffer] = {}
        self._clients: dict[str, bytes] = {}
        self._runs: dict[tuple[str, int], bytes] = {}
        self._strangers: set[str] = set()
        self._events: list[list[tuple[Any, ...]]] = []
        self.syncs = 0

    @property
    def events(self) -> list[tuple[Any, ...]]:
        return [event for group in self._events for event in group]

    def feed(self, lines: Iterable[str]) -> SystemCalls:
        for line in lines:
            found = _LINE.match(line.rstrip("\n"))
            if found:
                self._line(*found.groups())
        return self

    def _line(self, pid: str, text: str) -> None:
        resumed = _RESUMED.match(text)
        if text.endswith(_UNFINISHED):
            self._open[pid] = (text.removesuffix(_UNFINISHED).rstrip(), len(self._events))
            self._events.append([])
            return
        began = len(self._events)
        if resumed:
            start, began = self._open.pop(pid, ("", -1))
            text = start + resumed[2]
        call = _CALL.match(text)
        if call is None or began < 0 or int(call[3]) < 0:
            return
        self._events.append([])
        self._call(call[1], call[2], int(call[3]), began, len(self._events) - 1)

    def _call(self, name: str, arguments: str, result: int, began: int, ended: int) -> None:
        """*began* and *ended* are places among the events."""
        if name == "openat":
            self._opened(arguments, ended)
        elif name in ("unlink", "unlinkat"):
            self._unlinked(arguments, began)
        elif name in ("sendto", "sendmsg", "write") and self._is_socket(arguments):
            self._reported(arguments, result, began)
        elif name in ("recvfrom", "recvmsg"):
            self._heard(arguments, result, ended)
        else:
            self._file(name, arguments, result, began, ended)

    # --- files -----------------------------------------------------------------------------------

    def _file(self, name: str, arguments: str, result: int, began: int, ended: int) -> None:
        descriptor = _DESCRIPTOR.match(arguments)
        path = _path(descriptor[2]) if descriptor else ""
        if name in ("fdatasync", "fsync") and path == self._folder:
            self._events[ended].append(("folder",))
            return
        short = self._ours(path)
        if short is None:
            return
        if name == "pwrite64":
            text = _TEXT.search(arguments)
            assert text is not None
            assert text[2] is None, "the log does not hold all of a write"
            offset = int(arguments.rsplit(",", 1)[1])
            self._events[began].append(("write", short, offset, _bytes(text[1])[:result]))
        elif name == "ftruncate":
            self._events[began].append(("truncate", short, int(arguments.rsplit(",", 1)[1])))
        elif name in ("fdatasync", "fsync"):
            self._events[ended].append(("sync", short))
            self.syncs += 1

    def _ours(self, path: str) -> str | None:
        folder, _, short = path.rpartition("/")
        return short if folder == self._folder and short in self._names else None

    def _opened(self, arguments: str, ended: int) -> None:
        text = _TEXT.search(arguments)
        short = self._ours(_bytes(text[1]).decode()) if text else None
        if short is not None and short not in self._known and "O_CREAT" in arguments:
            self._known.add(short)
            self._events[ended].append(("create", short))

    def _unlinked(self, arguments: str, began: int) -> None:
        text = _TEXT.search(arguments)
        short = self._ours(_bytes(text[1]).decode()) if text else None
        if short is not None:
            self._known.discard(short)
            self._events[began].append(("delete", short, False))

    # --- conversations ---------------------------------------------------------------------------

    def _is_socket(self, arguments: str) -> bool:
        descriptor = _DESCRIPTOR.match(arguments)
        return descriptor is not None and ":[" in _path(descriptor[2])

    def _frames(self, arguments: str, result: int, way: str) -> tuple[str, list[bytes]]:
        descriptor = _DESCRIPTOR.match(arguments)
        if descriptor is None or result <= 0:
            return "", []
        socket = _path(descriptor[2])
        if socket in self._strangers:
            return "", []
        data = b"".join(_bytes(text[1]) for text in _TEXT.finditer(arguments))[:result]
        stream = self._streams.setdefault((socket, way), FrameBuffer(_FRAME_MAX_BYTES))
        stream.feed(data)
        bodies = []
        while (body := stream.next_body()) is not None:
            bodies.append(bytes(body))
        return socket, bodies

    def _heard(self, arguments: str, result: int, ended: int) -> None:
        socket, bodies = self._frames(arguments, result, "heard")
        for body in bodies:
            try:
                message = decode_client(body)
            except FrameError:
                # The event loop wakes itself through a socket, too.
                self._strangers.add(socket)
                return
            if isinstance(message, wire.Hello):
                self._clients[socket] = message.client_id
            elif isinstance(message, wire.Request):
                sent = Sent(self._clients[socket], message.seq, bytes(message.operation))
                self._events[ended].append(("sent", [sent]))
            elif isinstance(message, wire.LeaseOpen):
                self._runs[socket, message.lease] = bytes(message.first)
            elif isinstance(message, wire.LeaseCommit):
                operation = msgspec.msgpack.encode(SqlLease(lease=message.lease))
                run = self._runs.pop((socket, message.lease))
                sent = Sent(self._clients[socket], message.seq, operation, run)
                self._events[ended].append(("sent", [sent]))

    def _reported(self, arguments: str, result: int, began: int) -> None:
        descriptor = _DESCRIPTOR.match(arguments)
        if descriptor is None or _path(descriptor[2]) not in self._clients:
            return
        socket, bodies = self._frames(arguments, result, "told")
        for body in bodies:
            message = decode_server(body)
            if isinstance(message, wire.Ok):
                client, answer = self._clients[socket], bytes(msgspec.Raw(message.result))
                self._events[began].append(("ack", client, message.seq, message.commit_no, answer))
