"""``hermes-actor metrics``: figures of actors for Prometheus."""

from __future__ import annotations

import contextlib
import http.server
import sys
from collections.abc import Callable
from pathlib import Path

import click

from hermes_actor.cli.options import db_option
from hermes_actor.cli.output.errors import fail
from hermes_actor.cli.store import paths_for
from hermes_actor.client.control import ask_status
from hermes_actor.errors import HermesActorError
from hermes_actor.paths import StorePaths, default_home, stores_below
from hermes_actor.system.lock_inspection import lock_holder
from hermes_actor.tools.metrics_text import CONTENT_TYPE, StoreState, metrics_text

__all__ = ["metrics"]

_HOST = "127.0.0.1"
_NAMES = frozenset({_HOST, "localhost"})


@click.command()
@db_option
@click.option("--all", "every", is_flag=True, help="Every store below HERMES_HOME.")
@click.option(
    "--listen", type=click.IntRange(0, 65_535), metavar="PORT",
    help="Answer GET /metrics on this port of 127.0.0.1 until Ctrl-C; 0 picks one.",
)  # fmt: skip
def metrics(db: Path | None, every: bool, listen: int | None) -> None:
    """Print the figures of the actor in the format of Prometheus.

    They are those of `status`: clients, queue, batches, latencies, checkpoints, WAL, index lag and
    faults. It never starts an actor: where none runs, hermes_actor_up is 0. With --listen every
    scrape asks again, and only programs of this machine can scrape.

    Exit codes: 0 printed, or ended by Ctrl-C; 1 the port cannot be used.

    \b
    Examples:
      hermes-actor metrics
      hermes-actor metrics --all --listen 9187
    """
    if every and db is not None:
        raise click.UsageError("--all cannot be combined with --db")

    def text() -> str:
        stores = stores_below(default_home()) if every else [paths_for(db)]
        return metrics_text(map(_state, stores))

    if listen is None:
        print(text(), end="")
        return
    with _server(listen, text) as server, contextlib.suppress(KeyboardInterrupt):
        port = server.server_address[1]
        print(f"serving metrics at http://{_HOST}:{port}/metrics", file=sys.stderr, flush=True)
        server.serve_forever()


def _state(paths: StorePaths) -> StoreState:
    status = None
    with contextlib.suppress(HermesActorError):
        # Asked only if there is an owner: a socket of a service manager would start one.
        status = ask_status(paths) if lock_holder(paths) is not None else None
    return StoreState(str(paths.db), status, _size(paths.db), _size(paths.wal))


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return 0


def _server(port: int, text: Callable[[], str]) -> http.server.HTTPServer:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            # A page of a browser that has another name resolved to this machine gets nothing.
            if self.headers.get("Host", "").rpartition(":")[0] not in _NAMES:
                self.send_error(403)
            elif self.path.partition("?")[0] != "/metrics":
                self.send_error(404)
            else:
                body = text().encode()
                self.send_response(200)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
            """Print nothing: a scrape every few seconds is no news."""

    try:
        return http.server.ThreadingHTTPServer((_HOST, port), Handler)
    except OSError as error:
        fail(f"cannot listen on port {port} of {_HOST}: {error.strerror}")
