"""The file in which a process that runs a suite writes down how each test has ended."""

from __future__ import annotations

import json
import os

__all__ = ["FILE", "note"]

FILE = "HERMES_CONFORMANCE_OUTCOMES"
"""The variable that names the file: what tests print must not be among the lines."""


def note(test: str, outcome: str, text: str = "") -> None:
    """Append one line: *test* has begun, passed, failed or was skipped."""
    with open(os.environ[FILE], "a", encoding="utf-8", errors="backslashreplace") as file:
        file.write(json.dumps({"test": test, "outcome": outcome, "text": text}) + "\n")
