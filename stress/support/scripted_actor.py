"""An actor in a thread that keeps its receipts, and does otherwise what a test asks of it."""

import selectors
import socket
import threading
from typing import Any

import msgspec

from hermes_actor import __version__, limits
from hermes_actor.paths import StorePaths
from hermes_protocol import messages as wire
from hermes_protocol.framing import FrameBuffer, decode_client, decode_operation, frame
from hermes_protocol.operations import Staged, StagePart

PID = 4242


class AnsweringActor:
    """Serves *place*. ``applied`` are the keys of the operations in the order of their effect.

    ``reads`` and ``answers`` may be cleared and set again; ``cut`` ends every connection once
    after so many more requests.
    """

    def __init__(self, paths: StorePaths, *, window: int = 64, backlog: int = 128) -> None:
        paths.folder.mkdir(mode=0o700, exist_ok=True)
        self.applied: list[str] = []
        self.heard: list[Any] = []
        self.reads, self.answers = threading.Event(), threading.Event()
        self.reads.set()
        self.answers.set()
        self.cut = 0
        self._window = window
        self._paths = paths
        self._receipts: dict[tuple[bytes, int], bytes] = {}
        self._parts: dict[tuple[bytes, int], list[bytes]] = {}
        self._connections: dict[socket.socket, _Connection] = {}
        self._selector = selectors.DefaultSelector()
        self._stop, self._stopped = socket.socketpair()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(paths.sock))
        self._listener.listen(backlog)
        self._listener.setblocking(False)
        for sock in (self._listener, self._stopped):
            self._selector.register(sock, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.reads.set()
        self._stop.send(b"!")
        self._thread.join(30)
        for sock in (*self._connections, self._listener, self._stop, self._stopped):
            sock.close()
        self._selector.close()
        self._paths.sock.unlink()

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._stopped:
                    return
                self.reads.wait()
                if key.fileobj is self._listener:
                    self._accept()
                else:
                    self._serve(key.fileobj)  # type: ignore[arg-type]

    def _accept(self) -> None:
        sock, _ = self._listener.accept()
        self._connections[sock] = _Connection()
        self._selector.register(sock, selectors.EVENT_READ)

    def _serve(self, sock: socket.socket) -> None:
        if sock not in self._connections:
            return
        connection = self._connections[sock]
        try:
            data = sock.recv(1 << 16)
        except ConnectionError:
            data = b""
        if not data:
            self._end(sock)
            return
        connection.buffer.feed(data)
        out = b""
        while (body := connection.buffer.next_body()) is not None:
            message = decode_client(body)
            self.heard.append(message)
            if self.cut and isinstance(message, wire.Request):
                self.cut -= 1
                if not self.cut:
                    self._answer(connection, message)  # applied, and the answer is lost
                    self._end(sock)
                    return
            out += self._answer(connection, message)
        if out and self.answers.is_set():
            try:
                sock.sendall(out)
            except OSError:
                self._end(sock)

    def _end(self, sock: socket.socket) -> None:
        self._selector.unregister(sock)
        del self._connections[sock]
        sock.close()

    def _answer(self, connection: "_Connection", message: Any) -> bytes:
        if isinstance(message, wire.Hello):
            connection.client = message.client_id
            for sock, other in list(self._connections.items()):
                if other is not connection and other.client == message.client_id:
                    self._end(sock)
            return frame(
                wire.Welcome(
                    protocol=1, phase="serving", epoch=1, file_id=b"file", durability="fsync",
                    limits=wire.Limits(window=self._window), schema_version=11, build=__version__,
                    pid=PID, commit_no=0, ready=True,
                )
            )  # fmt: skip
        if isinstance(message, wire.Request):
            key = (connection.client, message.seq)
            if key not in self._receipts:
                self._receipts[key] = self._apply(connection.client, message)
            return frame(
                wire.Ok(seq=message.seq, commit_no=0, result=msgspec.Raw(self._receipts[key]))
            )
        if isinstance(message, wire.StatusRequest):
            return frame(wire.StatusReply(ask=message.ask, status="{}"))
        if isinstance(message, wire.Bye):
            return b""
        if isinstance(message, wire.Maintain):
            result = msgspec.msgpack.encode({"task": message.task})
            return frame(wire.Done(ask=message.ask, result=msgspec.Raw(result)))
        return frame(wire.Done(ask=message.ask))

    def _apply(self, client: bytes, message: wire.Request) -> bytes:
        operation: Any = decode_operation(message.operation)
        if isinstance(operation, StagePart):
            self._parts.setdefault((client, operation.key), []).append(operation.data)
            return msgspec.msgpack.encode(None)
        if isinstance(operation, Staged):
            whole = b"".join(self._parts.pop((client, operation.key)))
            operation = decode_operation(whole)
        self.applied.append(operation.key)
        return msgspec.msgpack.encode(None)


class _Connection:
    def __init__(self) -> None:
        self.buffer = FrameBuffer(limits.FRAME_MAX_BYTES)
        self.client = b""
