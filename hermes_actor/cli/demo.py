"""``hermes-actor demo``: many processes write while their actor is updated, killed and ended."""

from __future__ import annotations

import contextlib
import json
import signal
import statistics
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

import click

from hermes_actor import exits
from hermes_actor.cli.handoff import hand_over

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hermes_actor.demo.crew import History
    from hermes_actor.demo.show import Event, Show

__all__ = ["demo"]

_READERS = 2
_LOOK_SECONDS = 0.1
_WIDTH = 80
_EVENTS_SHOWN = 9
_CURVE = 60
"""Characters of the curve of writes, from the beginning to the end of the show."""


@click.command()
@click.option(
    "--seconds", type=click.FloatRange(min=5, max=600), default=15.0, show_default=True,
    help="How long it goes on.",
)  # fmt: skip
@click.option(
    "--writers", type=click.IntRange(min=1, max=64), default=8, show_default=True,
    help="Processes that write.",
)  # fmt: skip
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Another seed, another order of events."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object for scripts.")
def demo(seconds: float, writers: int, seed: int, as_json: bool) -> int:
    """Watch many processes write while their actor is updated, killed and ended.

    In a temporary home, writers and two readers work while the actor is handed over every second,
    killed twice with kill -9, ended once with SIGTERM, and updated once to a build that cannot
    start. Then every acknowledgement is compared with the file.

    Exit codes: 0 nothing was lost, doubled or reordered and every write succeeded, 1 otherwise;
    then the home is kept, and its path printed.

    \b
    Examples:
      hermes-actor demo
      hermes-actor demo --seconds 60 --writers 16
    """
    # Late: only this command needs it.
    from hermes_actor.demo.show import Show

    with (
        _interruptible(),
        Show(seconds, writers, _READERS, seed, hand_over) as show,
    ):
        with _view(as_json) as view:
            view.draw(show, 0)
            show.start()
            while show.running:
                time.sleep(_LOOK_SECONDS)
                view.draw(show, show.poll())
        document = _judge(show, show.finish())
        show.keep = not document["good"]
        if as_json:
            print(json.dumps(document))
        else:
            _print(document)
    return exits.OK if document["good"] else exits.REFUSED


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Whoever ends us, by Ctrl-C or otherwise: everything is cleared away first."""
    numbers = (signal.SIGTERM, signal.SIGHUP)
    former = [(number, signal.signal(number, signal.default_int_handler)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in former:
            signal.signal(number, handler)


# --- the verdict ---------------------------------------------------------------------------------


def _judge(show: Show, history: History) -> dict[str, Any]:
    """Everything that the show has found out, for scripts."""
    looks, faults = show.crew.looks, [*show.faults, *history.faults]
    missing = [text for look in looks for text in look.missing]
    faults += [f"a reader did not see {text}" for text in missing[:3]]
    done = {kind: show.done(kind) for kind in ("handoff", "broken", "kill", "term")}
    if (done["broken"], done["kill"], done["term"]) != (1, 2, 1):
        faults.append("not everything that was planned has happened")
    wrong = history.lost + history.doubled + history.out_of_order + history.failed + len(missing)
    pauses = [event.longest for event in show.events if event.kind == "handoff"]
    return {
        "good": not wrong and not faults and history.acknowledged == history.present > 0,
        "acknowledged": history.acknowledged,
        "present": history.present,
        "lost": history.lost,
        "doubled": history.doubled,
        "out_of_order": history.out_of_order,
        "failed": history.failed,
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
    unseen = f"{found['unseen']:,} unseen" if found["unseen"] else "nothing unseen"
    for name, text in (
        ("acknowledged", f"{found['acknowledged']:,} writes of {found['writers']} processes"),
        ("present", f"{found['present']:,}"),
        ("lost", f"{found['lost']:,}"),
        ("doubled", f"{found['doubled']:,}"),
        ("out of order", f"{found['out_of_order']:,}"),
        ("failed writes", f"{found['failed']:,}"),
        ("reads", f"{found['reads']:,} compared {found['compared']:,} messages, {unseen};"
                  f" longest {found['longest_read_ms']:g} ms"),
        ("longest pause", f"{found['longest_pause_ms']:g} ms that a writer saw"),
        ("hand-offs", f"{found['handoffs']}, median pause {found['handoff_pause_ms']:g} ms"),
        ("rolled back", f"{found['rolled_back']} broken update"),
        ("kills", f"{found['kills']} kill -9, {found['terms']} SIGTERM"),
    ):  # fmt: skip
        print(f"{name:<14} {text}")
    for fault in found["faults"]:
        click.secho(f"WRONG {fault}", fg="red")
    if found["good"]:
        text = "Nothing was lost, doubled or reordered, and every write succeeded."
        click.secho(text, fg="green", bold=True)
    else:
        click.secho(f"The verdict is bad; everything is kept in {found['home']}", fg="red")


def _ms(seconds: float) -> float:
    return round(1e3 * seconds, 1)


# --- the views -----------------------------------------------------------------------------------


class _View(Protocol):
    def draw(self, show: Show, made: int) -> None:
        """Show how it is; *made* writes were acknowledged since the last call."""


@contextlib.contextmanager
def _view(as_json: bool) -> Iterator[_View]:
    if as_json:
        yield _NoView()
    elif not sys.stdout.isatty():
        yield _Lines()
    else:
        from rich.live import Live

        with Live(auto_refresh=False, transient=True) as live:

            class Panel:
                curve = [0] * _CURVE

                def draw(self, show: Show, made: int) -> None:
                    at = min(_CURVE - 1, int(show.elapsed / show.seconds * _CURVE))
                    self.curve[at if show.began else 0] += made
                    live.update(_render(show, self.curve[: at + 1]), refresh=True)

            yield Panel()


class _NoView:
    def draw(self, show: Show, made: int) -> None:
        pass


class _Lines:
    """One line a second."""

    def __init__(self) -> None:
        self._next, self._events, self._made = 1.0, 0, 0

    def draw(self, show: Show, made: int) -> None:
        if not show.began:
            print(f"{show.writers} writers and {show.readers} readers start in {show.home}")
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


def _render(show: Show, curve: list[int]) -> RenderableType:
    from rich.console import Group
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    if not show.began:
        text = Text(f"{show.writers} writers and {show.readers} readers start in {show.home}")
        return Panel(text, title="hermes-actor demo", title_align="left", width=_WIDTH)
    looks = show.crew.looks
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(no_wrap=True)
    now = show.now
    doing = Text(now.what, style="bold yellow") if now else Text("writing", style="green")
    facts.add_row("now", doing)
    facts.add_row("actor", f"pid {show.pid}")
    rate = show.acknowledged / max(show.elapsed, 1e-3)
    facts.add_row(
        "writes", f"{show.acknowledged:,} acknowledged, {rate:,.0f} a second, {show.failed} failed"
    )
    facts.add_row("", Text(_bars(curve), style="cyan"))
    unseen = sum(len(look.missing) for look in looks)
    compared = sum(look.compared for look in looks)
    facts.add_row("reads", f"{len(looks):,} compared {compared:,} messages, {unseen} unseen")
    facts.add_row("pause", f"{_ms(show.longest):g} ms is the longest that a writer has seen")
    facts.add_row(
        "survived",
        f"{show.done('handoff')} hand-offs, {show.done('broken')} broken update,"
        f" {show.done('kill')} kill -9, {show.done('term')} SIGTERM",
    )
    log = Table.grid(padding=(0, 1))
    for justify in ("right", "left", "right"):
        log.add_column(justify=justify, no_wrap=True, overflow="ellipsis")
    for event in show.events[-_EVENTS_SHOWN:]:
        log.add_row(
            f"{event.began - show.began:.1f} s", _told(event), f"{1e3 * event.longest:.0f} ms"
        )
    return Panel(
        Group(facts, Text(""), log),
        title=Text(f"hermes-actor demo: {show.writers} writers, {show.readers} readers"),
        title_align="left",
        subtitle=f"{show.elapsed:.0f} of {show.seconds:g} s, Ctrl-C ends it",
        subtitle_align="right",
        width=_WIDTH,
    )


def _told(event: Event) -> RenderableType:
    from rich.text import Text

    style = {"handoff": "green", "broken": "magenta", "kill": "red", "term": "yellow"}[event.kind]
    text = Text(event.what, style=style if event.good else "bold red")
    return text.append(f"  {event.outcome}" if event.outcome else " …", style="default")


def _bars(curve: list[int]) -> str:
    """Eight heights, relative to the highest."""
    top = max([*curve, 1])
    return "".join("▁▂▃▄▅▆▇█"[min(7, 8 * value // top)] for value in curve)
