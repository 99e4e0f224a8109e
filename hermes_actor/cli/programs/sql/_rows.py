"""Rows of a statement, as a table, as JSON or as CSV, printed while they come."""

from __future__ import annotations

import base64
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

from hermes_actor.cli.output.formatting import cut, json_text, plain, styled, width

__all__ = ["FORMATS", "print_rows"]

_LOOK_ROWS = 200
"""Rows that decide the widths of a table; later ones are cut to these."""

_WIDTHS = (60, 120)
"""Least and largest width of a table."""

_GAP = "  "

Rows = Iterator[Sequence[Any]]


def print_rows(columns: Sequence[str], rows: Rows, form: str) -> int:
    """Print *rows* in one of the :data:`FORMATS`, and return how many there were."""
    return FORMATS[form](columns, rows)


def _print_table(columns: Sequence[str], rows: Rows) -> int:
    first = list(islice(rows, _LOOK_ROWS))
    names = [plain(name) for name in columns]
    widths = _widths([names, *([_cell(value) for value in row] for row in first)])
    right = [
        any(isinstance(value, int | float) for value in column)
        and not any(isinstance(value, str | bytes) for value in column)
        for column in zip(*first, strict=True)
    ] or [False] * len(names)
    print(styled(_line(names, widths, right), bold=True))
    print(_GAP.join("─" * cells for cells in widths))
    count = 0
    for row in chain(first, rows):
        print(_line([_cell(value) for value in row], widths, right))
        count += 1
    return count


def _line(cells: Sequence[str], widths: list[int], right: list[bool]) -> str:
    """Return one line of a table; what is too wide for its column ends with an ellipsis."""
    shown = []
    for text, room, is_right in zip(cells, widths, right, strict=True):
        if width(text) > room:
            text = cut(text, room - 1) + "…"
        blanks = " " * (room - width(text))
        shown.append(blanks + text if is_right else text + blanks)
    return _GAP.join(shown).rstrip()


def _widths(lines: list[list[str]]) -> list[int]:
    """Share the width of the terminal: narrow columns keep theirs, wide ones give way."""
    wanted = [max(1, *map(width, column)) for column in zip(*lines, strict=True)]
    least, largest = _WIDTHS
    room = min(max(shutil.get_terminal_size((80, 24)).columns, least), largest)
    room -= len(_GAP) * (len(wanted) - 1)
    widths, left = list(wanted), len(wanted)
    for number in sorted(range(len(wanted)), key=lambda n: wanted[n]):
        # A column gets an equal share of what is left, and returns what it does not need.
        widths[number] = min(wanted[number], max(3, room // left))
        room, left = room - widths[number], left - 1
    return widths


def _cell(value: Any) -> str:
    """Return one value for people, on one line."""
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    return plain(value)


def _print_json(columns: Sequence[str], rows: Rows) -> int:
    names, count = _distinct(columns), 0
    # By hand around the rows: an array that is built first would need memory for all of them.
    for row in rows:
        document = json_text(dict(zip(names, map(_json_value, row), strict=True)))
        print(",\n " if count else "[", document, sep="", end="")
        count += 1
    print("]" if count else "[]")
    return count


def _json_value(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    return value


def _distinct(columns: Sequence[str]) -> list[str]:
    """Return names that differ: a key that came twice would hide a column."""
    names: list[str] = []
    for name in columns:
        number, key = 1, name
        while key in names:
            number += 1
            key = f"{name}_{number}"
        names.append(key)
    return names


def _print_csv(columns: Sequence[str], rows: Rows) -> int:
    import csv

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    count = 0
    for row in rows:
        writer.writerow([_csv_value(value) for value in row])
        count += 1
    return count


def _csv_value(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    # A file gets the text as it is; a terminal would obey its control characters.
    return plain(value) if isinstance(value, str) and sys.stdout.isatty() else value


FORMATS: dict[str, Callable[[Sequence[str], Rows], int]] = {
    "table": _print_table,
    "json": _print_json,
    "csv": _print_csv,
}
