"""The views of a demonstration: a picture on a terminal, else one line a second."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Literal

from hermes_actor.cli.output.formatting import coloured, sparkline, terminal_width

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hermes_actor.testing.load import Event, Load

__all__ = ["Draw", "in_ms", "view"]

_WIDTH = 80
_EVENTS_SHOWN = 9
_CURVE = 60
"""Characters of the curve of writes, from the beginning to the end of the load."""
_STYLES = {
    "handoff": "green", "broken": "magenta", "kill": "red", "term": "yellow", "suspend": "blue"
}  # fmt: skip


def in_ms(seconds: float) -> float:
    """Return milliseconds, as they are shown."""
    return round(1e3 * seconds, 1)


Draw = Callable[["Load", int], None]
"""Shows a load, and how many writes were acknowledged since the last call."""


@contextlib.contextmanager
def view(as_json: bool) -> Iterator[Draw]:
    """Give the function that shows a load; on a terminal its events stay on the screen."""
    if as_json:
        yield lambda _load, _made: None
    elif not sys.stdout.isatty():
        yield _Lines().draw
    else:
        from rich.console import Console

        from hermes_actor.cli.output.live_view import live_display

        with live_display() as live:
            picture = _Picture(lambda shown: live.update(shown, refresh=True))
            yield picture.draw
        if picture.load is not None and picture.load.events:
            colours: Literal["auto"] | None = "auto" if coloured() else None
            columns = min(_WIDTH, terminal_width())
            console = Console(width=columns, color_system=colours, highlight=False)
            console.print(f"Events of {picture.load.title}:", style="bold")
            console.print(_log(picture.load, picture.load.events))


class _Lines:
    """One line a second."""

    def __init__(self) -> None:
        self._next, self._events, self._made = 1.0, 0, 0

    def draw(self, load: Load, made: int) -> None:
        if not load.began:
            print(f"{load.title}: starting {_workers(load)} in {load.home}", flush=True)
            return
        self._made += made
        if load.elapsed >= self._next:
            events = [event.what for event in load.events[self._events :]]
            print(
                f"{load.elapsed:5.1f} s  {self._made:>6,} writes, longest pause"
                f" {in_ms(load.longest):>6.1f} ms  {', '.join(events)}".rstrip(),
                flush=True,
            )
            self._next, self._made = self._next + 1.0, 0
            self._events += len(events)


class _Picture:
    """A panel that fits a terminal of 80 by 24."""

    def __init__(self, update: Callable[[RenderableType], None]) -> None:
        self._update = update
        self._curve: list[int] = []
        self.load: Load | None = None

    def draw(self, load: Load, made: int) -> None:
        from rich.console import Group
        from rich.panel import Panel
        from rich.text import Text

        body: RenderableType = Text(f"starting {_workers(load)} in {load.home}")
        progress = "starting"
        if load.began:
            bar = int(load.elapsed / load.seconds * _CURVE)
            self._curve += [0] * (bar + 1 - len(self._curve))
            self._curve[-1] += made
            events = load.events[-_EVENTS_SHOWN:]
            body = Group(self._facts(load), Text(""), _log(load, events))
            self.load = load
            progress = f"{min(load.elapsed, load.seconds):.0f} of {load.seconds:g} s"
        self._update(
            Panel(
                body, width=min(_WIDTH, terminal_width()), title_align="left",
                title=Text(f"{load.title}: {_workers(load)}"),
                subtitle=f"{progress}, Ctrl-C stops it", subtitle_align="right",
            )
        )  # fmt: skip

    def _facts(self, load: Load) -> RenderableType:
        from rich.table import Table
        from rich.text import Text

        now, looks = load.now, load.pool.looks
        doing = Text(now.what, style=_STYLES[now.kind]) if now else Text("writing", style="green")
        rate = load.acknowledged / max(load.elapsed, 1e-3)
        compared = sum(look.compared for look in looks)
        unseen = sum(len(look.missing) for look in looks)
        facts = Table.grid(padding=(0, 2))
        facts.add_column(style="dim", no_wrap=True)
        facts.add_column(no_wrap=True)
        for name, text in (
            ("now", doing.append(f", {load.serving}", style="default")),
            ("writes", f"{load.acknowledged:,} acknowledged, {load.failed} failed,"
                       f" {rate:,.0f}/s"),
            ("", Text(sparkline(self._curve[-_CURVE - 1 : -1]), style="cyan")),
            ("reads", f"{len(looks):,}, {compared:,} messages checked, {unseen} not seen"),
            ("pause", f"{in_ms(load.longest):g} ms for one write, at most"),
            *((("survived", _survived(load)),) if load.done("handoff") else ()),
        ):  # fmt: skip
            facts.add_row(name, text)
        return facts


def _survived(load: Load) -> str:
    kinds = {
        "handoff": "hand-offs",
        "kill": "kill -9",
        "term": "SIGTERM",
        "broken": "broken update",
    }
    return ", ".join(f"{load.done(kind)} {name}" for kind, name in kinds.items())


def _log(load: Load, events: list[Event]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(justify="right", width=7, style="dim")
    table.add_column(no_wrap=True, width=22)
    table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    table.add_column(justify="right", width=10)
    table.add_row("at", "what", "process", "pause", style="dim")
    for event in events:
        outcome = event.outcome if event.ended else "…"
        table.add_row(
            f"{event.began - load.began:.1f} s",
            Text(event.what, style=_STYLES[event.kind]),
            Text(outcome, style="" if event.good else "bold red"),
            f"{1e3 * event.longest:,.0f} ms",
        )
    return table


def _workers(load: Load) -> str:
    return f"{load.writers} writers and {load.readers} readers"
