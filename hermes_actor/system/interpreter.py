"""The variables without which this interpreter would not start in another process."""

from __future__ import annotations

import os
import sys

__all__ = ["library_variables"]

_LIBRARIES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""Variables by which the system finds the libraries of an interpreter in a folder of its own."""


def library_variables() -> dict[str, str]:
    """Return the variables by which the interpreter finds its shared and its Python libraries."""
    found = {name: os.environ[name] for name in _LIBRARIES if name in os.environ}
    home = os.environ.get("PYTHONHOME")
    # Only one that this interpreter has itself been started with.
    if home and _same(home.split(os.pathsep)[0], sys.base_prefix):
        found["PYTHONHOME"] = home
    return found


def _same(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)
