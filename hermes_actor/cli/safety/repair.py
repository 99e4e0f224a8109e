"""``hermes-actor repair``: find damage, rebuild indexes in place, salvage damaged tables."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from hermes_actor import exit_codes
from hermes_actor.cli.command_store import open_file
from hermes_actor.cli.options import db_option, json_option, yes_option
from hermes_actor.cli.output.console import (
    confirm_or_fail,
    print_error,
    print_result,
    progress,
    waiting,
    waiting_for,
)
from hermes_actor.cli.output.errors import fail
from hermes_actor.cli.output.formatting import count, wrapped
from hermes_actor.cli.store import existing_paths
from hermes_actor.errors import Damaged, NotADatabase
from hermes_actor.paths import StorePaths
from hermes_actor.recovery.backup import stamp, verify
from hermes_actor.recovery.integrity import Finding, check
from hermes_actor.recovery.orphan_wal import (
    MissingRows,
    find_missing,
    import_missing,
    list_orphans,
    mark_imported,
)
from hermes_actor.recovery.restore import kind_to_restore, prepared_copy, replace_store
from hermes_actor.recovery.salvage import SalvageReport, salvage
from hermes_actor.recovery.scratch import remove_store, scratch
from hermes_actor.recovery.store_owner import index_fully, run_maintenance
from hermes_protocol.features import PLAIN, SESSIONS

__all__ = ["repair"]

_SHOWN_SESSIONS = 20
_REPAIRED = "mended"
"""JSON key of the repairs; scripts know it by this name."""


@click.command()
@db_option
@click.option("--check", "only_check", is_flag=True, help="Report damage; change nothing.")
@click.option("--index", is_flag=True, help="Rebuild the full-text indexes in any case.")
@click.option(
    "--salvage", "force", is_flag=True, help="Copy all readable rows into a new file in any case."
)
@click.option("--orphans", is_flag=True, help="Import changes from saved files (orphan-…).")
@click.option(
    "--swap", is_flag=True, help="Replace the damaged content with the rows that were saved."
)
@yes_option
@json_option
def repair(
    db: Path | None,
    only_check: bool,
    index: bool,
    force: bool,
    orphans: bool,
    swap: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Find damage in the store and repair it.

    A reader checks every table while others work. Damaged indexes are rebuilt by the owner of the
    store, in slices between changes; nothing is lost. If a table is damaged, every readable row is
    copied into a new file beside the store, and missing messages are counted for each session. A
    row whose text was changed by the damage cannot be recognised. The store itself is not changed
    without --swap: then the damaged content is saved in "backups", the rows are copied once more,
    with everything written since, and replace the content, through the actor if one is running.

    If files are removed or replaced under a running actor, it saves what it had acknowledged beside
    the store: everything as "state.db.orphan-db.N" or, if only the log was touched, that log as
    "state.db.orphan-wal.N". --orphans compares these files with the store and imports the sessions
    and messages that it lacks, under new ids. With --check it only reports.

    Yesterday's backup is often better than what can be saved: hermes-actor restore --list.

    Exit codes: 0 the store is sound now, 1 it could not be repaired, 6 damage was found and is
    still there (--check, or without --swap), or saved files hold rows that the store lacks or that
    cannot be read.

    \b
    Examples:
      hermes-actor repair --check
      hermes-actor repair
      hermes-actor repair --swap
      hermes-actor repair --index
      hermes-actor repair --orphans --check
    """
    paths = existing_paths(db, PLAIN)
    kind = kind_to_restore(paths, paths.db)
    if kind == PLAIN and (index or orphans):
        fail(f"{paths.db} is a plain file: --index and --orphans are for stores with sessions")
    if orphans:
        return _import_orphans(paths, only_check=only_check, yes=yes, as_json=as_json)
    for log in list_orphans(paths):
        note = f"{log} was saved when files were replaced; import it: hermes-actor repair --orphans"
        print(f"note: {note}", file=sys.stderr)
    found = _check(paths)
    repaired: list[str] = []
    report: dict[str, Any] = {"findings": [one._asdict() for one in found], _REPAIRED: repaired}
    if only_check:
        lines = [f"{one.table}: {one.text}" for one in found] or [f"no damage found in {paths.db}"]
        print_result(report, "\n".join(lines), as_json)
        return exit_codes.BROKEN if found else exit_codes.OK
    # A full-text table of a plain file is one of its own, which the actor cannot fill again.
    ours = kind == SESSIONS
    tables = [one for one in found if not one.of_index and not (ours and one.of_full_text)]
    if tables or force:
        return _save_rows(paths, found, kind, swap=swap, yes=yes, as_json=as_json)
    _rebuild_indexes(paths, found, index, repaired)
    left = _check(paths) if repaired else []
    report["findings"] = [one._asdict() for one in left]
    for one in left:
        print_error(f"not repaired: {one.table}: {one.text}; try: hermes-actor repair --salvage")
    text = "; ".join(repaired) or f"nothing to repair: no damage found in {paths.db}"
    print_result(report, text, as_json)
    return exit_codes.BROKEN if left else exit_codes.OK


def _check(paths: StorePaths) -> list[Finding]:
    try:
        with progress(f"checking {paths.db.name}") as tell:
            return check(paths.db, tell)
    except (Damaged, NotADatabase) as error:
        # Not even the list of tables can be read.
        return [Finding("the file", str(error))]


def _rebuild_indexes(
    paths: StorePaths, found: Sequence[Finding], index: bool, repaired: list[str]
) -> None:
    if any(one.of_index for one in found):
        with waiting_for(paths):
            run_maintenance(paths, "reindex")
        repaired.append("rebuilt the indexes of the tables")
    if index or any(one.of_full_text for one in found):
        with waiting_for(paths):
            newest = run_maintenance(paths, "rebuild-index")["newest"]
        with progress("indexing messages") as tell:
            index_fully(paths, newest, tell)
        repaired.append(f"rebuilt the full-text indexes, up to message {newest}")


