"""The state of the session picker, without a screen: rows, filter, selection, and what keys do."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from hermes_actor.cli.output.formatting import clip, fit, plain, relative_time, width

if TYPE_CHECKING:
    from hermes_actor.store.rows import Row

__all__ = ["KEYS", "Action", "Picker", "label"]

KEYS = (
    "Enter open", "Tab preview", "Esc quit", "type: filter", "^U clear", "^R rename", "^D delete"
)  # fmt: skip
"""Keys and their effects, most important first: a narrow screen shows those that fit."""

_ARROW, _ACTIVE = 3, 10
_LEAST_LABEL, _GOOD_LABEL, _LEAST_ID, _GOOD_ID = 16, 24, 12, 22
"""Cells of label and id where not everything fits; an id longer than most is cut first."""

_ENTER, _BACKSPACE, _ESCAPE, _CLEAR = ("\n", "\r"), ("\x7f", "\b"), "\x1b", "\x15"


class Action(Enum):
    """Reaction of the screen to a key."""

    NOTHING = "nothing"
    QUIT = "quit"
    OPEN = "open"
    PREVIEW = "preview"
    RENAME = "rename"
    DELETE = "delete"


_WITH_A_ROW = {"\t": Action.PREVIEW, "\x12": Action.RENAME, "\x04": Action.DELETE}


def label(row: Row) -> str:
    """Return the title of a session, else its first words, else its id."""
    return str(row["title"] or row["preview"] or row["id"])


class Picker:
    """All sessions, those that the filter lets through, and the selected one."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows
        self.filter = ""
        self.position = 0
        self.shown = rows

    @property
    def selected(self) -> Row | None:
        return self.shown[self.position] if self.shown else None

    def press(self, key: str) -> Action:
        """A key: a character, or ``up``, ``down``, ``page up``, ``page down``, ``backspace``."""
        if key in ("up", "down"):
            self._move(-1 if key == "up" else 1)
        elif key in _ENTER:
            return Action.OPEN if self.shown else Action.QUIT
        elif key == _ESCAPE and not self.filter:
            return Action.QUIT
        elif key in (_ESCAPE, _CLEAR):
            self._filter("")
        elif key in _BACKSPACE or key == "backspace":
            self._filter(self.filter[:-1])
        elif key in _WITH_A_ROW:
            return _WITH_A_ROW[key] if self.shown else Action.NOTHING
        elif key == "q" and not self.filter:
            return Action.QUIT
        elif len(key) == 1 and key.isprintable():
            self._filter(self.filter + key)
        return Action.NOTHING

    def _move(self, step: int) -> None:
        if self.shown:
            self.position = (self.position + step) % len(self.shown)

    def _filter(self, text: str) -> None:
        """Every change of the filter begins at the first row again."""
        if text == self.filter:
            return
        self.filter = text
        self.refresh()
        self.position = 0

    def refresh(self) -> None:
        """After the rows or the filter have changed."""
        wanted = self.filter.lower()
        self.shown = [row for row in self.rows if _matches(row, wanted)] if wanted else self.rows
        self.position = max(0, min(self.position, len(self.shown) - 1))

    def remove(self, session_id: str) -> None:
        self.rows = [row for row in self.rows if row["id"] != session_id]
        self.refresh()

    # --- lines -------------------------------------------------------------------------------

    def header(self, columns: int) -> str:
        if self.filter:
            return f"  Browse sessions — filter: {self.filter}█"
        line = ""
        for key in KEYS:
            if len(line) + 2 + len(key) < columns:
                line += f"  {key}"
        return line

    def heads(self, columns: int) -> str:
        room, source, _ = self._widths(columns)
        return f"   {fit('Title / Preview', room)}  {'Active':<10}  {fit('Src', source)}  ID"

    def line(self, row: Row, columns: int, now: float) -> str:
        """A row without its arrow."""
        room, source, identity = self._widths(columns)
        active = relative_time(row["last_active"], now)
        shown = f"{fit(label(row), room, room)}  {active:<10}  {fit(row['source'], source, source)}"
        return f"{shown}  {clip(plain(row['id']), identity)}"

    def _widths(self, columns: int) -> tuple[int, int, int]:
        """Return the cells of label, source and id; the label is cut first, the id last."""
        source = min(max((width(plain(row["source"])) for row in self.rows), default=4), 8)
        identity = max((width(plain(row["id"])) for row in self.rows), default=2)
        room = columns - 4 - _ARROW - _ACTIVE - 4 - source
        usual = min(_GOOD_ID, room - _LEAST_LABEL)
        identity = min(identity, max(_LEAST_ID, usual, room - _GOOD_LABEL))
        return max(_LEAST_LABEL, room - identity), source, identity

    def footer(self) -> str:
        if self.filter and not self.shown:
            return f"  0/{len(self.rows)} sessions"
        text = f"  {self.position + 1}/{len(self.shown)} sessions"
        return f"{text} (filtered from {len(self.rows)})" if self.filter else text


def _matches(row: Row, wanted: str) -> bool:
    return any(
        wanted in str(row[key] or "").lower() for key in ("title", "preview", "id", "source")
    )
