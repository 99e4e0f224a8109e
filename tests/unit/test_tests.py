"""The tests themselves: the map of guarantees names what there is, and imports go one way."""

import ast
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
GUARANTEES = {f"G{number}" for number in range(1, 18)} | {f"R{number}" for number in range(1, 6)}


@cache
def rows():
    """The cells of each guarantee in the map: name, text, test modules, jobs."""
    lines = (TESTS / "README.md").read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "|" in line]
    return {row[0]: row for row in cells if re.fullmatch(r"[GR]\d+", row[0])}


def test_every_guarantee_is_in_the_map():
    assert set(rows()) == GUARANTEES


@pytest.mark.parametrize("name", sorted(GUARANTEES))
def test_the_map_names_modules_and_jobs_that_exist(name):
    _, _, modules, jobs = rows()[name]
    named = re.findall(r"`(\w+/test_\w+\.py)`", modules)
    assert named
    assert [one for one in named if not (TESTS / one).is_file()] == []
    known = {file.stem.removeprefix("stress_") for file in (ROOT / "stress").glob("stress_*.py")}
    assert set(re.findall(r"`(\w+)`", jobs)) <= known
    assert modules.count("**") + jobs.count("**") == 2


def test_the_text_around_the_map_names_modules_that_exist():
    text = (TESTS / "README.md").read_text(encoding="utf-8")
    named = set(
        re.findall(r"`((?:unit|process|attach|cli|providers|stress|docs)/test_\w+\.py)`", text)
    )
    assert [one for one in named if not (TESTS / one).is_file()] == []


def test_every_module_of_tests_says_what_it_proves():
    silent = [
        str(file.relative_to(TESTS))
        for file in TESTS.rglob("test_*.py")
        if ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) is None
    ]
    assert silent == []


def imported(file):
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def modules_below(folder):
    """First parts of names by which a folder is imported: its packages and its modules."""
    return {file.stem for file in folder.glob("*.py")} | {
        file.parent.name for file in folder.glob("*/__init__.py")
    }


def test_stress_imports_nothing_from_the_tests():
    own = modules_below(ROOT / "stress")
    theirs = {file.stem for file in TESTS.rglob("*.py")} - own - {"__init__", "conftest"}
    wrong = [
        f"{file.relative_to(ROOT)} imports {name}"
        for file in (ROOT / "stress").rglob("*.py")
        for name in imported(file)
        if name.partition(".")[0] in theirs | {"tests"}
    ]
    assert wrong == []


def test_the_product_imports_neither_tests_nor_stress():
    around = modules_below(ROOT / "stress") - {"peer"} | {"tests", "stress", "support", "harness"}
    wrong = [
        f"{file.relative_to(ROOT)} imports {name}"
        for folder in ("hermes_actor", "protocol/hermes_protocol")
        for file in (ROOT / folder).rglob("*.py")
        for name in imported(file)
        if name.partition(".")[0] in around
    ]
    assert wrong == []


@pytest.mark.parametrize(("ci", "outcome"), [("true", "1 failed, 2 errors"), ("", "3 skipped")])
def test_a_missing_agent_program_is_a_failure_under_continuous_integration(tmp_path, ci, outcome):
    """Whole modules that are skipped would look like modules that pass."""
    shutil.copy(TESTS / "conftest.py", tmp_path)
    (tmp_path / "test_one.py").write_text(
        "import pytest\n"
        "@pytest.mark.skipif(True, reason='the agent program is not installed')\n"
        "def test_marked(): pass\n"
        "def test_called(): pytest.skip('the agent program is not installed')\n"
        "@pytest.fixture\n"
        "def host(): pytest.skip('the agent program is not installed')\n"
        "def test_fixture(host): pass\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        env={**os.environ, "CI": ci, "PYTHONPATH": str(ROOT / "stress")}, cwd=tmp_path,
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert re.search(rf"^{outcome}", done.stdout, re.MULTILINE), done.stdout + done.stderr
