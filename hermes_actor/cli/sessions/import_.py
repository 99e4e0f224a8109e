"""``sessions import``: the sessions of an export, each exactly once."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

import click

from hermes_actor import exit_codes
from hermes_actor.cli.command_store import CommandStore, open_store
from hermes_actor.cli.options import db_option, json_option
from hermes_actor.cli.output.console import print_result, progress
from hermes_actor.cli.output.errors import fail
from hermes_actor.cli.output.formatting import plain
from hermes_actor.tools.import_records import BadRecord, read_record

__all__ = ["import_"]


class _Place(NamedTuple):
    """Offset of a record in the file, and the parent that it names."""

    offset: int
    parent: str | None


@click.command("import")
@click.argument("file")
@click.option("--no-limits", is_flag=True, help="Accept sessions of any size.")
@json_option
@db_option
def import_(file: str, no_limits: bool, as_json: bool, db: Path | None) -> int:
    """Load the sessions of an export.

    FILE is the output of `sessions export`; - is standard input. The whole file is checked first:
    if one record is invalid, nothing is written. A session whose id exists is skipped, so run the
    command again to continue an interrupted import. A parent that is neither in the file nor in the
    store is dropped (detached).

    Exit codes: 0 imported or skipped, 1 a record is invalid and nothing was written.

    \b
    Examples:
      hermes-actor sessions import backup.jsonl
      ssh elsewhere hermes-actor sessions export - | hermes-actor sessions import -
    """
    with _source(file) as lines, open_store(db, may_be_new=True) as store:
        places, errors = _checked(lines, limited=not no_limits)
        result = _Result()
        if not errors:
            _import_all(store, lines, places, result)
    shown = [f"Imported {result.imported}, skipped {result.skipped}, detached {result.detached}."]
    for error in errors:
        named = f" ({error['session_id']})" if "session_id" in error else ""
        shown.append(plain(f"  record {error['index']}{named}: {error['error']}"))
    document = {"ok": not errors, **asdict(result), "errors": errors}
    print_result(document, "\n".join(shown), as_json)
    return exit_codes.REFUSED if errors else exit_codes.OK


@dataclass
class _Result:
    imported: int = 0
    skipped: int = 0
    detached: int = 0
    imported_ids: list[str] = field(default_factory=list)
    skipped_ids: list[str] = field(default_factory=list)


@contextlib.contextmanager
def _source(file: str) -> Iterator[IO[bytes]]:
    """Open the records as a file that can be read twice; a pipe is copied to a temporary one."""
    with contextlib.ExitStack() as stack:
        try:
            given = sys.stdin.buffer if file == "-" else stack.enter_context(open(file, "rb"))
            if not given.seekable():
                kept = stack.enter_context(tempfile.TemporaryFile())
                shutil.copyfileobj(given, kept)
                kept.seek(0)
                given = kept
        except OSError as error:
            fail(f"cannot read {file}: {error.strerror}")
        yield given


def _checked(lines: IO[bytes], *, limited: bool) -> tuple[dict[str, _Place], list[dict[str, Any]]]:
    """Check every record once; return the place of each session, and the errors."""
    places: dict[str, _Place] = {}
    errors: list[dict[str, Any]] = []
    index, offset, now = 0, 0, time.time()
    for line in lines:
        start, offset = offset, offset + len(line)
        if not line.strip():
            continue
        try:
            session = read_record(line, now, limited=limited).session
            if session.id in places:
                errors.append({"index": index, "session_id": session.id, "error": "id repeated"})
            parent = session.parent_session_id
            places[session.id] = _Place(start, parent if isinstance(parent, str) else None)
        except BadRecord as error:
            errors.append({"index": index, **_id_of(line), "error": str(error)})
        index += 1
    return places, errors


def _id_of(line: bytes) -> dict[str, str]:
    import json

    with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):
        found = json.loads(line)["id"]
        if isinstance(found, str) and found:
            return {"session_id": found}
    return {}


def _import_all(
    store: CommandStore, lines: IO[bytes], places: dict[str, _Place], result: _Result
) -> None:
    """Import parents before children, whatever their order in the file."""
    now = time.time()
    with progress("importing") as tell:
        for session_id in _parents_first(places):
            lines.seek(places[session_id].offset)
            session, messages, archived = read_record(lines.readline(), now, limited=False)
            done = store.import_session(session, messages, archived)
            if done.imported:
                result.imported += 1
                result.imported_ids.append(session_id)
                result.detached += done.detached
            else:
                result.skipped += 1
                result.skipped_ids.append(session_id)
            tell(result.imported + result.skipped, len(places))


def _parents_first(places: dict[str, _Place]) -> Iterator[str]:
    """Yield every session after its parent. In a cycle, one comes first and is detached."""
    done: set[str] = set()
    for first in places:
        chain, current = list[str](), first
        while current in places and current not in done:
            done.add(current)
            chain.append(current)
            current = places[current].parent or ""
        yield from reversed(chain)
