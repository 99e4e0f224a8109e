"""The page of rows of the agent store: every row has a test, and page and docstrings agree."""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = (TESTS / "agent-store-rows.md").read_text("utf-8")
ROWS = set(range(1, 196))
HEAD = re.compile(r"(?:(?:\d+(?: to \d+)?|D\d+)(?:, |(?=[.;: ])))+")
"""The beginning of a docstring: rows, and divergences such as ``D21``."""


def rows_in(text):
    """The numbers of a list such as ``5 to 8, 14`` or ``5–8, 14``."""
    found = re.findall(r"(?<![D\d])(\d+)(?:(?: to |–)(\d+))?", text)
    return {row for first, last in found for row in range(int(first), int(last or first) + 1)}


def in_docstrings():
    """Rows of each test, by module and name."""
    files = [*TESTS.glob("providers/test_agents_*.py"), TESTS / "unit" / "test_agent_rules.py",
             TESTS / "cli" / "test_cli_agents.py"]  # fmt: skip
    found = {}
    for file in files:
        for node in ast.parse(file.read_text("utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                head = HEAD.match(ast.get_docstring(node) or "")
                if head and rows_in(head[0]):
                    found[str(file.relative_to(TESTS)), node.name] = rows_in(head[0])
    return found


def on_the_page():
    """Rows of each test as the page has them, and those that are not of a store."""
    file, found, others = "", {}, set()
    for line in PAGE.splitlines():
        if named := re.fullmatch(r"`(\w+/test_\w+\.py)`", line):
            file = named[1]
        elif test := re.fullmatch(r"\| ([\d, –]+) \| `(test_\w+)` \|", line):
            assert (file, test[2]) not in found
            found[file, test[2]] = rows_in(test[1])
        elif other := re.match(r"\| ([\d, –]+) \| \w", line):
            assert not others & rows_in(other[1])
            others |= rows_in(other[1])
    return found, others


def test_every_row_has_a_test_or_a_reason():
    found, others = on_the_page()
    tested = set().union(*found.values())
    assert tested | others == ROWS
    assert not tested & others


def test_page_and_docstrings_agree():
    assert on_the_page()[0] == in_docstrings()
