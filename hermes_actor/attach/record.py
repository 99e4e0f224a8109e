"""Records of what was attached: one for each home, in the state folder of the user.

It is kept outside of the environment and of the home: an environment that was made again has lost
its hook, and the record is how our commands know that there was one.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import msgspec

from hermes_actor.paths import attach_record, state_folder
from hermes_protocol.decoders import convert

__all__ = ["Record", "read_record", "read_records", "record_of", "remove_record", "write_record"]


class Record(msgspec.Struct, frozen=True):
    """An attachment of one home."""

    home: str
    python: str
    purelib: str
    release: str
    """Version of hermes-agent at that time."""
    fingerprint: str
    """Digest of its module ``hermes_state``."""
    tier: str
    version: str
    """Version of hermes-actor that attached it."""
    time: float
    databases: list[str] = []
    """Those that were there and had no tables of ours yet."""
    backups: list[str] = []

    def document(self) -> dict[str, Any]:
        """Return the record as JSON documents have it."""
        document: dict[str, Any] = msgspec.to_builtins(self)
        return document


def _folder() -> Path:
    return state_folder() / "attached"


def write_record(record: Record) -> None:
    """Keep *record*, in the place of an older one of the same home."""
    path = attach_record(Path(record.home))
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(record.document(), indent=2) + "\n")
    os.replace(part, path)


def read_record(home: Path) -> Record | None:
    """Return the record of *home*; ``None`` if it is not attached."""
    return _read(attach_record(home))


def read_records() -> list[Record]:
    """Return the records of all homes, by their paths."""
    found = [record for file in _folder().glob("*.json") if (record := _read(file)) is not None]
    return sorted(found, key=lambda record: record.home)


def record_of(db: Path) -> Record | None:
    """Return the record of the home that the database *db* lies in, the innermost one."""
    found = [one for one in read_records() if db.is_relative_to(one.home)]
    return max(found, key=lambda one: len(one.home), default=None)


def remove_record(home: Path) -> None:
    """Forget the record of *home*, and the folder with the last one."""
    attach_record(home).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        _folder().rmdir()
        _folder().parent.rmdir()


def _read(path: Path) -> Record | None:
    try:
        return convert(msgspec.json.decode(path.read_bytes()), Record)
    except (OSError, ValueError):
        return None
