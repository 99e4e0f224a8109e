"""``hermes-actor top``: watch the actor live."""

from __future__ import annotations

import contextlib
import json
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

from hermes_actor import exit_codes
from hermes_actor.cli.options import db_option
from hermes_actor.cli.output import print_error
from hermes_actor.cli.store import paths_for
from hermes_actor.client.control import ask_status
from hermes_actor.errors import DeadlineExceeded, HermesActorError
from hermes_actor.paths import StorePaths
from hermes_actor.system.descriptors import is_readable
from hermes_actor.system.lock_inspection import lock_holder
from hermes_protocol.status import Status

__all__ = ["top"]

_HISTORY = 60
"""Points of the curve of writes."""
_BARS = " ▁▂▃▄▅▆▇█"


@click.command()
@db_option
@click.option(
    "--interval", type=click.FloatRange(min=0.1, max=60), metavar="SECONDS", default=1.0,
    show_default=True, help="Seconds between two updates.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line and update.")
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="Exit after N updates.")
def top(db: Path | None, interval: float, as_json: bool, count: int | None) -> int:
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
        return _lines(paths, interval, count)
    if not (sys.stdout.isatty() and sys.stdin.isatty()):
        print_error("there is no terminal; use: hermes-actor top --json, or hermes-actor status")
        return exit_codes.REFUSED
    with contextlib.suppress(KeyboardInterrupt):
        _watch(paths, interval, count)
    return exit_codes.OK


def _look(paths: StorePaths) -> Status | str:
    """Return the status, or why there is none."""
    if lock_holder(paths) is None:
        # To connect could start one: a service manager may hold the socket.
        return "not running"
    try:
        return ask_status(paths) or "not running"
    except (DeadlineExceeded, OSError):
        return "does not answer"
    except HermesActorError as error:
        return str(error)


def _lines(paths: StorePaths, interval: float, count: int | None) -> int:
    done = 0
    while count is None or done < count:
        if done:
            time.sleep(interval)
        seen = _look(paths)
        document = (
            {"phase": seen, "database": str(paths.db)} if isinstance(seen, str) else seen.document()
        )
        print(json.dumps({"time": round(time.time(), 3), **document}), flush=True)
        done += 1
    return exit_codes.OK


def _watch(paths: StorePaths, interval: float, count: int | None) -> None:
    from rich.live import Live
    from rich.panel import Panel

    from hermes_actor.cli._live_view import render

    rates: deque[float] = deque(maxlen=_HISTORY)
    last: tuple[float, int, int] | None = None
    paused, looks = False, 0
    with _keys(), Live(screen=True, auto_refresh=False) as live:
        while count is None or looks < count:
            seen = None if paused else _look(paths)
            if isinstance(seen, Status):
                now, writes = time.monotonic(), seen.writes
                if last is None or last[2] != seen.pid:
                    last = (now, writes, seen.pid)
                rate = (writes - last[1]) / max(now - last[0], 1e-3)
                last = (now, writes, seen.pid)
                rates.append(rate)
                others = seen.clients(except_pid=os.getpid())
                live.update(
                    render(
                        msgspec.structs.replace(seen, connections=others),
                        rate,
                        hint="q quits, space pauses",
                        curve=_curve(rates),
                    ),
                    refresh=True,
                )
            elif seen is not None:
                live.update(Panel(f"{seen}: {paths.db}", subtitle="q quits"), refresh=True)
            looks += not paused
            pressed = _pressed(interval)
            if pressed in ("q", "Q", "\x1b", "\x04"):
                return
            paused ^= pressed == " "


def _curve(rates: deque[float]) -> str:
    highest = max(rates, default=0.0)
    if highest <= 0:
        return ""
    return "".join(_BARS[round(rate / highest * (len(_BARS) - 1))] for rate in rates)


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
