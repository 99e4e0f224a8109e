"""Formatting of output: times, numbers, widths, colours, paging."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Sequence
from typing import Any, TextIO

import click

from hermes_actor.tools.timestamps import in_words

__all__ = [
    "clip", "clock_time", "coloured", "count", "cut", "fit", "json_text", "page", "plain",
    "print_json", "relative_time", "short_duration", "sparkline", "styled", "terminal_width",
    "width", "wrapped",
]  # fmt: skip

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400


def relative_time(moment: Any, now: float | None = None) -> str:
    """Return the age of *moment*, short enough for a column."""
    if not moment or isinstance(moment, str):
        return "?"
    ago = (time.time() if now is None else now) - moment
    if ago < _MINUTE:
        return "just now"
    if ago < _HOUR:
        return f"{int(ago // _MINUTE)}m ago"
    if ago < _DAY:
        return f"{int(ago // _HOUR)}h ago"
    if ago < 2 * _DAY:
        return "yesterday"
    if ago < 7 * _DAY:
        return f"{int(ago // _DAY)}d ago"
    return in_words(moment, "%Y-%m-%d")


def clock_time(moment: Any, shape: str = "%Y-%m-%d %H:%M") -> str:
    """Local time; ``?`` if there is none."""
    return in_words(moment, shape)


def short_duration(seconds: float) -> str:
    """``59s``, ``2m``, ``1h 1m``, ``1.5d``."""
    if seconds < _MINUTE:
        return f"{seconds:.0f}s"
    if seconds < _HOUR:
        return f"{seconds / _MINUTE:.0f}m"
    if seconds < _DAY:
        hours, rest = int(seconds // _HOUR), int(seconds % _HOUR // _MINUTE)
        return f"{hours}h {rest}m" if rest else f"{hours}h"
    return f"{seconds / _DAY:.1f}d"


def sparkline(values: Sequence[float]) -> str:
    """Return a bar of one cell for each value, relative to the highest."""
    top = max(values, default=0) or 1
    return "".join("▁▂▃▄▅▆▇█"[min(7, int(8 * value / top))] for value in values)


def count(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 session``, ``1,200 sessions``."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


# --- widths ----------------------------------------------------------------------------------


_NARROW = frozenset("—–…‘’“”•─│")
"""Signs outside Latin that are one cell wide and frequent here."""


def width(text: str) -> int:
    """Terminal cells of a text; CJK and emoji take two."""
    if text.isascii() or all(c < "\u0300" or c in _NARROW for c in text):
        return len(text)
    from rich.cells import cell_len  # a table that most lists do not need

    return cell_len(text)


_NO_TERMINAL = 120
"""Columns of output that a program or a file gets: room for whole ids."""

_LEAST_WIDTH = 40


def terminal_width() -> int:
    """Return the columns of the terminal, which ``COLUMNS`` overrides."""
    return max(_LEAST_WIDTH, shutil.get_terminal_size((_NO_TERMINAL, 24)).columns)


def clip(text: str, cells: int) -> str:
    """The beginning of a text that fits, with ``…`` if it is not all of it."""
    if width(text) <= cells:
        return text
    return cut(text, cells - 1).rstrip() + "…" if cells > 0 else ""


def cut(text: str, cells: int) -> str:
    """The beginning of a text that fits."""
    if width(text) <= cells:
        return text
    if text.isascii():
        return text[:cells]
    kept, used = [], 0
    for character in text:
        used += width(character)
        if used > cells:
            break
        kept.append(character)
    return "".join(kept)


def fit(text: object, pad_to: int, cut_to: int | None = None) -> str:
    """*text* on one line, cut, then padded with blanks to a width in terminal cells."""
    shown = plain(text)
    if cut_to is not None:
        shown = clip(shown, cut_to)
    return shown + " " * max(0, pad_to - width(shown))


def wrapped(text: str, indent: int = 0, stream: TextIO | None = None) -> str:
    """Return a sentence in lines that fit the terminal, broken between words.

    *indent* is the place of its first word; later lines begin there, too. Where *stream*, standard
    output by default, is no terminal, the sentence stays on one line, for grep.
    """
    stream = stream or sys.stdout
    if stream is None or not stream.isatty():
        return text
    sentence = text.lstrip(" ")
    indent += len(text) - len(sentence)
    room, lines = max(1, terminal_width() - indent), [""]
    for word in sentence.split(" "):
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if lines[-1] and width(longer) > room:
            lines.append(word)
        else:
            lines[-1] = longer
    return text[: len(text) - len(sentence)] + f"\n{' ' * indent}".join(lines)


def plain(value: object) -> str:
    """*value* as text without what could move the cursor or break a line."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c in "\n\r\t" else "" for c in text)


# --- colour and long output ------------------------------------------------------------------


def coloured() -> bool:
    """Return True if standard output is a terminal and NO_COLOR is not set."""
    return (
        sys.stdout is not None
        and sys.stdout.isatty()
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM") != "dumb"
    )


def styled(text: str, **style: Any) -> str:
    """*text* in a style of :func:`click.style`, if there are colours."""
    return click.style(text, **style) if coloured() else text


def page(text: str) -> None:
    """Print *text*, through the pager if it is longer than the terminal."""
    if sys.stdout.isatty() and text.count("\n") + 1 >= shutil.get_terminal_size().lines:
        # Without it less clears the screen at its end and shows colours as letters.
        os.environ.setdefault("LESS", "FRX")
        click.echo_via_pager(text, color=coloured())
        return
    print(text)


_C1 = {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}
"""Control characters of eight bits as JSON escapes: terminals obey them, too."""


def json_text(value: Any) -> str:
    """Return one JSON document on a line; text stays readable, where the stream can encode it."""
    # Late: every command loads this module, and few print JSON.
    from hermes_actor.store.surrogates import json_bytes

    text = json_bytes(value).decode().translate(_C1)  # JSON itself escapes the others
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        import json

        text = json.dumps(json.loads(text))
    return text


def print_json(value: Any) -> None:
    """Print one JSON document on a line."""
    sys.stdout.write(json_text(value) + "\n")
