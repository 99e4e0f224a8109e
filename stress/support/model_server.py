"""A small model server on loopback that speaks the protocol of OpenAI, streaming too.

It answers every conversation with ``Heard: `` and what was said last, so that an answer shows which
turn it belongs to.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["MODEL", "model_server"]

MODEL = "echo-1"

_USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


@contextmanager
def model_server() -> Iterator[str]:
    """Serve beside the block, which gets the base address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base
        """Say nothing."""

    def do_GET(self) -> None:
        model = {"id": MODEL, "object": "model", "context_length": 128_000}
        self._answer({"object": "list", "data": [model]})

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        said = _text(request["messages"][-1]["content"]) if request.get("messages") else ""
        text = f"Heard: {said[-200:]}"
        common = {"id": "answer", "created": int(time.time()), "model": MODEL}
        if request.get("stream"):
            self._stream(common, text)
        else:
            message = {"role": "assistant", "content": text}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            kind = {"object": "chat.completion", "usage": _USAGE}
            self._answer({**common, **kind, "choices": [choice]})

    def _stream(self, common: dict[str, Any], text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        middle = len(text) // 2
        parts: list[tuple[dict[str, str], str | None]] = [
            ({"role": "assistant"}, None),
            ({"content": text[:middle]}, None),
            ({"content": text[middle:]}, None),
            ({}, "stop"),
        ]
        for delta, reason in parts:
            choice = {"index": 0, "delta": delta, "finish_reason": reason}
            self._event({**common, "object": "chat.completion.chunk", "choices": [choice]})
        self._event({**common, "object": "chat.completion.chunk", "choices": [], "usage": _USAGE})
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, document: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(document).encode() + b"\n\n")
        self.wfile.flush()

    def _answer(self, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _text(content: Any) -> str:
    """The text of a message, which may come in parts."""
    return content if isinstance(content, str) else " ".join(one.get("text", "") for one in content)
