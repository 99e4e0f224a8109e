"""The settings that commands take from ``config.yaml`` of the home."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

__all__ = ["setting"]


def setting(home: Path, key: str, default: Any) -> Any:
    """The value of a dotted key, or *default*; the file is read only if it is there."""
    if not (home / "config.yaml").exists():
        return default
    config = importlib.import_module("hermes_actor.config")
    return config.load(home).get(key, default)
