"""Tables that fit the terminal: columns are cut with ``…`` or left out, and no line wraps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from hermes_actor.cli.output.formatting import clip, plain, styled, terminal_width, width

__all__ = ["Column", "table"]

_NARROW = 80
"""Terminals below this width get one blank between columns, others two."""


class Column(NamedTuple):
    """One column of a table."""

    name: str
    value: Callable[[Any], object]
    least: int = 1_000
    """Cells that it keeps when the room is short; it is cut to them, not below."""
    yields: int = 0
    """Columns of a high number are cut first."""
    optional: bool = False
    """It is left out if cutting is not enough."""
    right: bool = False
    """Numbers stand at the right side of their column."""
    good: int = 0
    """Cells that it keeps until all others are cut to theirs."""


def table(columns: Sequence[Column], rows: Iterable[Any]) -> list[str]:
    """Return header, rule and rows, at most as wide as the terminal."""
    room = terminal_width()
    gap = 1 if room < _NARROW else 2
    listed = [*rows]
    cells = {one: [plain(one.value(row)) for row in listed] for one in columns}
    widths = _fitted({one: max(map(width, [one.name, *cells[one]])) for one in columns}, room, gap)
    shown = [one for one in columns if one in widths]

    def line(texts: Iterable[str]) -> str:
        return (
            (" " * gap)
            .join(
                _cell(text, widths[one], one.right) for one, text in zip(shown, texts, strict=True)
            )
            .rstrip()
        )

    rule = "─" * min(room, sum(widths.values()) + gap * (len(widths) - 1))
    lines = [styled(line(one.name for one in shown), bold=True), styled(rule, dim=True)]
    return lines + [line(texts) for texts in zip(*(cells[one] for one in shown), strict=True)]


def _cell(text: str, cells: int, right: bool) -> str:
    text = clip(text, cells)
    blanks = " " * (cells - width(text))
    return blanks + text if right else text + blanks


def _fitted(natural: Mapping[Column, int], room: int, gap: int) -> dict[Column, int]:
    """Return the widths that fit into *room*; a column that is left out has none."""
    widths = dict(natural)

    def excess() -> int:
        return sum(widths.values()) + gap * (len(widths) - 1) - room

    in_turn = sorted(natural, key=lambda one: -one.yields)
    for one, least in [(one, max(one.least, one.good)) for one in in_turn] + [
        (one, one.least) for one in in_turn
    ]:
        if excess() > 0:
            widths[one] = min(widths[one], max(least, widths[one] - excess()))
    for one in in_turn:
        if excess() > 0 and one.optional:
            del widths[one]
            # The room of a column that is gone belongs to the others again.
            return _fitted({other: natural[other] for other in widths}, room, gap)
    if excess() > 0:
        last = [*widths][-1]
        widths[last] = max(1, widths[last] - excess())
    return widths
