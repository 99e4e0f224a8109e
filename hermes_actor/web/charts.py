"""Charts: the geometry of bars, which a template draws as SVG.

Colours and fonts are those of the style sheet: the policy of the pages forbids styles in markup.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Bar", "Chart", "columns", "rows"]

_WIDTH, _HEIGHT = 640.0, 160.0
_FOOT = 20.0
"""Room for the labels below columns."""
_ROW = 26.0
_NAME = 200.0
"""Room for the names beside rows."""
_VALUE = 110.0
_LABELS = 8
"""Labels below columns: more would overlap on a narrow screen."""
_LONGEST_NAME = 28
_LETTER = 8.5
"""Widest usual letter; a label that would pass the edge is left out."""


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
    for number, (name, value) in enumerate(zip(names, values, strict=True)):
        # At least a line: a day with one token is not a day without any.
        height = max(1.0, (_HEIGHT - _FOOT) * value / top) if value else 0.0
        is_named = number % every == 0 and number * step + _LETTER * len(name) < _WIDTH
        bars.append(
            Bar(
                round(number * step + step * 0.1, 2), round(_HEIGHT - _FOOT - height, 2),
                round(step * 0.8, 2), round(height, 2),
                name if is_named else "", f"{name}: {shape.format(value)}",
                shape.format(value),
            )
        )  # fmt: skip
    return Chart(_WIDTH, _HEIGHT, tuple(bars), _table(names, values, shape))


def rows(names: Sequence[str], values: Sequence[float], shape: str = "{:,}") -> Chart:
    """Return lying bars with their names, such as those of models."""
    top = max(values, default=0) or 1
    room = _WIDTH - _NAME - _VALUE
    bars = []
    for number, (name, value) in enumerate(zip(names, values, strict=True)):
        short = name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"
        width = max(1.0, room * value / top) if value else 0.0
        bars.append(
            Bar(
                _NAME, number * _ROW + 4, round(width, 2), _ROW - 8, short,
                f"{name}: {shape.format(value)}", shape.format(value),
            )
        )  # fmt: skip
    return Chart(_WIDTH, max(1, len(bars)) * _ROW, tuple(bars), _table(names, values, shape))


def _table(
    names: Sequence[str], values: Sequence[float], shape: str
) -> tuple[tuple[str, str], ...]:
    return tuple(
        (name, shape.format(value)) for name, value in zip(names, values, strict=True) if value
    )
