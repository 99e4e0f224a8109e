"""The suites, and how each is run: in its own processes, once per side.

CPython's tests come with the interpreter; the others from source distributions of the package
index, by name and version as they are in ``.venv-conformance``, into a folder beside it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from conformance.stand_in import SIDE

__all__ = ["CPYTHON", "NEWER", "Outcome", "Suite", "THIRD_PARTY", "run"]

ROOT = Path(__file__).resolve().parents[2]

ENVIRONMENT = ROOT / ".venv-conformance"
"""With the packages whose suites are run. Made by ``make conformance``."""

SOURCES = ENVIRONMENT / "sources"
"""One folder per source distribution."""


_PYTEST = (
    *("-c", "pyproject.toml", "--rootdir", "."),
    *("-p", "no:cacheprovider", "-o", "asyncio_default_fixture_loop_scope=function"),
)
"""The settings are those of the suite, not of this checkout, whose folder is above its own."""


class Outcome(NamedTuple):
    """The end of one test: passed, failed or skipped, and what it said."""

    outcome: str
    text: str


class Suite(NamedTuple):
    """A set of tests. *words* are those of pytest, in the folder of the distribution *source*."""

    name: str
    source: str | None = None
    words: Sequence[str] = ()
    python: Path = Path(sys.executable)
    """Of a suite that comes with the interpreter."""


CPYTHON = Suite("cpython")

NEWER = tuple(
    Suite(f"cpython-{python.parents[1].name.removeprefix('python')}", python=python)
    for python in sorted(ENVIRONMENT.glob("python3.*/bin/python"))
)
"""The tests of newer interpreters, as far as this machine has them."""

_DIALECT = ("test/dialect/sqlite", "test/dialect/test_suite.py")

THIRD_PARTY = (
    Suite("aiosqlite", "aiosqlite-*", ("aiosqlite/tests/smoke.py",)),
    Suite("langgraph-checkpoint-sqlite", "langgraph_checkpoint_sqlite-*", ("tests",)),
    Suite("sqlite-utils", "sqlite_utils-*", ("tests",)),
    Suite("sqlalchemy", "sqlalchemy-*", (*_DIALECT, "--dburi", "sqlite+pysqlite:///suite.db")),
)


def run(suite: Suite, side: str, parts: Sequence[str] = ()) -> dict[str, Outcome]:
    """Run *suite*, or only *parts* of it, and return the outcome of each test by its name.

    A test that has begun and not ended has taken its process with it: it has failed.
    """
    # Not in the folder of the tests: what they leave behind goes with this one. An actor that ends
    # just then may still create a file: some empty folders are left.
    with tempfile.TemporaryDirectory(prefix="conformance-", ignore_cleanup_errors=True) as folder:
        lines = Path(folder) / "outcomes"
        environment = {
            **os.environ,
            SIDE: side,
            "TMPDIR": folder,
            "HERMES_HOME": folder,
            # Hundreds of tests make a file each: actors of those that are done must not pile up.
            "HERMES_ACTOR_IDLE_EXIT": "2",
            "HERMES_CONFORMANCE_OUTCOMES": str(lines),
            "PYTHONPATH": os.pathsep.join(
                map(
                    str, (Path(__file__).parent / "child", ROOT / "stress", ROOT, ROOT / "protocol")
                )
            ),
        }
        words, where = _command(suite, parts, Path(folder))
        done = subprocess.run(
            words, env=environment, cwd=where, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        )  # fmt: skip
        if not lines.exists():
            raise RuntimeError(f"{suite.name} on {side} does not begin:\n{done.stdout[-4000:]}")
        return _read(lines)


def _command(suite: Suite, parts: Sequence[str], folder: Path) -> tuple[list[str], Path]:
    if suite.source is None:
        words = [str(suite.python), "-P", "-m", "conformance.cpython_suite"]
        return [*words, *parts], folder
    (source,) = SOURCES.glob(suite.source)
    python = ENVIRONMENT / "bin" / "python"
    words = [str(python), "-m", "pytest", "-q", "-p", "conformance.plugin", *_PYTEST]
    return [*words, *(parts or suite.words)], source


def _read(lines: Path) -> dict[str, Outcome]:
    found: dict[str, Outcome] = {}
    for line in lines.read_text().splitlines():
        said = json.loads(line)
        if said["outcome"] == "begun":
            found.setdefault(said["test"], Outcome("failed", "its process has ended"))
        else:
            found[said["test"]] = Outcome(said["outcome"], said["text"])
    return found
