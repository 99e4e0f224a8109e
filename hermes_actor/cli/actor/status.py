"""``hermes-actor status``: the state of the actor of a store."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from hermes_actor import exit_codes
from hermes_actor._version import __version__
from hermes_actor.cli.every_store import for_every_store
from hermes_actor.cli.options import db_option, json_option
from hermes_actor.cli.output.actor_words import index_text, wal_text
from hermes_actor.cli.output.console import print_result, size_text
from hermes_actor.cli.output.formatting import (
    clip,
    count,
    plain,
    short_duration,
    terminal_width,
    wrapped,
)
from hermes_actor.client.control import ask_status
from hermes_actor.errors import DeadlineExceeded
from hermes_actor.paths import StorePaths, default_db_path, resolve_paths
from hermes_actor.recovery.orphan_wal import list_orphans, removed_store
from hermes_actor.recovery.rescue import list_rescued
from hermes_actor.system.lock_inspection import lock_holder
from hermes_protocol.features import SESSIONS
from hermes_protocol.status import Phase, Status

__all__ = ["status"]

_INDENT = 12
"""Cells of the name of a fact."""


@click.command()
@db_option
@json_option
@for_every_store(ask=lambda paths: ask_status(paths))
def status(
    db: Path | None, as_json: bool, ask: Callable[[StorePaths], Status | None] | None = None
) -> int:
    """Show whether an actor is running, and its state.

    If config.yaml names a server, shows whether it answers and what it guarantees.

    Exit codes: 0 serving, 3 not running or no server answers, 5 running but not serving
    (recovering, draining, not answering, embedded in another program), 6 broken.

    \b
    Examples:
      hermes-actor status
      hermes-actor status --json | jq .total_latency
      hermes-actor status --all
    """
    from hermes_actor.providers.resolve import choose_by_settings

    chosen = None if db else choose_by_settings(default_db_path().parent)
    if chosen is not None and chosen.file is None:
        from hermes_actor.cli.actor._server_status import server_status

        return server_status(chosen, as_json)
    paths = resolve_paths(db or (chosen and chosen.file) or default_db_path())
    try:
        report = (ask or ask_status)(paths)
    except DeadlineExceeded as error:
        return _print_silent(paths, "not answering", str(error), as_json)
    if report is None and (owner := lock_holder(paths)) is not None:
        text = f"pid {owner} uses {paths.db} in embedded mode; others can write once it exits"
        return _print_silent(paths, "embedded", text, as_json)
    if report is None:
        return _print_not_running(paths, as_json)
    lines = [*_lines(report)]
    lines += [
        wrapped(
            f"  saved: {orphan.name} holds changes from before the files were replaced;"
            " import them: hermes-actor repair --orphans"
        )
        for orphan in list_orphans(paths)
    ]
    print_result(report.document(), "\n".join(lines), as_json)
    if report.phase is Phase.BROKEN or report.broken:
        return exit_codes.BROKEN
    return exit_codes.OK if report.is_serving else exit_codes.NOT_SERVING


def _print_silent(paths: StorePaths, phase: str, text: str, as_json: bool) -> int:
    """An owner that cannot be asked how it is."""
    owner = {"phase": phase, "database": str(paths.db), "pid": lock_holder(paths)}
    print_result({**owner, "message": text}, wrapped(f"{phase}: {text}"), as_json)
    return exit_codes.NOT_SERVING


def _print_not_running(paths: StorePaths, as_json: bool) -> int:
    saved, gone = list_rescued(), removed_store(paths)
    if gone is None:
        lines = [wrapped(f"not running: no actor serves {paths.db}; the next client starts one")]
    else:
        lines = [wrapped(f"not running: {gone.text}"), wrapped(f"  do: {gone.advice}")]
    lines += [wrapped(f"  saved when its home was deleted: {copy}") for copy in saved]
    if gone is not None and gone.saved is not None:
        saved.append(gone.saved)
    document = {"phase": "not running", "database": str(paths.db), "rescued": [*map(str, saved)]}
    print_result(document, "\n".join(lines), as_json)
    return exit_codes.NOT_RUNNING


def _lines(report: Status) -> Iterator[str]:
    yield wrapped(f"{report.phase_text}: {report.database}")
    for name, text in _facts(report):
        yield f"  {name:<{_INDENT - 2}}{wrapped(text, _INDENT)}"
    for text in report.degraded:
        yield f"  degraded: {wrapped(text, _INDENT)}"
    if report.broken:
        yield f"  broken: {wrapped(report.broken, _INDENT)}"
    others = report.clients(except_pid=os.getpid())
    yield f"  clients   {len(others)}"
    for one in sorted(others, key=lambda one: -one.requests):
        requests = count(one.requests, "request")
        yield clip(f"    pid {one.pid}  {plain(one.name)}  {requests}", terminal_width())
    if report.version != __version__:
        note = f"this command is version {__version__}; to update: hermes-actor handoff"
        yield f"  note: {wrapped(note, _INDENT)}"


def _facts(report: Status) -> Iterator[tuple[str, str]]:
    commit, total = report.commit_latency, report.total_latency
    up = short_duration(report.uptime_s)
    yield "actor", f"pid {report.pid}, version {report.version}, up {up}, epoch {report.epoch}"
    yield (
        "writes",
        f"{report.writes:,} in {report.batches:,} batches, {report.refused:,} refused,"
        f" {report.receipts_replayed:,} sent again",
    )
    yield "latency", f"p50 {total.p50_ms} ms, p99 {total.p99_ms} ms; commit p50 {commit.p50_ms} ms"
    yield "queue", f"{count(report.queue.count, 'request')}, {size_text(report.queue.bytes)}"
    yield "wal", wal_text(report.wal_frames, report.checkpoints)
    yield "sqlite", f"{report.sqlite.version}; WAL-reset bug: {report.sqlite.wal_reset}"
    yield "kind", report.kind
    if report.kind == SESSIONS:
        yield "index", index_text(report.index)
    if report.foreign_commits:
        yield "foreign", f"{report.foreign_commits:,} commits by other programs"
    if report.lease is not None:
        yield "lease", report.lease.text(time.time())
