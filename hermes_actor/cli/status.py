"""``hermes-actor status``: the state of the actor of a store."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from hermes_actor import exit_codes
from hermes_actor._version import __version__
from hermes_actor.cli.options import db_option, json_option
from hermes_actor.client.control import ask_status
from hermes_actor.errors import DeadlineExceeded
from hermes_actor.paths import StorePaths, default_db_path, resolve_paths
from hermes_actor.recovery.orphan_wal import list_orphans, removed_store
from hermes_actor.recovery.rescue import list_rescued
from hermes_actor.system.lock_inspection import lock_holder
from hermes_protocol.features import SESSIONS
from hermes_protocol.status import Phase, Status

__all__ = ["status"]


@click.command()
@db_option
@json_option
def status(db: Path | None, as_json: bool) -> int:
    """Show whether an actor is running, and its state.

    If config.yaml names a server, shows whether it answers and what it guarantees.

    Exit codes: 0 serving, 3 not running or no server answers, 5 running but not serving
    (recovering, draining, not answering, embedded in another program), 6 broken.

    \b
    Examples:
      hermes-actor status
      hermes-actor status --json | jq .total_latency
    """
    from hermes_actor.providers.resolve import choose_by_settings

    chosen = None if db else choose_by_settings(default_db_path().parent)
    if chosen is not None and chosen.file is None:
        from hermes_actor.cli._server_status import server_status

        return server_status(chosen, as_json)
    paths = resolve_paths(db or (chosen and chosen.file) or default_db_path())
    try:
        report = ask_status(paths)
    except DeadlineExceeded as error:
        _print_silent(paths, "not answering", f"{error}", as_json)
        return exit_codes.NOT_SERVING
    if report is None and lock_holder(paths) is not None:
        text = (
            f"pid {lock_holder(paths)} owns {paths.db} in embedded mode and takes no clients;"
            " other programs can write when it has ended"
        )
        _print_silent(paths, "embedded", text, as_json)
        return exit_codes.NOT_SERVING
    if report is None:
        _print_not_running(paths, as_json)
        return exit_codes.NOT_RUNNING
    if as_json:
        print(json.dumps(report.document()))
    else:
        _print(report)
        for orphan in list_orphans(paths):
            print(
                f"  saved: {orphan.name}, before files were replaced: hermes-actor repair --orphans"
            )
    if report.phase is Phase.BROKEN or report.broken:
        return exit_codes.BROKEN
    return exit_codes.OK if report.is_serving else exit_codes.NOT_SERVING


def _print_silent(paths: StorePaths, phase: str, text: str, as_json: bool) -> None:
    """An owner that cannot be asked how it is."""
    if as_json:
        owner = {"phase": phase, "database": str(paths.db), "pid": lock_holder(paths)}
        print(json.dumps({**owner, "message": text}))
    else:
        print(f"{phase}: {text}")


def _print_not_running(paths: StorePaths, as_json: bool) -> None:
    saved, gone = list_rescued(), removed_store(paths)
    if as_json:
        saved += [gone.saved] if gone is not None and gone.saved is not None else []
        names = [str(copy) for copy in saved]
        print(json.dumps({"phase": "not running", "database": str(paths.db), "rescued": names}))
        return
    if gone is None:
        print(f"not running: no actor serves {paths.db}; the next client starts one")
    else:
        print(f"not running: {gone.text}\n  do: {gone.advice}")
    for copy in saved:
        print(f"  saved when its home was deleted: {copy}")


def _print(report: Status) -> None:
    commit, total = report.commit_latency, report.total_latency
    print(f"{report.phase_text}: {report.database}")
    up = f"up {report.uptime_s:.0f} s, epoch {report.epoch}"
    print(f"  actor     pid {report.pid}, version {report.version}, {up}")
    print(f"  writes    {report.writes} in {report.batches} batches,"
          f" {report.refused} refused, {report.receipts_replayed} answered again")  # fmt: skip
    print(f"  latency   {total.p50_ms} ms median, {total.p99_ms} ms at 99 %,"
          f" commit {commit.p50_ms} ms")  # fmt: skip
    print(f"  queue     {report.queue.count} waiting, {report.queue.bytes} bytes")
    checkpoints = ", ".join(f"{n} {kind}" for kind, n in report.checkpoints.items())
    print(f"  wal       {report.wal_frames} frames; checkpoints: {checkpoints or 'none yet'}")
    print(f"  sqlite    {report.sqlite.version}, WAL-reset race: {report.sqlite.wal_reset}")
    print(f"  kind      {report.kind}")
    if report.kind == SESSIONS:
        print(f"  index     {report.index.lag} of {report.index.newest} messages behind")
    if report.foreign_commits:
        print(f"  foreign   {report.foreign_commits} commits by other programs seen")
    for text in report.degraded:
        print(f"  degraded: {text}")
    if report.broken:
        print(f"  broken: {report.broken}")
    others = report.clients(except_pid=os.getpid())
    print(f"  clients   {len(others)}")
    for connection in others:
        print(f"    pid {connection.pid}  {connection.name}  {connection.requests} requests")
    if report.version != __version__:
        print(f"  note: this command is version {__version__}")
