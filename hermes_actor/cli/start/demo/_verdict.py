"""The verdict of a demonstration: as a document for scripts, and in words."""

from __future__ import annotations

import statistics
from collections import Counter
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import click

from hermes_actor.cli.output.formatting import count, wrapped
from hermes_actor.cli.output.table import Column, table
from hermes_actor.cli.start.demo._views import in_ms

if TYPE_CHECKING:
    from hermes_actor.testing.load import Load
    from hermes_actor.testing.plain import PlainLoad
    from hermes_actor.testing.scenario import Scenario
    from hermes_actor.testing.writer_pool import History

__all__ = ["judge", "judge_plain", "print_comparison", "print_verdict"]

Document = dict[str, Any]


def judge(show: Scenario, history: History) -> Document:
    """Return everything that the show has found out."""
    found = _facts(show, history)
    done = {kind: show.done(kind) for kind in ("handoff", "broken", "kill", "term")}
    if (done["broken"], done["kill"], done["term"]) != (1, 2, 1):
        found["faults"].append("not every planned event happened")
    pauses = [event.longest for event in show.events if event.kind == "handoff"]
    return {
        "good": not found["faults"] and _nothing_wrong(found),
        **found,
        "handoff_pause_ms": in_ms(statistics.median(pauses) if pauses else 0.0),
        "handoffs": done["handoff"],
        "rolled_back": done["broken"],
        "kills": done["kill"],
        "terms": done["term"],
    }


def judge_plain(load: PlainLoad, history: History) -> Document:
    """Return what has become of the same load without an actor."""
    refusals = load.pool.recorded.refusals
    errors = Counter(text.partition(": ")[2] or text for text in refusals)
    found = _facts(load, history)
    # Refused writes are counted, each class once, and not listed as faults.
    faults = [text for text in found["faults"] if not text.startswith("a write has failed")]
    found |= {"faults": faults, "errors": dict(errors.most_common())}
    found |= {"title": load.title, "note": load.note}
    return {"good": not faults and _nothing_wrong(found), **found}


def _facts(load: Load, history: History) -> Document:
    looks = load.pool.looks
    missing = [text for look in looks for text in look.missing]
    faults = [*load.faults, *history.faults]
    return {
        **history._asdict(),
        "reads": len(looks),
        "compared": sum(look.compared for look in looks),
        "unseen": len(missing),
        "longest_read_ms": in_ms(max((look.ended - look.began for look in looks), default=0.0)),
        "longest_pause_ms": in_ms(load.longest),
        "seconds": load.seconds,
        "writers": load.writers,
        "seed": load.seed,
        "faults": faults + [f"a reader did not see {text}" for text in missing[:3]],
        "home": str(load.home),
        "events": [
            {"at": round(event.began - load.began, 3), "kind": event.kind, "what": event.what,
             "outcome": event.outcome, "longest_ms": in_ms(event.longest)}
            for event in load.events
        ],
    }  # fmt: skip


def _nothing_wrong(found: Document) -> bool:
    wrong = ("lost", "doubled", "out_of_order", "failed", "unseen")
    return not any(found[key] for key in wrong) and found["acknowledged"] == found["present"] > 0


# --- in words ------------------------------------------------------------------------------------


def print_verdict(found: Document) -> None:
    """Print the figures of the show, and the verdict."""
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
        print(f"{name:<14} {wrapped(text, 15)}")
    _print_end(found)


def print_comparison(plain: Document, ours: Document) -> None:
    """Print the figures of both halves side by side, and both verdicts."""
    rows = [
        (name, *(form.format(found[key]) for found in (plain, ours)))
        for name, key, form in (
            ("acknowledged", "acknowledged", "{:,} writes"),
            ("failed writes", "failed", "{:,}"),
            ("longest pause", "longest_pause_ms", "{:,.0f} ms"),
            ("lost", "lost", "{:,}"),
            ("duplicated", "doubled", "{:,}"),
            ("out of order", "out_of_order", "{:,}"),
        )
    ]
    handoffs, kills = count(ours["handoffs"], "hand-off"), ours["kills"] + ours["terms"]
    met = f"{handoffs}, {count(kills, 'kill')}, {count(ours['rolled_back'], 'broken update')}"
    rows += [("writer suspended", *map(_suspended, (plain, ours))), ("besides", "nothing", met)]
    columns = [
        Column(name, itemgetter(place))
        for place, name in enumerate(("", plain["title"], "hermes-actor"))
    ]
    print("\n".join(table(columns, rows)))
    print(wrapped(plain["note"]))
    print(wrapped(f"{plain['title']}: {_verdict_of_plain(plain)}"))
    _print_end(ours, "hermes-actor: ")


def _suspended(found: Document) -> str:
    events = [event for event in found["events"] if event["kind"] == "suspend"]
    return f"others waited {events[0]['longest_ms']:,.0f} ms" if events else "-"


def _verdict_of_plain(plain: Document) -> str:
    parts = [f"{count(n, 'write')} failed: {text}" for text, n in plain["errors"].items()]
    parts += plain["faults"]
    parts += [f"{plain[key]} {key}" for key in ("lost", "doubled") if plain[key]]
    waited = f"one write waited {plain['longest_pause_ms'] / 1e3:,.1f} s"
    return "; ".join([*(parts or ["every write succeeded"]), waited]) + "."


def _print_end(found: Document, prefix: str = "") -> None:
    for fault in found["faults"]:
        click.secho(wrapped(f"WRONG {fault}"), fg="red")
    if found["good"]:
        text = "Nothing was lost, duplicated or reordered, and every write succeeded."
        click.secho(wrapped(prefix + text), fg="green", bold=True)
    else:
        text = f"The demo failed. Its files are kept in {found['home']}"
        click.secho(wrapped(prefix + text), fg="red")