def _save_rows(
    paths: StorePaths, found: Sequence[Finding], kind: str, *, swap: bool, yes: bool, as_json: bool
) -> int:
    document: dict[str, Any] = {"findings": [one._asdict() for one in found], "swapped": False}
    if not swap or not yes:
        target = paths.db.with_name(f"{paths.db.name}.salvaged-{stamp()}")
        with _saved(paths, target, kind) as report:
            if not as_json:
                print("\n".join(_lines(report)), flush=True)
            swap = swap and confirm_or_fail(f"Replace the content of {paths.db} with them?", yes)
            if not swap:
                document |= {**_counts(report), "salvaged": str(target)}
                text = (
                    wrapped(f"all readable rows are in {target}")
                    + "\n"
                    + wrapped(
                        f"{paths.db} was not changed; to replace it: hermes-actor repair --swap"
                    )
                )
                print_result(document, text, as_json)
                return exit_codes.BROKEN
        target.unlink()  # from here on it may lack later changes
    return _swap(paths, document, kind, as_json=as_json)


def _swap(paths: StorePaths, document: dict[str, Any], kind: str, *, as_json: bool) -> int:
    """Copy the rows once more, from the state that they replace, and replace it."""
    report: SalvageReport | None = None

    @contextlib.contextmanager
    def made() -> Iterator[Path]:
        nonlocal report
        with (
            scratch(paths) as target,
            _saved(paths, target, kind) as report,
            prepared_copy(paths, target, progress, kind=kind) as ready,
        ):
            target.unlink()
            yield ready

    with waiting_for(paths):
        kept = replace_store(paths, made, damaged=True, step=progress, kind=kind).kept
    assert report is not None
    document |= {**_counts(report), "swapped": True, "before": str(kept)}
    text = wrapped(f"{paths.db} now has the saved rows; the damaged content is saved in {kept}")
    print_result(document, "\n".join([*_lines(report), text]), as_json)
    return exit_codes.OK


@contextlib.contextmanager
def _saved(paths: StorePaths, target: Path, kind: str) -> Iterator[SalvageReport]:
    """Copy the rows of the store to *target*, which is removed if anything fails."""
    try:
        with progress("copying rows") as tell:
            report = salvage(paths.db, target, tell, kind=kind)
        verify(target)
        yield report
    except BaseException:
        remove_store(target)
        raise


def _import_orphans(paths: StorePaths, *, only_check: bool, yes: bool, as_json: bool) -> int:
    done: list[dict[str, Any]] = []
    left = False
    with open_file(paths.db) as store:
        for log in list_orphans(paths):
            with waiting(lambda log=log: f"reading {log.name}"):  # type: ignore[misc]
                missing = find_missing(store, log)
            if not as_json:
                print("\n".join(_orphan_lines(missing)), flush=True)
            document: dict[str, Any] = {
                "log": str(log), "sessions": len(missing.sessions),
                "messages": missing.message_count, "present": missing.present,
                "unreadable": missing.unreadable, "put_back": False,
            }  # fmt: skip
            done.append(document)
            if only_check or (missing and not confirm_or_fail(f"Add them to {paths.db}?", yes)):
                left = left or bool(missing)
                continue
            with progress("importing") as tell:
                import_missing(store, missing, tell)
            document["put_back"] = True
            if missing.unreadable:
                left = True  # not renamed: the rest may be readable by other means
                continue
            document["log"] = str(mark_imported(log))
            if not as_json:
                print(f"  imported; renamed to {document['log']}")
    if as_json or not done:
        print_result({"orphans": done}, f"no saved files found beside {paths.db}", as_json)
    return exit_codes.BROKEN if left else exit_codes.OK


def _orphan_lines(missing: MissingRows) -> Iterator[str]:
    name = missing.orphan.name
    if missing:
        yield (
            f"{name}: {count(len(missing.sessions), 'session')} and"
            f" {count(missing.message_count, 'message')} are missing from the store;"
            f" {count(missing.present, 'row')} already there"
        )
    else:
        yield f"{name}: the store has all {missing.present:,} rows already"
    if missing.unreadable:
        yield f"  cannot be imported: {count(missing.unreadable, 'incomplete row')}"


def _counts(report: SalvageReport) -> dict[str, Any]:
    messages = report.messages
    return {
        "tables": [one._asdict() for one in report.tables],
        "messages": None if messages is None else messages._asdict(),
    }


def _lines(report: SalvageReport) -> list[str]:
    lines = []
    for one in report.tables:
        counted = report.messages is not None and one.table == "messages"
        lost = f", up to {one.lost:,} lost" if one.lost and not counted else ""
        skipped = f", {one.skipped:,} rejected" if one.skipped else ""
        if one.read or lost or skipped or not one.table.startswith("hermes_actor_"):
            lines.append(f"  {one.table}: {count(one.read, 'row')}{lost}{skipped}")
    losses = report.messages
    if losses is None:
        return lines
    if losses.missing:
        most = list(losses.sessions.items())[:_SHOWN_SESSIONS]
        where = ", ".join(f"{name} ({number:,})" for name, number in most)
        if len(most) < len(losses.sessions):
            where += f" and {len(losses.sessions) - len(most):,} more"
        lines.append(
            wrapped(
                f"{losses.missing:,} of {losses.of:,} messages are missing, in these sessions:"
                f" {where}"
            )
        )
    else:
        lines.append(f"all {losses.of:,} messages of the saved sessions were saved")
    if losses.perhaps_more:
        lines.append(f"sessions are missing as well, with up to {losses.perhaps_more:,} messages")
    return lines
