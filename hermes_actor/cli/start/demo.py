"""``hermes-actor demo``: many processes write while their actor is updated, killed and ended."""

from __future__ import annotations

import contextlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from hermes_actor import exit_codes
from hermes_actor.cli.options import json_option
from hermes_actor.cli.output.formatting import print_json, sparkline

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hermes_actor.testing.scenario import Scenario
    from hermes_actor.testing.writer_pool import History

__all__ = ["demo"]

_READERS = 2
_LOOK_SECONDS = 0.1
_WIDTH = 80
_EVENTS_SHOWN = 9
_CURVE = 60
"""Characters of the curve of writes, from the beginning to the end of the show."""
_STYLES = {"handoff": "green", "broken": "magenta", "kill": "red", "term": "yellow"}


@click.command()
@click.option(
    "--seconds", type=click.FloatRange(min=5, max=600), default=15.0, show_default=True,
    metavar="N", help="Duration in seconds.",
)  # fmt: skip
@click.option(
    "--writers", type=click.IntRange(min=1, max=64), default=8, show_default=True,
    metavar="N", help="Number of writer processes.",
)  # fmt: skip
@click.option(
    "--seed", type=int, default=0, show_default=True, metavar="N",
    help="Seed of the order of events.",
)  # fmt: skip
@json_option
def demo(seconds: float, writers: int, seed: int, as_json: bool) -> int:
    """Watch writers while their actor is updated and killed.

    In a temporary home, writers and two readers work while the actor is handed off every second,
    killed twice with kill -9, stopped once with SIGTERM, and updated once to a build that cannot
    start. Then every acknowledgement is compared with the file.

    Exit codes: 0 nothing was lost, duplicated or reordered and every write succeeded, 1 otherwise;
    then the home is kept and its path printed.

    \b
    Examples:
      hermes-actor demo
      hermes-actor demo --seconds 60 --writers 16
    """
    # Late: only this command needs it.
    from hermes_actor.testing.scenario import Scenario

    with Scenario(seconds, writers, _READERS, seed) as show:
        try:
            with _view(as_json) as draw:
                draw(show, 0)
                show.start()
                while show.running:
                    time.sleep(_LOOK_SECONDS)
                    draw(show, show.poll())
        except TimeoutError as error:
            raise click.ClickException(str(error)) from error
        document = _judge(show, show.finish())
        show.keep = not document["good"]
        if as_json:
            print_json(document)
        else:
            _print(document)
    return exit_codes.OK if document["good"] else exit_codes.REFUSED


# --- the verdict ---------------------------------------------------------------------------------


def _judge(show: Scenario, history: History) -> dict[str, Any]:
    """Everything that the show has found out, for scripts."""
    looks, faults = show.pool.looks, [*show.faults, *history.faults]
    missing = [text for look in looks for text in look.missing]
    faults += [f"a reader did not see {text}" for text in missing[:3]]
    done = {kind: show.done(kind) for kind in ("handoff", "broken", "kill", "term")}
    if (done["broken"], done["kill"], done["term"]) != (1, 2, 1):
        faults.append("not every planned event happened")
    wrong = history.lost + history.doubled + history.out_of_order + history.failed + len(missing)
    pauses = [event.longest for event in show.events if event.kind == "handoff"]
    return {
        "good": not wrong and not faults and history.acknowledged == history.present > 0,
        **history._asdict(),
        "reads": len(looks),
        "compared": sum(look.compared for look in looks),
        "unseen": len(missing),
        "longest_read_ms": _ms(max((look.ended - look.began for look in looks), default=0.0)),
        "longest_pause_ms": _ms(show.longest),
        "handoff_pause_ms": _ms(statistics.median(pauses) if pauses else 0.0),
        "handoffs": done["handoff"],
        "rolled_back": done["broken"],
        "kills": done["kill"],
        "terms": done["term"],
        "seconds": show.seconds,
        "writers": show.writers,
        "seed": show.seed,
        "faults": faults,
        "home": str(show.home),
        "events": [
            {"at": round(event.began - show.began, 3), "kind": event.kind, "what": event.what,
             "outcome": event.outcome, "longest_ms": _ms(event.longest)}
            for event in show.events
        ],
    }  # fmt: skip


def _print(found: dict[str, Any]) -> None:
    unseen = f"{found['unseen']:,} not seen" if found["unseen"] else "all seen"
    for name, text in (
        ("acknowledged", f"{found['acknowledged']:,} writes of {found['writers']} processes"),
        ("present", f"{found['present']:,}"),
        ("lost", f"{found['lost']:,}"),
        ("duplicated", f"{found['doubled']:,}"),
        ("out of order", f"{found['out_of_order']:,}"),
        ("failed writes", f"{found['failed']:,}"),
        ("reads", f"{found['reads']:,}, {found['compared']:,} messages checked, {unseen};"
                  f" longest {found['longest_read_ms']:g} ms"),
        ("longest pause", f"{found['longest_pause_ms']:g} ms for one write"),
        ("hand-offs", f"{found['handoffs']}, median pause {found['handoff_pause_ms']:g} ms"),
        ("rolled back", f"{found['rolled_back']} broken update"),
        ("kills", f"{found['kills']} kill -9, {found['terms']} SIGTERM"),
    ):  # fmt: skip
        print(f"{name:<14} {text}")
    for fault in found["faults"]:
        click.secho(f"WRONG {fault}", fg="red")
    if found["good"]:
        text = "Nothing was lost, duplicated or reordered, and every write succeeded."
        click.secho(text, fg="green", bold=True)
    else:
        click.secho(f"The demo failed. Its files are kept in {found['home']}", fg="red")


