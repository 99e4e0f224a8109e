"""Taking the documents apart: their code blocks, tables and sections."""

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "protocol").glob("*.md")])

_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def fences(page: str | Path) -> list[tuple[str, str]]:
    """(language, body) of every code block, in order."""
    return [(kind, body) for _, kind, body in _FENCE.findall((DOCS / page).read_text())]


def blocks(page: str | Path, language: str) -> list[str]:
    """The code blocks of one language, in order."""
    return [body for kind, body in fences(page) if kind == language]


def prose(page: Path) -> str:
    """The text of a page without its code blocks."""
    return _FENCE.sub("", page.read_text())


def section(page: str | Path, title: str) -> str:
    """What stands below a heading, up to the next one of its level or above."""
    lines = (DOCS / page).read_text().splitlines()
    (start,) = [n for n, line in enumerate(lines) if line.lstrip("#") == f" {title}"]
    level = len(lines[start].split()[0])
    end = next(
        (
            n
            for n, line in enumerate(lines[start + 1 :], start + 1)
            if re.match(rf"#{{1,{level}}} ", line)
        ),
        len(lines),
    )
    return "\n".join(lines[start + 1 : end])


def rows_of(text: str) -> list[list[str]]:
    """Every row of every table, as lists of cells, headings included."""
    lines = [line.strip("|") for line in text.splitlines() if line.startswith("|")]
    rows = [re.split(r"(?<!\\)\|", line) for line in lines]
    return [
        [cell.strip().replace("\\|", "|") for cell in row]
        for row in rows
        if set("".join(row)) - set("-: ")
    ]


def table_rows(page: str | Path) -> list[list[str]]:
    return rows_of((DOCS / page).read_text())


def environment(home: Path) -> dict[str, str]:
    """As a reader of the pages has it: the commands on the path, a home of one's own."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    terminal = {"PYTHONUTF8": "1", "COLUMNS": "80"}
    return {**os.environ, "PATH": path, "HERMES_HOME": str(home), **terminal}


def run(arguments: list[str], home: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=home,
        env=environment(home),
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=100,
    )


def prints(program: str, promised: str, home: Path) -> None:
    """Run a program of a page; it must print what the page says."""
    done = run(["-c", program], home)
    assert done.returncode == 0, done.stderr
    same = doctest.OutputChecker().check_output(promised, done.stdout, doctest.ELLIPSIS)
    assert same, done.stdout + done.stderr


_TERMINAL = """
>>> import subprocess
>>> served = []
>>> def terminal(command):
...     if " serve" in command:
...         served.append(subprocess.Popen(command.split(), stdout=subprocess.PIPE, text=True))
...         print(served[0].stdout.readline(), end="")
...         return
...     done = subprocess.run(command, shell=True, capture_output=True, text=True)
...     said = [x for x in done.stderr.splitlines(True) if not x.startswith("waiting: ")]
...     print(done.stdout + "".join(said), end="")
"""

_TYPED = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
"""A command, and what it prints."""

_END = """
>>> for actor in served:
...     with actor:
...         actor.wait(timeout=30)
"""


def follow(page: str, home: Path, prelude: str = "") -> None:
    """Do what a page says, in its order: the Python session, and commands in a second terminal.

    A ``serve`` runs until the page drains it, and must end in good order.
    """
    session = [_TERMINAL, prelude]
    for kind, body in fences(page):
        if kind == "pycon":
            session.append(body)
        elif kind == "console":
            session += [
                f">>> terminal({typed!r})\n{shown}" for typed, shown in _TYPED.findall(body)
            ]
    serves = any(" serve" in body for kind, body in fences(page) if kind == "console")
    session.append(_END + ("0\n" if serves else ""))
    file = home / f"{Path(page).stem}.txt"
    file.write_text("\n".join(session), encoding="utf-8")
    done = run(["-m", "doctest", "-o", "ELLIPSIS", str(file)], home)
    assert done.returncode == 0, done.stdout + done.stderr
