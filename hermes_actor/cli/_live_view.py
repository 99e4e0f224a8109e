"""The live view of ``hermes-actor serve`` on a terminal."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Self

from rich.console import Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from hermes_protocol.features import SESSIONS
from hermes_protocol.status import ConnectionStatus, Status

__all__ = ["LivePanel", "render"]

_CLIENTS_SHOWN = 8


class LivePanel:
    """Redraws one panel in place; leaves the terminal clean at the end."""

    def __init__(self) -> None:
        self._live = Live(auto_refresh=False, transient=True)
        self._last = (time.monotonic(), 0)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def show(self, status: Status) -> None:
        """Draw a status document."""
        now, writes = time.monotonic(), status.writes
        then, before = self._last
        rate = (writes - before) / max(now - then, 1e-3)
        self._last = (now, writes)
        self._live.update(render(status, rate), refresh=True)


def render(status: Status, rate: float, *, hint: str = "Ctrl-C ends it", curve: str = "") -> Panel:
    """The panel of one status document; *rate* is writes per second since the last one.

    *curve* is a line of them over time, *hint* what keys do.
    """
    total, queue, index = status.total_latency, status.queue, status.index
    sizes = ", ".join(f"{n} of {size}" for size, n in status.batch_sizes.items() if n)
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    checkpoints = ", ".join(f"{n} {kind}" for kind, n in status.checkpoints.items())
    for name, text in (
        ("actor", f"pid {status.pid}, version {status.version}, epoch {status.epoch}"),
        ("up", _span(status.uptime_s)),
        ("writes", f"{status.writes:,} in {status.batches:,} batches, {rate:,.0f} a second"),
        *((("", curve),) if curve else ()),
        ("batches", sizes or "none yet"),
        ("latency", f"{total.p50_ms} ms median, {total.p99_ms} ms at 99 %"),
        ("queue", f"{queue.count} waiting, {queue.bytes:,} bytes"),
        ("wal", f"{status.wal_frames:,} frames; {checkpoints or 'no checkpoint yet'}"),
        *(
            (("index", f"{index.lag:,} of {index.newest:,} messages behind"),)
            if status.kind == SESSIONS
            else ()
        ),
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


def _span(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
