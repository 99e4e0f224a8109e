"""Record ``hermes-actor demo --compare`` in a real terminal as an animated picture.

``make cast`` writes ``docs/demo.svg``, which README shows. Nothing in it is drawn by hand: every
frame is the screen of a tmux of its own, taken a few times a second.

    python docs/cast.py [--seconds N] [OUTPUT]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

from rich.cells import cell_len
from rich.color import ColorTriplet
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import TerminalTheme
from rich.text import Text

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "stress"))

from support.terminal import terminal  # noqa: E402

COLUMNS, LINES = 80, 35
LOOK_SECONDS = 0.4
HOLD_SECONDS = 10.0
"""Time for which the last frame, the verdict, stays."""
CELL, LINE, FONT, MARGIN, BAR = 8.4, 18, 14, 12, 34
BACKGROUND, FOREGROUND = "#16181d", "#d7dae0"
_ANSI = [(40, 44, 52), (224, 108, 117), (152, 195, 121), (229, 192, 123),
         (97, 175, 239), (198, 120, 221), (86, 182, 194), (215, 218, 224)]  # fmt: skip
THEME = TerminalTheme((22, 24, 29), (215, 218, 224), _ANSI, _ANSI)


class Frame(NamedTuple):
    """One screen, and the second at which it was first seen."""

    at: float
    lines: tuple[Text, ...]


def record(seconds: float) -> tuple[list[Frame], float]:
    """Return the frames of one demonstration, and its duration."""
    frames: list[Frame] = []
    words = ("demo", "--compare", "--seconds", seconds)
    with (
        tempfile.TemporaryDirectory() as folder,
        terminal(Path(folder), *words, columns=COLUMNS, lines=LINES) as screen,
    ):
        began = time.monotonic()
        while True:
            # As one text: colours go on from line to line.
            shown = Text.from_ansi(screen.screen(colours=True))
            text, over, _ = shown.plain.partition("[exit ")
            lines = tuple(shown[: len(text)].split("\n"))
            if text.strip() and (not frames or frames[-1].lines != lines):
                frames.append(Frame(time.monotonic() - began if frames else 0.0, lines))
            if over:
                return frames, time.monotonic() - began
            time.sleep(LOOK_SECONDS)


def line_svg(line: Text, console: Console) -> str:
    """Return the runs of one line of the screen."""
    runs, place = [], 0
    for text, style, _ in line.render(console):
        cells = cell_len(text)
        if text.strip():
            runs.append(
                f'<tspan x="{place * CELL:.1f}" textLength="{cells * CELL:.1f}"'
                f"{_looks(style or Style())}>{escape(text)}</tspan>"
            )
        place += cells
    return "".join(runs)


def _looks(style: Style) -> str:
    looks = ""
    if style.color is not None and not style.color.is_default:
        colour: ColorTriplet = style.color.get_truecolor(THEME)
        looks += f' fill="{colour.hex}"'
    if style.bold:
        looks += ' font-weight="bold"'
    if style.dim:
        looks += ' opacity="0.6"'
    return looks


def svg(frames: list[Frame], duration: float) -> str:
    """Return the film: frames side by side, moved past a window by one animation."""
    console = Console(color_system="truecolor", width=COLUMNS, file=sys.stderr)
    width, height = COLUMNS * CELL + 2 * MARGIN, BAR + LINES * LINE + MARGIN
    kept: dict[str, str] = {}
    pictures, steps = [], []
    whole = duration + HOLD_SECONDS
    for number, frame in enumerate(frames):
        uses = []
        for row, line in enumerate(frame.lines[:LINES]):
            if drawn := line_svg(line, console):
                name = kept.setdefault(drawn, f"l{len(kept)}")
                uses.append(f'<use href="#{name}" y="{row * LINE}"/>')
        pictures.append(f'<g transform="translate({number * width:.0f})">{"".join(uses)}</g>')
        steps.append(
            f"{100 * frame.at / whole:.2f}%{{transform:translateX(-{number * width:.0f}px)}}"
        )
    steps.append(f"100%{{transform:translateX(-{(len(frames) - 1) * width:.0f}px)}}")
    texts = "".join(f'<text id="{name}">{drawn}</text>' for drawn, name in kept.items())
    dots = "".join(
        f'<circle cx="{20 + 18 * n}" cy="17" r="5.5" fill="{colour}"/>'
        for n, colour in enumerate(("#e06c75", "#e5c07b", "#98c379"))
    )
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" \
width="{width:.0f}" height="{height}" role="img">
<title>hermes-actor demo --compare: the same load on plain sqlite3 and through the actor</title>
<style>
text {{ font: {FONT}px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; \
fill: {FOREGROUND}; white-space: pre; }}
#film {{ animation: film {whole:.1f}s steps(1, end) infinite; }}
@keyframes film {{ {"".join(steps)} }}
@media (prefers-reduced-motion: reduce) {{ #film {{ animation: none; \
transform: translateX(-{(len(frames) - 1) * width:.0f}px); }} }}
</style>
<defs>{texts}</defs>
<rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/>
{dots}<text x="{width / 2:.0f}" y="22" text-anchor="middle">hermes-actor demo --compare</text>
<svg x="{MARGIN}" y="{BAR}" width="{COLUMNS * CELL:.0f}" height="{LINES * LINE}" \
overflow="hidden"><g transform="translate(0 {FONT + 2})"><g id="film">{"".join(pictures)}</g></g>
</svg>
</svg>
"""


def main() -> int:
    """Record, and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", nargs="?", type=Path, default=ROOT / "docs" / "demo.svg")
    parser.add_argument("--seconds", type=float, default=12.0)
    given = parser.parse_args()
    frames, duration = record(given.seconds)
    text = svg(frames, duration)
    given.output.write_text(text, "utf-8")
    print(f"{given.output}: {len(frames)} frames, {duration:.1f} s, {len(text) // 1024} KiB")
    print("\n".join(line.plain for line in frames[-1].lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