def _ms(seconds: float) -> float:
    return round(1e3 * seconds, 1)


# --- the views -----------------------------------------------------------------------------------


Draw = Callable[["Scenario", int], None]
"""Shows a scenario, and how many writes were acknowledged since the last call."""


@contextlib.contextmanager
def _view(as_json: bool) -> Iterator[Draw]:
    if as_json:
        yield lambda _show, _made: None
    elif not sys.stdout.isatty():
        yield _Lines().draw
    else:
        from hermes_actor.cli.output.live_view import live_display

        with live_display() as live:
            yield _Picture(lambda picture: live.update(picture, refresh=True)).draw


class _Lines:
    """One line a second."""

    def __init__(self) -> None:
        self._next, self._events, self._made = 1.0, 0, 0

    def draw(self, show: Scenario, made: int) -> None:
        if not show.began:
            print(f"starting {_workers(show)} in {show.home}", flush=True)
            return
        self._made += made
        if show.elapsed >= self._next:
            events = [event.what for event in show.events[self._events :]]
            print(
                f"{show.elapsed:5.1f} s  {self._made:>6,} writes, longest pause"
                f" {_ms(show.longest):>6.1f} ms  {', '.join(events)}".rstrip(),
                flush=True,
            )
            self._next, self._made = self._next + 1.0, 0
            self._events += len(events)


class _Picture:
    """A panel that fits a terminal of 80 by 24."""

    def __init__(self, update: Callable[[RenderableType], None]) -> None:
        self._update = update
        self._curve: list[int] = []

    def draw(self, show: Scenario, made: int) -> None:
        from rich.console import Group
        from rich.panel import Panel
        from rich.text import Text

        body: RenderableType = Text(f"starting {_workers(show)} in {show.home}")
        progress = "starting"
        if show.began:
            bar = int(show.elapsed / show.seconds * _CURVE)
            self._curve += [0] * (bar + 1 - len(self._curve))
            self._curve[-1] += made
            body = Group(self._facts(show), Text(""), _log(show))
            progress = f"{min(show.elapsed, show.seconds):.0f} of {show.seconds:g} s"
        self._update(
            Panel(
                body, width=_WIDTH, title_align="left",
                title=Text(f"hermes-actor demo: {_workers(show)}"),
                subtitle=f"{progress}, Ctrl-C stops it", subtitle_align="right",
            )
        )  # fmt: skip

    def _facts(self, show: Scenario) -> RenderableType:
        from rich.table import Table
        from rich.text import Text

        now, looks = show.now, show.pool.looks
        doing = Text(now.what, style=_STYLES[now.kind]) if now else Text("writing", style="green")
        rate = show.acknowledged / max(show.elapsed, 1e-3)
        compared = sum(look.compared for look in looks)
        unseen = sum(len(look.missing) for look in looks)
        facts = Table.grid(padding=(0, 2))
        facts.add_column(style="dim", no_wrap=True)
        facts.add_column(no_wrap=True)
        for name, text in (
            ("now", doing.append(f", pid {show.pid} serves", style="default")),
            ("writes", f"{show.acknowledged:,} acknowledged, {show.failed} failed,"
                       f" {rate:,.0f}/s"),
            ("", Text(sparkline(self._curve[-_CURVE - 1 : -1]), style="cyan")),
            ("reads", f"{len(looks):,}, {compared:,} messages checked, {unseen} not seen"),
            ("pause", f"{_ms(show.longest):g} ms for one write, at most"),
            ("survived", f"{show.done('handoff')} hand-offs, {show.done('kill')} kill -9,"
                         f" {show.done('term')} SIGTERM, {show.done('broken')} broken update"),
        ):  # fmt: skip
            facts.add_row(name, text)
        return facts


def _log(show: Scenario) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(justify="right", width=7, style="dim")
    table.add_column(no_wrap=True, width=22)
    table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    table.add_column(justify="right", width=10)
    table.add_row("at", "what", "process", "pause", style="dim")
    for event in show.events[-_EVENTS_SHOWN:]:
        outcome = event.outcome if event.ended else "…"
        table.add_row(
            f"{event.began - show.began:.1f} s",
            Text(event.what, style=_STYLES[event.kind]),
            Text(outcome, style="" if event.good else "bold red"),
            f"{1e3 * event.longest:,.0f} ms",
        )
    return table


def _workers(show: Scenario) -> str:
    return f"{show.writers} writers and {show.readers} readers"
