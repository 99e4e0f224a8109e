"""Charts: the geometry of bars, which a template draws as SVG.

Colours and fonts are those of the style sheet: the policy of the pages forbids styles in markup.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Bar", "Chart", "columns", "rows"]

_WIDTH, _HEIGHT = 640.0, 160.0
_FOOT = 32.0
"""Room for the labels below columns."""
_LABELS = 8
"""Labels below columns: more would overlap on a narrow screen."""
_LETTER = 14.5
"""Widest usual letter on a narrow screen; a label that would pass the edge is left out."""

_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")


class Bar(NamedTuple):
    """One bar, in units of the drawing, with its texts."""

    x: float
    y: float
    width: float
    height: float
    label: str
    """Empty where there is no room for one."""
    title: str
    """Name and value, for a pointer and a screen reader."""
    value: str


class Chart(NamedTuple):
    """Bars and the size of their drawing."""

    width: float
    height: float
    bars: tuple[Bar, ...]
    values: tuple[tuple[str, str], ...]
    """The same as a table."""


def columns(names: Sequence[str], values: Sequence[float], shape: str = "{:,}") -> Chart:
    """Return upright bars, such as those of days."""
    top = max(values, default=0) or 1
    step = _WIDTH / max(1, len(values))
    every = -(-len(values) // _LABELS) or 1
    bars = []
    labels = _short(names)
    for number, (name, value) in enumerate(zip(names, values, strict=True)):
        # At least a line: a day with one token is not a day without any.
        height = max(1.0, (_HEIGHT - _FOOT) * value / top) if value else 0.0
        is_named = number % every == 0 and number * step + _LETTER * len(labels[number]) < _WIDTH
        bars.append(
            Bar(
                round(number * step + step * 0.1, 2), round(_HEIGHT - _FOOT - height, 2),
                round(step * 0.8, 2), round(height, 2),
                labels[number] if is_named else "", f"{name}: {shape.format(value)}",
                shape.format(value),
            )
        )  # fmt: skip
    return Chart(_WIDTH, _HEIGHT, tuple(bars), _table(names, values, shape))


def rows(names: Sequence[str], values: Sequence[float], shape: str = "{:,}") -> Chart:
    """Return lying bars with their names, such as those of models: the rows of a table.

    Their widths are hundredths; names and values are text of the page, which no drawing shrinks.
    """
    top = max(values, default=0) or 1
    bars = []
    for name, value in zip(names, values, strict=True):
        width = max(0.5, 100 * value / top) if value else 0.0
        text = shape.format(value)
        bars.append(Bar(0, 0, round(width, 2), 10, name, f"{name}: {text}", text))
    return Chart(100, 10, tuple(bars), _table(names, values, shape))


def _short(names: Sequence[str]) -> list[str]:
    """Return names for labels: days without their year, and the months of more than a year."""
    if not all(map(_DAY.fullmatch, names)):
        return list(names)
    return [name[5:] if len(names) <= 366 else name[:7] for name in names]


def _table(
    names: Sequence[str], values: Sequence[float], shape: str
) -> tuple[tuple[str, str], ...]:
    return tuple(
        (name, shape.format(value)) for name, value in zip(names, values, strict=True) if value
    )
