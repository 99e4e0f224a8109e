"""A small Signal daemon on loopback: chats for the gateway of an installed hermes-agent.

It speaks what the gateway needs of the HTTP interface of signal-cli: a stream of events with what
people say, and requests that send them replies.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["SignalServer", "signal_server"]

_ACCOUNT = "+15550000000"


class SignalServer:
    """What people say to the account, and what each of them has got from it."""

    def __init__(self, url: str) -> None:
        self.variables = {
            "SIGNAL_HTTP_URL": url,
            "SIGNAL_ACCOUNT": _ACCOUNT,
            "SIGNAL_ALLOW_ALL_USERS": "true",
            "SIGNAL_HOME_CHANNEL": _ACCOUNT,
        }
        """Those of the gateway that is to use it."""
        self.listeners = 0
        self.said: queue.Queue[tuple[str, str]] = queue.Queue()
        self._got: dict[str, list[str]] = defaultdict(list)
        self._changed = threading.Condition()

    def turn(self, number: str, text: str, seconds: float) -> bool:
        """Say *text* as the person with *number*; whether a reply with it came in that time."""
        self.said.put((number, text))
        with self._changed:
            return self._changed.wait_for(lambda: self._has_reply(number, text), seconds)

    def got(self, number: str) -> list[str]:
        """Every message that was sent to *number*."""
        with self._changed:
            return list(self._got[number])

    def deliver(self, numbers: list[str], text: str) -> None:
        with self._changed:
            for number in numbers:
                self._got[number].append(text)
            self._changed.notify_all()

    def _has_reply(self, number: str, text: str) -> bool:
        return any(text in one for one in self._got[number])


@contextmanager
def signal_server() -> Iterator[SignalServer]:
    """Serve beside the block."""
    server = _Server(("127.0.0.1", 0), _Handler)
    signal = SignalServer(f"http://127.0.0.1:{server.server_port}")
    server.RequestHandlerClass = type("_Bound", (_Handler,), {"signal": signal})
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield signal
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a gateway that gives a request up, or has ended."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    signal: SignalServer

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base
        """Say nothing."""

    def do_GET(self) -> None:
        if self.path.startswith("/api/v1/events"):
            self._stream()
        else:
            self._answer({"versions": {"signal-cli": "0.13.0"}})

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        result: object = {}
        if request["method"] == "send":
            words = request["params"]
            self.signal.deliver(words["recipient"], words.get("message", ""))
            result = {"timestamp": time.time_ns() // 1_000_000}
        self._answer({"jsonrpc": "2.0", "id": request["id"], "result": result})

    def _stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        self.signal.listeners += 1
        try:
            while True:
                try:
                    event = _event(*self.signal.said.get(timeout=10))
                except queue.Empty:
                    event = b":\n\n"  # a sign of life
                self.wfile.write(event)
                self.wfile.flush()
        except OSError:  # the gateway has ended
            self.signal.listeners -= 1

    def _answer(self, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _event(number: str, text: str) -> bytes:
    now = time.time_ns() // 1_000_000
    envelope = {
        "source": number, "sourceNumber": number, "sourceName": f"Person {number[-2:]}",
        "timestamp": now, "dataMessage": {"timestamp": now, "message": text},
    }  # fmt: skip
    document = {"envelope": envelope, "account": _ACCOUNT}
    return b"event:receive\ndata:" + json.dumps(document).encode() + b"\n\n"
