"""The page of rows of the gateway: each row, complaint and proof has a test, which exists."""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = (TESTS / "gateway-rows.md").read_text("utf-8")
WANTED = {
    *map(str, range(95, 138)),
    *(f"g{number}" for number in range(1, 18)),
    *(f"T{number}" for number in range(1, 13)),
    *(f"L{number}" for number in range(1, 10)),
}


def rows():
    """Each row of the tables: what it is about, and its test or job."""
    cells = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", PAGE, re.MULTILINE)
    return [cell for cell in cells if "`" in cell[1]]


def subjects(cell):
    """The numbers of a first cell, such as ``95–111`` or ``g1 a chat points …``."""
    if named := re.match(r"[gTL]\d+", cell):
        return {named[0]}
    found = re.findall(r"(\d+)(?:–(\d+))?", cell)
    return {str(one) for a, b in found for one in range(int(a), int(b or a) + 1)}


def test_every_subject_has_a_test():
    found = set().union(*(subjects(about) for about, _ in rows()))
    assert found == WANTED


def test_every_test_of_the_page_exists():
    for _, proof in rows():
        if job := re.fullmatch(r"job `(\w+)`", proof):
            assert (TESTS.parent / "stress" / f"stress_{job[1]}.py").exists(), proof
            continue
        named = re.fullmatch(r"`([\w/]+\.py)` `(test_\w+)`", proof)
        assert named, proof
        module = ast.parse((TESTS / named[1]).read_text("utf-8"))
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
        assert named[2] in {node.name for node in module.body if isinstance(node, kinds)}, proof
