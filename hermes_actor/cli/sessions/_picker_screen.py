"""The session picker on the whole screen."""

from __future__ import annotations

import contextlib
import curses
import locale
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hermes_actor.cli.output.formatting import clip, cut, plain, width
from hermes_actor.cli.sessions._picker import Action, Picker

if TYPE_CHECKING:
    from hermes_actor.store.rows import Row

__all__ = ["pick"]

_MIN_LINES, _MIN_COLUMNS = 5, 40
_FIRST_ROW = 3
_KEYS = {
    curses.KEY_UP: "up",
    curses.KEY_DOWN: "down",
    curses.KEY_BACKSPACE: "backspace",
    curses.KEY_ENTER: "\n",
}


def pick(
    rows: list[Row],
    preview: Callable[[Row], list[str]],
    rename: Callable[[Row, str], str],
    delete: Callable[[Row], str],
) -> Row | None:
    """Let a person choose a row; ``None`` if they quit.

    *preview* gives the lines of one session; *rename* and *delete* do it and say what was done.
    """
    locale.setlocale(locale.LC_ALL, "")
    # A lone Esc must not wait a second for the rest of a sequence.
    os.environ.setdefault("ESCDELAY", "25")
    return curses.wrapper(lambda window: _Screen(window, rows, preview, rename, delete).run())


class _Screen:
    def __init__(
        self,
        window: Any,
        rows: list[Row],
        preview: Callable[[Row], list[str]],
        rename: Callable[[Row, str], str],
        delete: Callable[[Row], str],
    ) -> None:
        self._window = window
        self._picker = Picker(rows)
        self._preview, self._rename, self._delete = preview, rename, delete
        self._message = ""
        self._first = 0
        self._colours = self._start()

    @staticmethod
    def _start() -> dict[str, int]:
        curses.curs_set(0)
        curses.raw()  # Ctrl-C is a key here, like Esc
        colours = {"header": curses.A_BOLD, "filter": curses.A_BOLD, "row": curses.A_BOLD}
        if curses.has_colors():
            # The wrapper has started colours: without this even plain text would be white on black.
            curses.use_default_colors()
        if curses.has_colors() and not os.environ.get("NO_COLOR"):
            foregrounds = (curses.COLOR_YELLOW, curses.COLOR_CYAN, curses.COLOR_GREEN)
            for number, (name, colour) in enumerate(zip(colours, foregrounds, strict=True), 1):
                curses.init_pair(number, colour, -1)
                colours[name] |= curses.color_pair(number)
        return colours

    def run(self) -> Row | None:
        while True:
            lines, columns = self._window.getmaxyx()
            if lines < _MIN_LINES or columns < _MIN_COLUMNS:
                self._put(0, "Terminal too small")
                self._window.refresh()
                self._key()
                return None
            self._draw(lines, columns)
            key = self._key()
            self._message = ""
            if key == "\x03":
                return None
            action = self._picker.press(key)
            if action is Action.QUIT:
                return None
            if action is Action.OPEN:
                return self._picker.selected
            if action is not Action.NOTHING:
                self._do(action)

    def _do(self, action: Action) -> None:
        row = self._picker.selected
        assert row is not None
        if action is Action.PREVIEW:
            self._show(self._preview(row))
        elif action is Action.RENAME:
            title = self._ask("Title: ", str(row["title"] or ""))
            if title is not None:
                self._message = self._rename(row, title)
        elif self._ask(f"Delete '{row['id']}' and all its messages? [y/N] ") in ("y", "Y", "yes"):
            self._message = self._delete(row)
            self._picker.remove(row["id"])

    # --- drawing -----------------------------------------------------------------------------

    def _draw(self, lines: int, columns: int) -> None:
        picker = self._picker
        self._window.erase()
        style = self._colours["filter" if picker.filter else "header"]
        self._put(0, picker.header(columns), style)
        self._put(1, picker.heads(columns), curses.A_DIM)
        room, now = lines - _FIRST_ROW - 1, time.time()
        # The window of rows follows the selection.
        self._first = min(self._first, picker.position)
        self._first = max(self._first, picker.position - room + 1, 0)
        for place, row in enumerate(picker.shown[self._first : self._first + room]):
            chosen = self._first + place == picker.position
            text = (" → " if chosen else "   ") + picker.line(row, columns, now)
            self._put(_FIRST_ROW + place, text, self._colours["row"] if chosen else 0)
        if not picker.shown:
            self._put(_FIRST_ROW, "   No sessions match the filter.", curses.A_DIM)
        self._put(
            lines - 1, f"  {self._message}" if self._message else picker.footer(), curses.A_DIM
        )
        self._window.refresh()

    def _put(self, line: int, text: str, style: int = 0) -> None:
        columns = self._window.getmaxyx()[1]
        # An error means that the terminal has just become smaller. The last cell stays free:
        # writing it would move the cursor off the screen.
        with contextlib.suppress(curses.error):
            self._window.addstr(line, 0, clip(text, columns - 1), style)

    def _show(self, text: list[str]) -> None:
        lines, columns = self._window.getmaxyx()
        self._window.erase()
        for place, line in enumerate(_wrapped(text, columns - 2)[: lines - 1]):
            self._put(place, f" {line}")
        self._put(lines - 1, "  any key goes back", curses.A_DIM)
        self._window.refresh()
        self._key()

    # --- keys --------------------------------------------------------------------------------

    def _key(self) -> str:
        while True:
            try:
                key = self._window.get_wch()
            except curses.error:
                continue  # interrupted by a signal, such as a new size
            if isinstance(key, str):
                return key
            return _KEYS.get(key, "")

    def _ask(self, question: str, text: str = "") -> str | None:
        """One line at the bottom of the screen; ``None`` after Esc."""
        curses.curs_set(1)
        try:
            while True:
                lines, columns = self._window.getmaxyx()
                self._window.move(lines - 1, 0)
                self._window.clrtoeol()
                shown = question + text
                # The end of a long line is what is being typed.
                while width(shown) > columns - 2:
                    shown = shown[1:]
                self._put(lines - 1, shown, curses.A_BOLD)
                self._window.refresh()
                key = self._key()
                if key in ("\n", "\r"):
                    return text
                if key in ("\x1b", "\x03"):
                    return None
                if key in ("\x7f", "\b", "backspace"):
                    text = text[:-1]
                elif key == "\x15":
                    text = ""
                elif len(key) == 1 and key.isprintable():
                    text += key
        finally:
            curses.curs_set(0)


def _wrapped(lines: list[str], columns: int) -> list[str]:
    wrapped: list[str] = []
    for line in lines:
        rest = plain(line)
        while width(rest) > columns:
            head = cut(rest, columns)
            wrapped.append(head)
            rest = rest[len(head) :]
        wrapped.append(rest)
    return wrapped
