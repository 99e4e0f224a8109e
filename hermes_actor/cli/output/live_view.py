"""The live view of ``hermes-actor serve`` and ``top`` on a terminal."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import termios
import time
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from hermes_actor.cli.output.actor_words import index_text, wal_text
from hermes_actor.cli.output.console import size_text
from hermes_actor.cli.output.formatting import count, short_duration
from hermes_protocol.features import SESSIONS
from hermes_protocol.status import ConnectionStatus, Status

__all__ = ["RateMeter", "live_display", "live_panel", "render"]

_CLIENTS_SHOWN = 8


class RateMeter:
    """Writes per second between two status documents of one actor."""

    def __init__(self) -> None:
        self._last = (0, 0.0, 0)

    def __call__(self, status: Status) -> float:
        """Return the rate since the last call; 0 for another actor than then."""
        (pid, then, before), now = self._last, time.monotonic()
        self._last = (status.pid, now, status.writes)
        return (status.writes - before) / max(now - then, 1e-3) if pid == status.pid else 0.0


@contextlib.contextmanager
def live_display() -> Iterator[Live]:
    """Give a display that is redrawn in place; the terminal is clean after the block."""
    with _no_caret(), Live(auto_refresh=False, transient=True) as live:
        yield live


@contextlib.contextmanager
def _no_caret() -> Iterator[None]:
    """Keep the terminal from showing ``^C``: behind a panel as wide as the screen it begins a new
    line, and the first line of the panel would be left there.
    """
    # In the background a change of the terminal stops the process.
    if not sys.stdin.isatty() or os.tcgetpgrp(sys.stdin.fileno()) != os.getpgrp():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    *modes, local, in_speed, out_speed, keys = before
    _set_terminal([*modes, local & ~termios.ECHOCTL, in_speed, out_speed, keys])
    try:
        yield
    finally:
        _set_terminal(before)


def _set_terminal(attributes: list[Any]) -> None:
    # Blocked, the signal does not stop a process that is in the background by now.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    try:
        with contextlib.suppress(termios.error):  # the terminal may be gone
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, attributes)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


@contextlib.contextmanager
def live_panel() -> Iterator[Callable[[Status], None]]:
    """Give a function that redraws one panel in place; the terminal is clean after the block."""
    rate = RateMeter()
    with live_display() as live:
        yield lambda status: live.update(render(status, rate(status)), refresh=True)


def render(status: Status, rate: float, *, hint: str = "Ctrl-C stops it", curve: str = "") -> Panel:
    """The panel of one status document; *rate* is writes per second since the last one.

    *curve* is a line of them over time, *hint* what keys do.
    """
    total, queue = status.total_latency, status.queue
    sizes = ", ".join(f"{n:,} of size {size}" for size, n in status.batch_sizes.items() if n)
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    for name, text in (
        ("actor", f"pid {status.pid}, version {status.version}, epoch {status.epoch}"),
        ("up", short_duration(status.uptime_s)),
        ("writes", f"{status.writes:,} in {status.batches:,} batches, {rate:,.0f}/s"),
        *((("", curve),) if curve else ()),
        ("batches", sizes or "none yet"),
        ("latency", f"p50 {total.p50_ms} ms, p99 {total.p99_ms} ms"),
        *((("lease", status.lease.text(time.time())),) if status.lease else ()),
        ("queue", f"{count(queue.count, 'request')}, {size_text(queue.bytes)}"),
        ("wal", wal_text(status.wal_frames, status.checkpoints)),
        *((("index", index_text(status.index)),) if status.kind == SESSIONS else ()),
    ):
        facts.add_row(name, text)
    parts: list[Any] = [facts]
    parts += [Text(f"degraded: {text}", style="yellow") for text in status.degraded]
    if status.broken:
        parts.append(Text(status.broken, style="red"))
    parts += [Text(""), _clients(status.connections)]
    title = f"{status.phase_text}: {status.database}"
    return Panel(Group(*parts), title=Text(title), title_align="left", subtitle=hint)


def _clients(connections: list[ConnectionStatus]) -> Table | Text:
    if not connections:
        return Text("no clients", style="dim")
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("client", "pid", "requests"):
        table.add_column(column, justify="left" if column == "client" else "right")
    busiest = sorted(connections, key=lambda one: -one.requests)
    for one in busiest[:_CLIENTS_SHOWN]:
        table.add_row(Text(one.name or "?"), str(one.pid), f"{one.requests:,}")
    if len(connections) > _CLIENTS_SHOWN:
        table.add_row(f"and {len(connections) - _CLIENTS_SHOWN} more", "", "", style="dim")
    return table
