"""``hermes-actor top``: watch the actor live."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import termios
import time
import tty
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec

from hermes_actor.cli.options import db_option
from hermes_actor.cli.output.console import print_result
from hermes_actor.cli.output.errors import fail
from hermes_actor.cli.output.formatting import sparkline
from hermes_actor.cli.store import paths_for
from hermes_actor.client.control import look
from hermes_actor.paths import StorePaths
from hermes_actor.system.descriptors import is_readable
from hermes_protocol.status import Status

__all__ = ["top"]

_HISTORY = 60
"""Points of the curve of writes."""


@click.command()
@db_option
@click.option(
    "--interval", type=click.FloatRange(min=0.1, max=60), metavar="SECONDS", default=1.0,
    show_default=True, help="Seconds between two updates.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line and update.")
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="Exit after N updates.")
def top(db: Path | None, interval: float, as_json: bool, count: int | None) -> None:
    """Watch the actor live.

    Shows queue, latency, batches, clients, WAL and index lag. Press q to quit, space to pause and
    continue. It never starts an actor; while none is running it waits for one. Without a terminal,
    use --json.

    Exit codes: 0 quit, or after --count updates; 1 there is no terminal.

    \b
    Examples:
      hermes-actor top
      hermes-actor top --interval 0.2
      hermes-actor top --json --count 10 | jq .total_latency.p99_ms
    """
    paths = paths_for(db)
    if as_json:
        _lines(paths, interval, count)
        return
    if not (sys.stdout.isatty() and sys.stdin.isatty()):
        fail("top needs a terminal; without one: hermes-actor top --json, or hermes-actor status")
    with contextlib.suppress(KeyboardInterrupt):
        _watch(paths, interval, count)


def _lines(paths: StorePaths, interval: float, count: int | None) -> None:
    for number in itertools.count() if count is None else range(count):
        if number:
            time.sleep(interval)
        seen = look(paths)
        document = (
            {"phase": seen, "database": str(paths.db)} if isinstance(seen, str) else seen.document()
        )
        print_result({"time": round(time.time(), 3), **document}, "", as_json=True)


def _watch(paths: StorePaths, interval: float, count: int | None) -> None:
    from rich.live import Live
    from rich.panel import Panel

    from hermes_actor.cli.output.live_view import RateMeter, render

    meter, rates = RateMeter(), deque[float](maxlen=_HISTORY)
    paused, looks = False, 0
    with _keys(), Live(screen=True, auto_refresh=False) as live:
        while count is None or looks < count:
            seen = None if paused else look(paths)
            if isinstance(seen, Status):
                rates.append(meter(seen))
                shown = msgspec.structs.replace(
                    seen, connections=seen.clients(except_pid=os.getpid())
                )
                panel = render(shown, rates[-1], hint="q quit, space pause", curve=sparkline(rates))
                live.update(panel, refresh=True)
            elif seen is not None:
                live.update(Panel(f"{seen}: {paths.db}", subtitle="q quit"), refresh=True)
            looks += not paused
            pressed = _pressed(interval)
            if pressed in ("q", "Q", "\x1b", "\x04"):
                return
            paused ^= pressed == " "


@contextlib.contextmanager
def _keys() -> Iterator[None]:
    """Have single keys at once, and the terminal as it was at the end."""
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _pressed(seconds: float) -> str:
    """The key that is pressed within *seconds*, or nothing."""
    if not is_readable(sys.stdin, seconds):
        return ""
    return os.read(sys.stdin.fileno(), 1).decode("ascii", "ignore")
